"""Edits of jobs as drafts: a form, a file and a command line use the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from gputui.domain.edit import Edit, check_suits_state
from gputui.domain.errors import InputError
from gputui.domain.job import Job, JobSpec, Submission
from gputui.domain.state import JobState
from gputui.domain.units import format_duration
from gputui.request import draft as drafts
from gputui.request import numbers
from gputui.request.draft import NAMES, YES, Draft
from gputui.request.job_options import DOCKER_KEYS
from gputui.request.submitter import Submitter, is_taken_over
from gputui.request.texts import quoted

_PLACES: Mapping[str, str] = MappingProxyType(
    {
        "signal": "warning",
        "begin": "begin_at",
        "env_file": "env",
        "label": "labels",
        "label_file": "labels",
        **{key.name: key.field for key in DOCKER_KEYS if key.field},
    }
)
"""Fields that go by another name than the option."""
_OF_GPUS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gpus": ("minimum", "maximum", "devices", "everything", "capabilities", "driver", "driver_options"),
        "gpu_memory": ("memory",),
        "gpu_model": ("model",),
        "share": ("share",),
    }
)


_LIMIT = "time_limit"
_RUNS = "the job runs: only its time limit and its comment can be changed"
_WHILE_RUNNING = frozenset({"time_limit", "comment"})
"""Names of what can be changed while a job runs."""


def draft_of(job: Job, now: datetime) -> dict[str, str]:
    """Return the draft of a job as it is now."""
    found = drafts.draft_of_spec(replace(job.spec, priority=job.priority), now)
    return {**found, "hold": YES} if job.held else found


def locked(job: Job) -> dict[str, str]:
    """Return what cannot be changed, each with the reason."""
    if job.state is not JobState.PENDING:
        return {name: _RUNS for name in NAMES if name not in _WHILE_RUNNING}
    found = {
        "tenant": "whom a job is charged to stays; a clone may differ",
        "env_all": "the environment was taken over when the job was submitted; name variables in env",
    }
    found["sweep"] = found["sweep_limit"] = "the elements of a sweep stay as they are; submit another"
    if job.array is None:
        found["array"] = "one job stays one; a clone may be an array"
    else:
        found["array"] = f"it is element {job.array.index} of array {job.array.id}, which stays as it is"
    if job.spec.is_host:
        found["image"] = "a process of the host stays one; a clone may have an image"
    return found


def changed(before: Draft, after: Draft) -> tuple[str, ...]:
    """The names of what differs."""
    return tuple(name for name in NAMES if drafts.text_of(before, name) != drafts.text_of(after, name))


def settled(job: Job, draft: Draft) -> Draft:
    """Return the draft with a time limit of `+2h` or `-30m` added to the job's; raises InputError."""
    text = drafts.text_of(draft, _LIMIT)
    if text[:1] not in {"+", "-"}:
        return draft
    limit, change = job.spec.time_limit, numbers.time_limit(text[1:].strip(), _LIMIT)
    if limit is None:
        hint = "give the whole time, such as 4h"
        raise InputError(f"the job has no time limit that {quoted(text)} could change", where=_LIMIT, hint=hint)
    if text[0] == "-" and change >= limit:
        raise InputError(f"{quoted(text)} leaves nothing of its limit of {format_duration(limit)}", where=_LIMIT)
    return {**draft, _LIMIT: numbers.duration_text(limit + change if text[0] == "+" else limit - change)}


def read(job: Job, before: Draft, after: Draft, by: Submitter) -> Edit:
    """Return the edit between two drafts; raises InputError, whose `where` is the name.

    What was left as it is, is not read at all: it may be such as nobody could write.
    """
    after = settled(job, after)
    drafts.check_further(after)
    names = changed(before, after)
    if not names:
        return Edit()
    check_suits_state(job, suits_running=_WHILE_RUNNING.issuperset(names))
    for error in _refused(job, names, after).values():
        raise error
    asked = drafts.asked({**after, "array": ""}, replace(by, environ=_environ(job, by)))
    start = replace(job.spec, priority=job.priority)
    spec = start
    for name in names:
        spec = _with(spec, name, asked)
    held = asked.held if "hold" in names and asked.held != job.held else None
    return replace(Edit.between(start, spec), held=held)


def faults(job: Job, before: Draft, after: Draft, by: Submitter) -> dict[str, InputError]:
    """Return the errors by name, as far as they can be found at once."""
    try:
        after = settled(job, after)
    except InputError as error:
        return {_LIMIT: error}
    refused = _refused(job, changed(before, after), after)
    found = refused or drafts.faults({**after, "array": ""}, by)
    if not found:
        try:
            read(job, before, after, by)
        except InputError as error:
            found[error.where or "image"] = error
    return found


def _refused(job: Job, names: tuple[str, ...], after: Draft) -> dict[str, InputError]:
    """Return the errors of changes that are never allowed."""
    found = {name: InputError(why, where=name) for name, why in locked(job).items() if name in names}
    if not job.spec.is_host and not drafts.text_of(after, "image"):
        found["image"] = InputError("a job of a container stays one", where="image", hint="name an image")
    return found


def _environ(job: Job, by: Submitter) -> Mapping[str, str]:
    """The environment that values are taken from; a host process keeps what it took over from who submitted it."""
    kept = {name: value for name, value in job.spec.options.env if is_taken_over(name)}
    return {**{name: value for name, value in by.environ.items() if not is_taken_over(name)}, **kept}


def _with(spec: JobSpec, name: str, asked: Submission) -> JobSpec:
    """The spec, with one thing as it is asked for."""
    if name in _OF_GPUS:
        return replace(spec, gpus=replace(spec.gpus, **_fields(asked.spec.gpus, _OF_GPUS[name])))
    field = _PLACES.get(name, name)
    if hasattr(spec.options, field):
        return replace(spec, options=replace(spec.options, **_fields(asked.spec.options, (field,))))
    return replace(spec, **_fields(asked.spec, (field,))) if hasattr(spec, field) else spec


def _fields(holder: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in names}
