"""The checks of `gputui doctor`: pure functions from facts to findings, a module per subject.

`gputui.cli.doctor` collects the facts. A new check is a function here that returns or yields a `DoctorCheck`, and a
line there.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class CheckLevel(StrEnum):
    """Result of a check. One `fail` makes doctor exit with 1: no job, or no job with GPUs, could start."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class DoctorCheck(Struct, frozen=True):
    """Finding of a check of `gputui doctor`: subject, result, reason and fix."""

    name: str
    """Subject, in one word where possible."""
    level: CheckLevel
    text: str
    """Sentence that says what was found."""
    hint: str = ""
    """Exact commands or file content that fix it, a line each; empty when all is well."""
    why: str = ""
    """Sentence that says why it matters; empty when all is well."""


def ok(name: str, text: str) -> DoctorCheck:
    return DoctorCheck(name, CheckLevel.OK, text)


def warn(name: str, text: str, why: str, hint: str) -> DoctorCheck:
    return DoctorCheck(name, CheckLevel.WARN, text, hint, why)


def fail(name: str, text: str, why: str, hint: str) -> DoctorCheck:
    """Return a finding because of which jobs cannot start."""
    return DoctorCheck(name, CheckLevel.FAIL, text, hint, why)
