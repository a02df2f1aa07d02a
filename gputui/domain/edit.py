"""A change of what a waiting job asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gputui.domain.job import ContainerOptions, GpuRequest, Job, JobSpec

_PARTS = ("gpus", "options")
"""Fields of a spec that are changed field by field themselves."""
_SECRET = frozenset({"env"})
_FIXED = frozenset({"tenant"})
"""What is not changed: whom a job is charged to decides what may be submitted at all."""


@dataclass(frozen=True)
class Edit:
    """The fields that become others; what is not among them stays as it is then."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    gpus: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    held: bool | None = None
    """Whether it waits until it is released; None: as it is."""

    @classmethod
    def between(cls, before: JobSpec, after: JobSpec) -> Edit:
        """What makes the one out of the other."""
        changed = {name: value for name, value in _changes(before, after) if name not in (*_PARTS, *_FIXED)}
        return cls(changed, dict(_changes(before.gpus, after.gpus)), dict(_changes(before.options, after.options)))

    def __bool__(self) -> bool:
        """Whether it changes anything."""
        return bool(self.spec or self.gpus or self.options) or self.held is not None

    def apply(self, spec: JobSpec) -> JobSpec:
        """The spec with these fields."""
        gpus = replace(spec.gpus, **self.gpus)
        return replace(spec, **self.spec, gpus=gpus, options=replace(spec.options, **self.options))

    def on(self, job: Job, now: datetime) -> Job:
        """The job that asks for it: its place by hand and its age are kept, but for a new priority or time to begin."""
        after = job.evolve(spec=self.apply(job.spec))
        if "priority" in self.spec:
            after = after.prioritised(after.spec.priority)
        if "begin_at" in self.spec:
            after = after.evolve(not_before=None)
        if self.held is None:
            return after
        return after.evolve(held=self.held, hold_reason=None, released_at=job.released_at if self.held else now)

    def words(self, spec: JobSpec, held: bool = False) -> str:
        """Those fields as they stand in a spec; of the environment the names alone, for values may be secret."""
        parts: list[str] = []
        for holder, names in ((spec, self.spec), (spec.gpus, self.gpus), (spec.options, self.options)):
            parts += [f"{name} {_word(name, getattr(holder, name))}" for name in names]
        parts += [f"held {held}"] if self.held is not None else []
        return ", ".join(parts)


def differs(before: Job, after: Job) -> bool:
    """Whether what a job asks for is another, or what was wished of it."""
    return _asked(before) != _asked(after)


def _asked(job: Job) -> tuple[object, ...]:
    return job.spec, job.priority, job.held, job.topped_at


def _changes(before: JobSpec | GpuRequest | ContainerOptions, after: object) -> Iterator[tuple[str, Any]]:
    for each in dataclasses.fields(before):
        value = getattr(after, each.name)
        if value != getattr(before, each.name):
            yield each.name, value


def _word(name: str, value: Any) -> str:
    if name in _SECRET:
        return " ".join(key for key, _ in value) or "none"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
