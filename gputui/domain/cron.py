"""When a crontab expression runs in a time zone.

Where clocks are changed it does what cron(8) of Vixie's cron, as Debian ships it, documents. Changes of three hours and
more are corrections, and the new time counts. With smaller ones an expression that runs at particular times (neither
minute nor hour begins with `*`) runs right after a change if it fell into the hour that was skipped, and is not run
again in an hour that is repeated; one with such a wildcard follows the clock on the wall, so that it runs twice in the
repeated hour and not at all in the skipped one. Several runs that would all be made right after a change are one run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from gputui.domain.crontab import Crontab, parse
from gputui.domain.errors import InputError

CORRECTION = timedelta(hours=3)
"""A change of the clock by so much is a correction of it."""
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_STRETCH = timedelta(days=90)
"""How far is looked for the next change of the clock at once."""
_HORIZON = timedelta(days=366 * 45)
"""No expression that ever runs waits longer: 29 February falls on each day of the week within 40 years."""
_ZERO = timedelta(0)


@dataclass(frozen=True)
class Stretch:
    """A time through which the zone's offset stays the same."""

    begin: datetime
    end: datetime
    before: timedelta
    """The offset until `begin`."""
    offset: timedelta

    @property
    def change(self) -> timedelta:
        """By how much clocks are put forward at its begin; nothing where that is a correction."""
        change = self.offset - self.before
        return change if abs(change) < CORRECTION else _ZERO


def next_after(expression: str, zone: tzinfo, at: datetime) -> datetime:
    """The first time after `at` at which it runs, in UTC; raises InputError for what is no expression."""
    crontab, at = parse(expression), at.astimezone(UTC)
    for stretch in _stretches(zone, at - CORRECTION, at + _HORIZON):
        found = _first_run(crontab, stretch, at)
        if found is not None:
            return found
    raise InputError("it never comes", where="cron")


def latest_until(expression: str, zone: tzinfo, first: datetime, until: datetime) -> datetime:
    """The last of the runs from the one at `first` on that is not after `until`."""
    latest, later = first, until
    while latest + _MINUTE <= later:  # runs are a minute apart at least: halve what is left between
        middle = latest + (later - latest) / 2
        run = next_after(expression, zone, middle)
        if run <= later:
            latest = run
        else:
            later = middle
    return latest


def _first_run(crontab: Crontab, stretch: Stretch, at: datetime) -> datetime | None:
    """The first run in the stretch that is after `at`."""
    fixed_change = stretch.change if crontab.is_fixed else _ZERO
    begin, offset = _wall(stretch.begin, stretch.offset), stretch.offset
    if fixed_change > _ZERO and stretch.begin > at and crontab.first_match(begin - fixed_change, begin):
        return stretch.begin
    repeated = max(_ZERO, -fixed_change)
    start = max(begin + repeated, _wall(at, offset).replace(second=0, microsecond=0) + _MINUTE)
    found = crontab.first_match(start, _wall(stretch.end, offset))
    return None if found is None else (found - offset).replace(tzinfo=UTC)


def _wall(at: datetime, offset: timedelta) -> datetime:
    """What the clock on the wall shows."""
    return at.replace(tzinfo=None) + offset


def _stretches(zone: tzinfo, begin: datetime, until: datetime) -> Iterator[Stretch]:
    before = offset = _offset(zone, begin)
    while begin < until:
        end = _next_change(zone, begin, begin + _STRETCH)
        yield Stretch(begin, end, before, offset)
        begin, before, offset = end, offset, _offset(zone, end)


def _next_change(zone: tzinfo, begin: datetime, until: datetime) -> datetime:
    """When the offset changes next; `until` if it does not before. No zone changes twice within a day."""
    offset = _offset(zone, begin)
    low = begin
    while low < until:
        high = min(low + _DAY, until)
        if _offset(zone, high) != offset:
            return _bisected(zone, low, high, offset)
        low = high
    return until


def _bisected(zone: tzinfo, low: datetime, high: datetime, offset: timedelta) -> datetime:
    """The first moment, to the second, at which the offset is no longer `offset`."""
    first = low.replace(microsecond=0)
    left, right = 0, int((high - first).total_seconds()) + 1
    while right - left > 1:
        middle = (left + right) // 2
        if _offset(zone, first + timedelta(seconds=middle)) == offset:
            left = middle
        else:
            right = middle
    return first + timedelta(seconds=right)


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or _ZERO
