"""Edits of jobs: any field of a waiting job; time limit and comment of a running one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.decoding import convert
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.domain.state import JobState

_PARTS = ("gpus", "options")
"""Fields of a spec that are edited field by field."""
_SECRET = frozenset({"env"})
_RANKED = frozenset({"priority", "time_limit", "nice", "begin_at"})
_WHILE_RUNNING = frozenset({"time_limit", "comment"})
"""Fields of a spec that can be edited while the job runs."""
_FIXED = frozenset({"tenant"})
"""Fields that cannot be edited: the tenant decides which submissions are allowed at all."""


class Edit(Struct, frozen=True):
    """The fields to change; all others keep their values."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    gpus: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    held: bool | None = None
    """New hold state; None: unchanged."""

    @classmethod
    def between(cls, before: JobSpec, after: JobSpec) -> Edit:
        """Return the edit that turns `before` into `after`."""
        changed = {name: value for name, value in _changes(before, after) if name not in (*_PARTS, *_FIXED)}
        return cls(changed, dict(_changes(before.gpus, after.gpus)), dict(_changes(before.options, after.options)))

    def typed(self) -> Edit:
        """Return the edit, decoded from JSON, with values of the fields' types and without fixed fields.

        Raises msgspec.ValidationError for a value of a wrong type.
        """
        return Edit(
            spec=_typed(self.spec, JobSpec),
            gpus=_typed(self.gpus, GpuRequest),
            options=_typed(self.options, ContainerOptions),
            held=self.held,
        )

    def __bool__(self) -> bool:
        """Return whether the edit changes anything."""
        return bool(self.spec or self.gpus or self.options) or self.held is not None

    @property
    def suits_running(self) -> bool:
        """Return whether the edit can be applied to a running job."""
        return self.spec.keys() <= _WHILE_RUNNING and not self.gpus and not self.options and self.held is None

    def apply(self, spec: JobSpec) -> JobSpec:
        """Return the spec with these fields."""
        gpus = replace(spec.gpus, **self.gpus)
        return replace(spec, **self.spec, gpus=gpus, options=replace(spec.options, **self.options))

    def on(self, job: Job, now: datetime) -> Job:
        """Return the edited job. A place beside another job is kept unless a changed field counts for its rank.

        A running job is warned again if its new limit is far enough away.
        """
        after = job.evolve(spec=self.apply(job.spec))
        if job.state is not JobState.PENDING:
            changed = after.spec.time_limit != job.spec.time_limit
            return _warned_anew(after.evolve(limit_changed_at=now), now) if changed else after
        if self.gpus or _RANKED & self.spec.keys():
            after = after.evolve(placed=None)
        if "priority" in self.spec:
            after = after.prioritised(after.spec.priority)
        if "begin_at" in self.spec:
            after = after.evolve(not_before=None)
        if self.held is None:
            return after
        if not self.held:
            return after.unheld(released_at=now)
        is_by_user = after.held and not after.hold_reason
        return after if is_by_user else after.evolve(held=True, hold_reason=None, held_at=now)

    def words(self, spec: JobSpec, held: bool = False) -> str:
        """Describe the edited fields with their values in a spec.

        Environment variables by name only, since values may be secret.
        """
        parts: list[str] = []
        for holder, names in ((spec, self.spec), (spec.gpus, self.gpus), (spec.options, self.options)):
            parts += [f"{name} {_word(name, getattr(holder, name))}" for name in names]
        parts += [f"held {held}"] if self.held is not None else []
        return ", ".join(parts)


def _typed(values: Mapping[str, Any], kind: type[JobSpec | GpuRequest | ContainerOptions]) -> dict[str, Any]:
    known = convert(values, kind)
    return {name: getattr(known, name) for name in kind.__struct_fields__ if name in values and name not in _FIXED}


def _warned_anew(job: Job, now: datetime) -> Job:
    if job.warning_at is None or job.warning_at <= now or job.attempts[-1].warned_at is None:
        return job
    return job.with_attempt(warned_at=None)


def check_suits_state(job: Job, *, suits_running: bool) -> None:
    """Raise GputuiError if the job is not waiting, unless the edit can be applied to a running job."""
    if job.state is not JobState.PENDING and not suits_running:
        hint = "submit another like it for the rest"
        what = f"job {job.shown_id} is {job.state}: only its time limit and its comment can be changed now"
        raise GputuiError(what, hint=hint)


def differs(before: Job, after: Job) -> bool:
    """Return whether the request of a job, or a user's action on it, has changed."""
    return _asked(before) != _asked(after)


def _asked(job: Job) -> tuple[object, ...]:
    return job.spec, job.priority, job.held, job.topped_at


def _changes(before: JobSpec | GpuRequest | ContainerOptions, after: object) -> Iterator[tuple[str, Any]]:
    for name in before.__struct_fields__:
        value = getattr(after, name)
        if value != getattr(before, name):
            yield name, value


def _word(name: str, value: Any) -> str:
    if name in _SECRET:
        return " ".join(key for key, _ in value) or "none"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
