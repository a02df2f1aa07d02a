"""The finding that every check of `gputui doctor` ends with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Result of a check. One `fail` makes doctor exit with 1: no job, or no job with GPUs, could start."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """Finding of doctor."""

    name: str
    """Subject, in one word where possible."""
    level: Level
    text: str
    """Sentence that says what was found."""
    hint: str = ""
    """Exact commands or file content that fix it, a line each; empty when all is well."""
    why: str = ""
    """Sentence that says why it matters; empty when all is well."""


def ok(name: str, text: str) -> Check:
    """Return the finding that nothing is wrong."""
    return Check(name, Level.OK, text)


def warn(name: str, text: str, why: str, hint: str) -> Check:
    """Return a finding that needs attention but stops no job."""
    return Check(name, Level.WARN, text, hint, why)


def fail(name: str, text: str, why: str, hint: str) -> Check:
    """Return a finding because of which jobs cannot start."""
    return Check(name, Level.FAIL, text, hint, why)
