"""Remembers since when conditions last, and keeps those that come and go within seconds steady on the screen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.present.condition import Condition
from gputui.tui.present.conditions import conditions, ranked

STEADY = timedelta(seconds=10)
"""Time for which a slowed GPU must be slowed until it is shown, and no longer slowed until it is not."""
_UNSTEADY = frozenset({"throttled", "capped"})
"""Kinds of conditions that the driver reports for moments."""


@dataclass(frozen=True)
class _Entry:
    """A condition as it was seen last."""

    condition: Condition
    first: datetime | None
    """Time at which it was seen first; None: it was there when the console was opened."""
    last: datetime


class ConditionTracker:
    """Tracker of the conditions of one console."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._has_begun = False
        self.shown: tuple[Condition, ...] = ()
        """Conditions that last now, worst first, with the time since when as far as it is known."""

    def look(self, snapshot: Snapshot, now: datetime) -> tuple[Condition, ...]:
        """Take the conditions of a snapshot, and return what is shown. Before the first one nothing is known."""
        return self.shown if snapshot is EMPTY else self.update(conditions(snapshot, now), now)

    def update(self, found: Iterable[Condition], now: datetime) -> tuple[Condition, ...]:
        """Take what is found now, and return what is shown."""
        entries: dict[tuple[str, str], _Entry] = {}
        for condition in found:
            known = self._entries.get(condition.key)
            first = known.first if known else now if self._has_begun else None
            entries[condition.key] = _Entry(condition, first, now)
        kept = {
            key: entry
            for key, entry in self._entries.items()
            if key not in entries and entry.condition.kind in _UNSTEADY and abs(now - entry.last) < STEADY
        }
        self._entries, self._has_begun = {**entries, **kept}, True
        self.shown = ranked(_dated(entry) for entry in self._entries.values() if _is_shown(entry, now))
        return self.shown


def _is_shown(entry: _Entry, now: datetime) -> bool:
    is_new = entry.first is not None and abs(now - entry.first) < STEADY
    return not (is_new and entry.condition.kind in _UNSTEADY)


def _dated(entry: _Entry) -> Condition:
    return entry.condition if entry.condition.since else replace(entry.condition, since=entry.first, is_seen=True)
