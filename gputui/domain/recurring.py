"""Recurring jobs: the template, the times at which a crontab expression runs in a time zone, and which run is due.

Clock changes are handled as documented in cron(8) of Vixie's cron in Debian. Changes of three hours and more are
corrections: the new time counts. For smaller changes, an expression that runs at particular times (neither minute nor
hour begins with `*`) runs right after the change if its time was skipped, and does not run again in a repeated hour. An
expression with such a wildcard follows the wall clock: it runs twice in the repeated hour and not at all in the skipped
one. Several runs that would be due right after a change are one run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta, tzinfo
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.access import Actor
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.state import JobState
from gputui.domain.text import quoted

WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_PART = r"(\*|(\w{1,3})(?:-(\w{1,3}))?)(?:/(\d{1,4}))?"
"""Compiled when it is first used: every console imports this module, and few read a crontab line."""


class CronField(Struct, frozen=True):
    """Field of a crontab line: its name and its allowed values."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    """Names of three letters each, the first for `low`."""


_FIELDS = (
    CronField("minute", 0, 59),
    CronField("hour", 0, 23),
    CronField("day of month", 1, 31),
    CronField("month", 1, 12, _MONTHS),
    CronField("day of week", 0, 7, _DAYS),
)


class Crontab(Struct, frozen=True):
    """Parsed expression. `matches` and `first_match` work with wall-clock times, without a zone."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Days of the week; Sunday is 0."""
    is_either_day: bool
    """True if both day fields are restricted; then a match of one suffices."""
    is_fixed: bool
    """True if neither minute nor hour begins with `*`, which matters when clocks change."""

    def first_match(self, start: datetime, end: datetime) -> datetime | None:
        """Return the first minute, from `start` on and before `end`, at which it runs."""
        day, at = start.date(), start.time()
        while datetime.combine(day, time()) < end:
            of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
            if day.month not in self.months:
                day = (day.replace(day=28) + 4 * _DAY).replace(day=1)
                at = time()
                continue
            if (of_month or of_week) if self.is_either_day else (of_month and of_week):
                minute = at.minute + bool(at.second or at.microsecond)
                for hour in self.hours:
                    least = 0 if hour > at.hour else minute
                    found = next((one for one in self.minutes if one >= least), None) if hour >= at.hour else None
                    if found is not None:
                        match = datetime.combine(day, time(hour, found))
                        return match if match < end else None
            day += _DAY
            at = time()
        return None


@lru_cache(maxsize=512)
def parse(expression: str) -> Crontab:
    """Parse an expression; raises InputError, also if it would never run."""
    words = expression.split()
    if len(words) == 1 and words[0].startswith("@"):
        if words[0].lower() not in WORDS:
            hint = f"there are {', '.join(WORDS)}"
            raise InputError(f"{quoted(words[0])} is not known", where="cron", hint=hint)
        words = WORDS[words[0].lower()].split()
    if len(words) != len(_FIELDS):
        hint = "write five: minute, hour, day of month, month, day of week, in quotes, such as '30 2 * * 1-5'"
        raise InputError(f"{quoted(expression)} has {len(words)} fields", where="cron", hint=hint)
    minutes, hours, days, months, weekdays = (
        frozenset(value for part in word.split(",") for value in _range(part, field))
        for word, field in zip(words, _FIELDS, strict=True)
    )
    crontab = Crontab(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        is_either_day=not words[2].startswith("*") and not words[4].startswith("*"),
        is_fixed=not words[0].startswith("*") and not words[1].startswith("*"),
    )
    # with a day of the week there is always a match
    if not crontab.is_either_day and all(_LONGEST[month - 1] < min(crontab.days) for month in crontab.months):
        text = f"{quoted(expression)} never matches: no month it names has a day {min(crontab.days)}"
        raise InputError(text, where="cron", hint="correct the day of month, or the month")
    return crontab


def _range(part: str, field: CronField) -> range:
    match = re.fullmatch(_PART, part, re.ASCII)
    if not match:
        raise _wrong(part, field, f"write {field.low}-{field.high}, *, */2, or a list with commas")
    whole, first, last, step = match.groups()
    if step is not None and (not int(step) or (whole != "*" and last is None)):
        raise _wrong(part, field, f"a step is above 0 and follows * or a range: {field.low}-{field.high}/2")
    if whole == "*":
        return range(field.low, field.high + 1, int(step or 1))
    low = _value(first, field, part)
    high = low if last is None else _value(last, field, part)
    if field.names == _DAYS and high == 0 < low:
        high = 7  # sat-sun: Sunday is also the last day of the week
    if high < low:
        raise _wrong(part, field, "write the smaller first, or two ranges with a comma")
    return range(low, high + 1, int(step or 1))


def _value(text: str, field: CronField, part: str) -> int:
    if text.lower() in field.names:
        return field.low + field.names.index(text.lower())
    if not text.isdigit() or not field.low <= int(text) <= field.high:
        names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
        raise _wrong(part, field, f"{field.low} to {field.high}{names}")
    return int(text)


def _wrong(part: str, field: CronField, hint: str) -> InputError:
    return InputError(f"{quoted(part)} is not a valid {field.name}", where="cron", hint=hint)


CORRECTION = timedelta(hours=3)
"""Size from which a change of the clock counts as a correction."""
_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
_STRETCH = timedelta(days=90)
"""Span of one search for the next clock change."""
_HORIZON = timedelta(days=366 * 45)
"""Longest gap of an expression: 29 February falls on each day of the week within 40 years."""
_ZERO = timedelta(0)


def next_after(expression: str, zone: tzinfo, at: datetime) -> datetime:
    """Return the first run after `at`, in UTC; raises InputError for an invalid expression."""
    crontab, at = parse(expression), at.astimezone(UTC)
    begin = at - CORRECTION
    before = offset = _offset(zone, begin)
    while begin < at + _HORIZON:  # in stretches of time in which the zone's offset does not change
        end = _next_change(zone, begin, begin + _STRETCH)
        change = offset - before  # by which clocks go forward at its start; zero for a correction
        if not crontab.is_fixed or abs(change) >= CORRECTION:
            change = _ZERO
        wall = _wall(begin, offset)
        if change > _ZERO and begin > at and crontab.first_match(wall - change, wall):
            return begin
        repeated = max(_ZERO, -change)
        start = max(wall + repeated, _wall(at, offset).replace(second=0, microsecond=0) + _MINUTE)
        if (found := crontab.first_match(start, _wall(end, offset))) is not None:
            return (found - offset).replace(tzinfo=UTC)
        begin, before, offset = end, offset, _offset(zone, end)
    raise InputError("it never matches", where="cron")


def latest_until(expression: str, zone: tzinfo, first: datetime, until: datetime) -> datetime:
    """Return the last run that is not after `until`, starting from the run at `first`."""
    latest, later = first, until
    while latest + _MINUTE <= later:  # runs are at least a minute apart: halve the remaining interval
        middle = latest + (later - latest) / 2
        run = next_after(expression, zone, middle)
        if run <= later:
            latest = run
        else:
            later = middle
    return latest


def _wall(at: datetime, offset: timedelta) -> datetime:
    return at.replace(tzinfo=None) + offset


def _next_change(zone: tzinfo, begin: datetime, until: datetime) -> datetime:
    """Return the next change of the UTC offset before `until`, else `until`. No zone changes twice within a day."""
    offset = _offset(zone, begin)
    low = begin
    while low < until:
        high = min(low + _DAY, until)
        if _offset(zone, high) != offset:
            first = low.replace(microsecond=0)
            left, right = 0, int((high - first).total_seconds()) + 1
            while right - left > 1:
                middle = (left + right) // 2
                if _offset(zone, first + timedelta(seconds=middle)) == offset:
                    left = middle
                else:
                    right = middle
            return first + timedelta(seconds=right)
        low = high
    return until


def _offset(zone: tzinfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or _ZERO


MOST_WAITING = 100
"""Waiting jobs of one recurring job from which on no run is made."""
LATE = timedelta(minutes=1)
"""Delay after which a run counts as missed."""


class Missed(StrEnum):
    """Handling of runs that were due while no scheduler ran."""

    ONCE = "once"
    """Submit one job for all missed runs, as soon as a scheduler runs again."""
    SKIP = "skip"


class Overlap(StrEnum):
    """Handling of a run that is due while a job of an earlier run has not ended."""

    SKIP = "skip"
    ALLOW = "allow"


class Skipped(Struct, frozen=True):
    """A run that was not made."""

    at: datetime
    """Time at which the run was due."""
    why: str


class RecurringJob(Struct, frozen=True):
    """Submission that is repeated whenever its cron expression is due, until it is removed."""

    id: JobId
    """Id from the same sequence as job ids, so that ids are unique across both."""
    expression: str
    """The five fields of a crontab line, or a nickname such as `@daily`."""
    zone: str
    """Name of the time zone of these fields."""
    submission: Submission
    added_at: datetime
    next_at: datetime
    """Time of the next run."""
    counted_at: datetime
    """Time at which that time was computed."""
    name: str = ""
    added_by: str = ""
    uid: int = 0
    """Uid of the user who added it and who submits its jobs."""
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.SKIP
    paused: bool = False
    last_at: datetime | None = None
    """Due time of the last run that was made."""
    last_job_id: JobId | None = None
    """The job of that run, or the first of its array."""
    skipped: Skipped | None = None
    """The last run that was not made."""

    def is_due(self, now: datetime) -> bool:
        """Return whether a run is due, or the clock was corrected backwards.

        After a smaller step backwards no run is repeated: the next one stays as it is.
        """
        return not self.paused and (self.next_at <= now or now < self.counted_at - CORRECTION)

    def run_at(self, zone: tzinfo, now: datetime) -> datetime | None:
        """Return the run that is due; of several the latest, which represents all; None when none is due."""
        return latest_until(self.expression, zone, self.next_at, now) if self.next_at <= now else None

    def why_not(self, run: datetime, live: Iterable[Job], now: datetime) -> str:
        """Return why that run is not made; empty when it is. `live` are its jobs that have not ended."""
        if self.missed is Missed.SKIP and now - run > LATE:
            return "it was missed: no scheduler could make it at its time"
        earlier = tuple(live)
        if self.overlap is Overlap.SKIP and earlier:
            return f"job {earlier[0].id} of an earlier run was {earlier[0].state}"
        if (waiting := sum(job.state is JobState.PENDING for job in earlier)) >= MOST_WAITING:
            return f"{waiting} jobs of earlier runs were waiting"
        return ""

    def awaiting(self, zone: tzinfo, now: datetime) -> RecurringJob:
        """Return it waiting for the first run after now."""
        return replace(self, next_at=next_after(self.expression, zone, now), counted_at=now)


class Recurrence(Struct, frozen=True):
    """Request for a recurring submission: the expression, and how it repeats."""

    expression: str
    zone: str
    name: str = ""
    missed: Missed = Missed.ONCE
    overlap: Overlap = Overlap.SKIP

    def begun(self, submission: Submission, zone: tzinfo, by: Actor, now: datetime) -> RecurringJob:
        """Return the recurring job, still without an id; raises InputError for an invalid expression."""
        return RecurringJob(
            id=0,
            expression=" ".join(self.expression.split()),
            zone=self.zone,
            submission=submission,
            added_at=now,
            next_at=next_after(self.expression, zone, now),
            counted_at=now,
            name=self.name,
            added_by=by.user,
            uid=by.uid,
            missed=self.missed,
            overlap=self.overlap,
        )


def live_jobs(jobs: Iterable[Job], recurring: JobId) -> list[Job]:
    return [job for job in jobs if job.recurring == recurring and not job.state.is_terminal]
