"""What runs inside an attempt, and how one gets in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True)
class ProcessRow:
    """One process of a job; what could not be read is None."""

    pid: int
    """As the host of the engine counts."""
    user: str
    command: str
    cpu: float | None = None
    """Of one core, 0 to the number of cores: since the last look, or on an engine elsewhere since it began."""
    memory: int | None = None
    """Resident bytes."""
    age: timedelta | None = None
    """Since it began."""


@dataclass(frozen=True)
class Shell:
    """A command that opens a shell beside a job."""

    arguments: tuple[str, ...]
    where: str
    """In words: where one is then."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set beside what is there already."""
    directory: str | None = None
