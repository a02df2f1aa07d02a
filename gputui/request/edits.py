"""Edits of jobs as drafts, shared by form, job file and command line."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from msgspec.structs import replace

from gputui.domain.action import Edit, check_suits_state
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.text import format_limit, quoted
from gputui.request import draft as drafts
from gputui.request import job_file, job_values
from gputui.request.caller import is_taken_over
from gputui.request.draft import NAMES, YES, Draft
from gputui.request.job_options import DOCKER_KEYS
from gputui.request.submitter import Submitter

_USUAL = ("editor", "nano", "vim", "vi")
_KEYS = "# Keys are the options of `gputui submit`, with underscores.\n"


class Editor:
    """Edits drafts; keeps a file with mistakes, so that the next try continues with it."""

    def __init__(self, head: str) -> None:
        self._head = "".join(f"# {line}\n" for line in head.splitlines()) + _KEYS
        self._path: Path | None = None
        self._before: bytes | None = None
        """Content of the file as the editor got it; None if it had mistakes: then nothing counts as unchanged."""

    def edit(self, draft: Draft, by: Submitter) -> dict[str, str] | None:
        """Return the draft as saved; None if nothing was changed. Raises GputuiError, and keeps the file then.

        Blocks until the editor ends.
        """
        words = self.begin(draft, by)

        def nothing(number: int, frame: FrameType | None) -> None:
            """Ignore Ctrl-C, which the terminal also sends to the editor. A handler is not inherited."""

        before = signal.signal(signal.SIGINT, nothing)
        try:
            code = subprocess.run(words, check=False).returncode  # noqa: S603 - the user's own editor
        except OSError as error:
            raise self.cannot_run(words, error) from error
        finally:
            signal.signal(signal.SIGINT, before)
        return self.end(words, code, by)

    def begin(self, draft: Draft, by: Submitter) -> tuple[str, ...]:
        """Write the draft to a file; return the command that edits it. Raises GputuiError if there is no editor."""
        words = command(by.environ)
        if self._path is None or not self._path.exists():
            directory = Path(tempfile.mkdtemp(prefix="gputui-"))  # only readable by its owner
            self._path = directory / "job.toml"
            self._path.write_text(self._head + job_file.draft_as_toml(draft, with_others=True), encoding="utf-8")
            self._before = self._path.read_bytes()
        return *words, os.fspath(self._path)

    def end(self, words: Sequence[str], code: int, by: Submitter) -> dict[str, str] | None:
        """Return the draft as that command saved it, given its exit code; like `edit`."""
        path, before = Path(words[-1]), self._before
        if code:
            raise GputuiError(f"ended with {code}: nothing was changed", where=words[0], hint=f"the file is {path}")
        if path.read_bytes() == before:
            self._forget(path)
            return None
        self._before = None
        edited = job_file.read_draft(path, by)
        self._forget(path)
        return edited

    @staticmethod
    def cannot_run(words: Sequence[str], error: OSError) -> GputuiError:
        return GputuiError(f"cannot be run: {error.strerror}", where=words[0], hint="set EDITOR")

    def _forget(self, path: Path) -> None:
        self._path = None
        shutil.rmtree(path.parent, ignore_errors=True)


def command(environ: Mapping[str, str]) -> list[str]:
    """Return the editor of the environment, or an installed one; raises GputuiError."""
    for name in ("VISUAL", "EDITOR"):
        try:
            words = shlex.split(environ.get(name, ""))
        except ValueError as error:
            raise GputuiError("a quotation is not closed", where=name) from error
        if words:
            return words
    found = next((path for name in _USUAL if (path := shutil.which(name))), None)
    if found is None:
        raise GputuiError("there is no editor", where="EDITOR", hint="set EDITOR in your environment")
    return [found]


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
"""Fields whose names differ from the option's."""
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
"""Names of the options that can be changed while a job runs."""


def draft_of(job: Job, now: datetime) -> dict[str, str]:
    found = drafts.draft_of_spec(replace(job.spec, priority=job.priority), now)
    return {**found, "hold": YES} if job.held else found


def locked(job: Job) -> dict[str, str]:
    """Return the names of texts that cannot be changed, each with the reason."""
    if job.state is not JobState.PENDING:
        return {name: _RUNS for name in NAMES if name not in _WHILE_RUNNING}
    found = {
        "tenant": "cannot be changed; a clone may have another",
        "env_all": "the environment was taken over when the job was submitted; name variables in env",
    }
    found["sweep"] = found["sweep_limit"] = "the values of a sweep cannot be changed; submit another sweep"
    if job.array is None:
        found["array"] = "a job cannot become an array; clone it as an array"
    else:
        found["array"] = f"it is element {job.array.index} of array {job.array.id}, which stays as it is"
    if job.spec.is_host:
        found["image"] = "a host job cannot get an image; clone it with an image"
    return found


def changed(before: Draft, after: Draft) -> tuple[str, ...]:
    return tuple(name for name in NAMES if drafts.text_of(before, name) != drafts.text_of(after, name))


def settled(job: Job, draft: Draft) -> Draft:
    """Return the draft with a time limit of `+2h` or `-30m` added to the job's; raises InputError."""
    text = drafts.text_of(draft, _LIMIT)
    if text[:1] not in {"+", "-"}:
        return draft
    limit, change = job.spec.time_limit, job_values.time_span(text[1:].strip(), _LIMIT)
    if limit is None:
        hint = "give the whole time, such as 4h"
        raise InputError(f"the job has no time limit that {quoted(text)} could change", where=_LIMIT, hint=hint)
    if text[0] == "-" and change >= limit:
        raise InputError(f"{quoted(text)} leaves nothing of its limit of {format_limit(limit)}", where=_LIMIT)
    return {**draft, _LIMIT: job_values.duration_text(limit + change if text[0] == "+" else limit - change)}


def read(job: Job, before: Draft, after: Draft, by: Submitter) -> Edit:
    """Return the edit between two drafts; raises InputError, whose `where` is the name.

    Unchanged texts are not parsed at all: they may be impossible to enter.
    """
    after = settled(job, after)
    drafts.check_further(after)
    names = changed(before, after)
    if not names:
        return Edit()
    check_suits_state(job, suits_running=_WHILE_RUNNING.issuperset(names))
    for error in _refused(job, names, after).values():
        raise error
    # a host process keeps the variables that it took over from its submitter
    environ = {name: value for name, value in by.environ.items() if not is_taken_over(name)}
    environ |= {name: value for name, value in job.spec.options.env if is_taken_over(name)}
    asked = drafts.asked(_checkable(job, names, after), replace(by, environ=environ))
    start = spec = replace(job.spec, priority=job.priority)
    for name in names:
        field = _PLACES.get(name, name)
        if name in _OF_GPUS:
            spec = replace(spec, gpus=replace(spec.gpus, **_fields(asked.spec.gpus, _OF_GPUS[name])))
        elif hasattr(spec.options, field):
            spec = replace(spec, options=replace(spec.options, **_fields(asked.spec.options, (field,))))
        elif hasattr(spec, field):
            spec = replace(spec, **_fields(asked.spec, (field,)))
    held = asked.held if "hold" in names and asked.held != job.held else None
    return replace(Edit.between(start, spec), held=held)


def faults(job: Job, before: Draft, after: Draft, by: Submitter) -> dict[str, InputError]:
    try:
        after = settled(job, after)
    except InputError as error:
        return {_LIMIT: error}
    names = changed(before, after)
    refused = _refused(job, names, after)
    found = refused or drafts.faults(_checkable(job, names, after), by)
    if not found:
        try:
            read(job, before, after, by)
        except InputError as error:
            found[error.where or "image"] = error
    return found


def _checkable(job: Job, names: Iterable[str], after: Draft) -> Draft:
    """Return the texts to parse: of a job whose image nobody here knows, as others' in a cluster, the new ones only."""
    if job.spec.image is not None or job.spec.command:
        return {**after, "array": ""}
    return {"image": "unknown", **{name: drafts.text_of(after, name) for name in names}}


def _refused(job: Job, names: tuple[str, ...], after: Draft) -> dict[str, InputError]:
    found = {name: InputError(why, where=name) for name, why in locked(job).items() if name in names}
    if not job.spec.is_host and not drafts.text_of(after, "image"):
        found["image"] = InputError("a container job cannot become a host job", where="image", hint="name an image")
    return found


def _fields(holder: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in names}
