"""What the five fields of a crontab line mean.

By crontab(5) of Vixie's cron as Debian ships it: lists, ranges, steps, names of months and days, 0 and 7 both Sunday,
`@daily` and its like. A day is one on which day of month OR day of week says so when both are restricted, else both
must; a field is restricted unless it begins with `*`, so that `*/2` is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache

from gputui.domain.errors import InputError
from gputui.domain.units import quoted

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
_PART = re.compile(r"(\*|(\w{1,3})(?:-(\w{1,3}))?)(?:/(\d{1,4}))?", re.ASCII)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Field:
    """One of the five: what it is called, and what may be in it."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    """Three letters each, the first for `low`."""


_FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of month", 1, 31),
    Field("month", 1, 12, _MONTHS),
    Field("day of week", 0, 7, _DAYS),
)


@dataclass(frozen=True)
class Crontab:
    """An expression understood. `matches` and `first_match` take and give wall-clock times, without a zone."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """Sunday is 0."""
    is_either_day: bool
    """Both day fields are restricted: one that says so suffices."""
    is_fixed: bool
    """It runs at particular times: neither minute nor hour begins with `*`. Matters when clocks are changed."""

    def matches_day(self, day: date) -> bool:
        """Whether it runs on that day at all."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.is_either_day else of_month and of_week

    def first_match(self, start: datetime, end: datetime) -> datetime | None:
        """The first minute from `start` on, and before `end`, at which it runs."""
        day, at = start.date(), start.time()
        while datetime.combine(day, time()) < end:
            if day.month not in self.months:
                day = (day.replace(day=28) + 4 * _DAY).replace(day=1)
            else:
                if self.matches_day(day) and (found := self._first_time(at)):
                    match = datetime.combine(day, found)
                    return match if match < end else None
                day += _DAY
            at = time()
        return None

    def _first_time(self, at: time) -> time | None:
        minute = at.minute + bool(at.second or at.microsecond)
        for hour in self.hours:
            least = 0 if hour > at.hour else minute
            found = next((one for one in self.minutes if one >= least), None) if hour >= at.hour else None
            if found is not None:
                return time(hour, found)
        return None


@lru_cache(maxsize=512)
def parse(expression: str) -> Crontab:
    """The meaning of an expression; raises InputError, also when there is no day on which it would ever run."""
    words = expression.split()
    if len(words) == 1 and words[0].startswith("@"):
        words = _of_word(words[0])
    if len(words) != len(_FIELDS):
        hint = "write five: minute, hour, day of month, month, day of week, in quotes, such as '30 2 * * 1-5'"
        raise InputError(f"{quoted(expression)} has {len(words)} fields", where="cron", hint=hint)
    minutes, hours, days, months, weekdays = (_values(*pair) for pair in zip(words, _FIELDS, strict=True))
    crontab = Crontab(
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        is_either_day=not words[2].startswith("*") and not words[4].startswith("*"),
        is_fixed=not words[0].startswith("*") and not words[1].startswith("*"),
    )
    _check_possible(crontab, expression)
    return crontab


def _of_word(word: str) -> list[str]:
    if word.lower() not in WORDS:
        known = ", ".join(WORDS)
        raise InputError(f"{quoted(word)} is not known", where="cron", hint=f"there are {known}")
    return WORDS[word.lower()].split()


def _check_possible(crontab: Crontab, expression: str) -> None:
    """Refuse 31 February. Where a day of the week suffices there is always one."""
    if not crontab.is_either_day and all(_LONGEST[month - 1] < min(crontab.days) for month in crontab.months):
        text = f"{quoted(expression)} never comes: no month it names has a day {min(crontab.days)}"
        raise InputError(text, where="cron", hint="mend the day of month, or the month")


def _values(text: str, field: Field) -> frozenset[int]:
    return frozenset(value for part in text.split(",") for value in _range(part, field))


def _range(part: str, field: Field) -> range:
    match = _PART.fullmatch(part)
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


def _value(text: str, field: Field, part: str) -> int:
    if text.lower() in field.names:
        return field.low + field.names.index(text.lower())
    if not text.isdigit() or not field.low <= int(text) <= field.high:
        names = f", or {field.names[0]} to {field.names[-1]}" if field.names else ""
        raise _wrong(part, field, f"{field.low} to {field.high}{names}")
    return int(text)


def _wrong(part: str, field: Field, hint: str) -> InputError:
    return InputError(f"{quoted(part)} is no {field.name}", where="cron", hint=hint)
