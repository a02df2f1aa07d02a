"""The one table of conditions: which asks for action, which for a look, and which only tells. Every face reads it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gputui.domain.faulty_gpus import LOST, NOT_READ, SICK

ERROR, WARNING, INFORMATION = "error", "warning", "information"
"""Act now (red, `✗`), look (amber, `!`), and know (no mark)."""
THROTTLED, CAPPED = "throttled", "capped"
DISK_FULL, DISK_LOW = "disk full", "disk low"
TRESPASS, INTRUDER, IDLE, FOREIGN = "trespass", "intruder", "idle", "foreign"
MEMORY, HOT, SWAP, LOAD = "memory", "hot", "swap", "load"
FAILED, DRAINED = "failed", "drained"


class ConditionKind(Struct, frozen=True):
    """A kind of condition."""

    severity: str
    words: str = ""
    """Words after the names of GPUs; empty: the name of the kind."""
    short: str = ""
    """The same where room is short; empty: the name of the kind."""
    fluctuates: bool = False
    """True if it follows readings that come and go, so that it is told only while it holds. Others are told at once:
    they last by nature, or their source tells them only while they hold."""


KINDS: Mapping[str, ConditionKind] = {
    LOST: ConditionKind(ERROR),
    SICK: ConditionKind(ERROR),
    THROTTLED: ConditionKind(ERROR),
    DISK_FULL: ConditionKind(ERROR),
    NOT_READ: ConditionKind(WARNING, fluctuates=True),
    DISK_LOW: ConditionKind(WARNING, fluctuates=True),
    TRESPASS: ConditionKind(WARNING, "used by a job that does not hold it", "used unheld", fluctuates=True),
    INTRUDER: ConditionKind(WARNING, "shared with a foreign process", "shared", fluctuates=True),
    IDLE: ConditionKind(WARNING, fluctuates=True),
    CAPPED: ConditionKind(WARNING),
    FAILED: ConditionKind(WARNING),
    MEMORY: ConditionKind(WARNING, fluctuates=True),
    HOT: ConditionKind(WARNING, fluctuates=True),
    SWAP: ConditionKind(WARNING, fluctuates=True),
    LOAD: ConditionKind(WARNING, fluctuates=True),
    FOREIGN: ConditionKind(INFORMATION, "in foreign use", fluctuates=True),
    DRAINED: ConditionKind(INFORMATION),
}
"""Worst first. Notices of scheduler, runtimes and probe bring a severity of their own; nobody scheduling is an error.

Memory, heat, swap and load are marked at their figures only: they are no alarms of the status line.
"""
_PLACES = {kind: place for place, kind in enumerate(KINDS)}


def severity_of(kind: str) -> str:
    """Return the severity of a kind of condition."""
    return KINDS[kind].severity


def slowed_kind(*, is_fault: bool) -> str:
    """Return the kind of a GPU that the driver slows down: for a fault, or for a limit that somebody set."""
    return THROTTLED if is_fault else CAPPED


def place_of(severity: str, kind: str) -> int:
    """Return the place among conditions of one severity: others come first among errors, else last."""
    return _PLACES.get(kind, -1 if severity == ERROR else len(_PLACES))
