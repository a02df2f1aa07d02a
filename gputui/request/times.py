"""Times as people write them: `in 2h`, `18:00`, `tomorrow 9am`, `Mon 9-17`, `1 Dec 14:00`, `2026-12-01T09:00+01:00`.

An own grammar, because libraries for this guess: they take `1/2` for a date of one of two countries and fill in missing
parts. Here an ambiguous text is refused, and both meanings are named. A submission without times does not load this
module.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from gputui.domain.errors import InputError
from gputui.domain.text import parse_duration, quoted

TONIGHT = time(20)
"""Meaning of `tonight` without a time of day."""
FARTHEST = timedelta(days=3650)
HINT = "write in 2h, 18:00, tomorrow 09:00, Mon 14:00 or 2026-03-02T18:00"
PAST_HINT = "write -7d, yesterday 18:00, last monday, last month, 1 Nov or 2026-11-01T08:00"
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_CLOCK = r"(\d{1,2})(?::(\d{2}))?(am|pm)?"
_TIME, _SPAN = f"(?a){_CLOCK}", f"(?a){_CLOCK}-{_CLOCK}"
_FILLERS = frozenset({"at", "on", "from", "this"})
_COUNTRIES = r"(?a)\d{1,4}[/.]\d{1,2}(?:[/.]\d{1,4})?\.?"
_ZONE = r"(?a)(?:[A-Za-z_]+/[A-Za-z_/+-]+\d*|UTC|GMT)"


class _Text(NamedTuple):
    """A time as written, with the name of its option and the current time."""

    text: str
    where: str
    now: datetime
    zone: tzinfo | None
    """Time zone; None: this machine's."""
    hint: str = HINT
    """Hint for errors without a specific one."""

    def refused(self, what: str, hint: str | None = None) -> InputError:
        return InputError(f"{quoted(self.text)} {what}", where=self.where, hint=hint or self.hint)

    @property
    def today(self) -> date:
        return self.now.astimezone(self.zone).date()

    def at(self, day: date, clock: time | None) -> datetime:
        """Return that local time in UTC; refuse one that clock changes skip or repeat that day.

        None: the first moment of the day, also where clocks are set at midnight.
        """
        if clock is None:
            return self._utc(datetime.combine(day, time()), fold=0)
        naive = datetime.combine(day, clock)
        early, late = self._utc(naive, fold=0), self._utc(naive, fold=1)
        if early == late:
            return early
        if early.astimezone(self.zone).replace(tzinfo=None, fold=0) != naive:
            later = max(early, late).astimezone(self.zone)
            raise self.refused("does not exist: clocks are put forward then", f"write {_iso(later)}")
        both = " or ".join(_iso(each.astimezone(self.zone)) for each in sorted((early, late)))
        raise self.refused("occurs twice: clocks are put back then", f"write {both}")

    def _utc(self, naive: datetime, fold: int) -> datetime:
        if self.zone is None and "TZ" in os.environ:
            from gputui.engine.actions.admission import check_local_zone

            check_local_zone(self.where)
        try:
            # `timestamp` puts a skipped time after the change of clocks; `astimezone` without a zone, before it
            return datetime.fromtimestamp(naive.replace(tzinfo=self.zone, fold=fold).timestamp(), UTC)
        except (OverflowError, OSError, ValueError) as error:
            raise self.refused("is more than ten years away") from error


def moment(text: str, where: str, now: datetime, after: datetime | None = None) -> datetime:
    """Return the time in UTC; raises InputError.

    A time of day or a weekday is the next one, after `after` if given. A day alone is its beginning.
    """
    found = _absolute(text, where, now)
    if found is None:
        given, words = _words(text, where, now)
        clocks, day = _split(given, words)
        found = _next(given, day, _only(given, clocks, f"one time: {HINT}"), after or now)
    if not now - FARTHEST <= found <= now + FARTHEST:
        raise InputError(f"{quoted(text)} is more than ten years away", where=where)
    return found


def past(text: str, where: str, now: datetime) -> datetime:
    """Return the time in UTC like `moment`, but the last possible one before now; raises InputError.

    It may also be written as `-7d`, `2 hours ago`, `yesterday 18:00`, `last monday`, `last month` or `2026-11`.
    """
    lower = text.strip().lower()
    if ago := re.fullmatch(r"-\s*(.+)|(.+) ago", lower):
        return now - parse_duration(ago[1] or ago[2], where=where)
    if lower.startswith(("+", "in ")):
        raise InputError(f"{quoted(text)} is not a time of the past", where=where, hint=PAST_HINT)
    is_month = re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", lower, re.ASCII)
    found = _absolute(f"{lower}-01" if is_month else text, where, now)
    if found is None:
        given, words = _words(text, where, now)
        given = given._replace(hint=PAST_HINT)
        clocks, day = _split(given, words)
        clock = _only(given, clocks)
        if not day and clock is None:
            raise given.refused("is not a time")
        for candidate in _days_before(given, day):
            if (found := given.at(candidate, clock)) <= now:
                break
        else:
            raise given.refused("is in the future")
    if not now - FARTHEST <= found <= now + FARTHEST:
        raise InputError(f"{quoted(text)} is more than ten years away", where=where)
    return found


def span(text: str, where: str, now: datetime) -> tuple[datetime, datetime] | None:
    """Return start and end of `Mon 9-17` or `tomorrow 22:00-06:00`; None for one time; raises InputError.

    An end that is not later than the start is on the next day.
    """
    if _absolute(text, where, now, is_lenient=True) is not None:
        return None
    given, words = _words(text, where, now)
    clocks, day = _split(given, words)
    spans = [clock for clock in clocks if isinstance(clock, tuple)]
    if not spans:
        return None
    if len(clocks) > 1:
        raise given.refused("has several times")
    start, end = spans[0]
    begins = _next(given, day, start, now)
    first = begins.astimezone(given.zone).date()
    return begins, given.at(first if end > start else first + timedelta(days=1), end)


def _absolute(text: str, where: str, now: datetime, *, is_lenient: bool = False) -> datetime | None:
    """Return the time of `now`, `+2h`, `in 2 hours` or an ISO time; None for other texts."""
    text = text.strip()
    lower = text.lower()
    if lower == "now":
        return now
    if text.startswith("+") or lower.startswith("in "):
        length = text[1:] if text.startswith("+") else lower[3:]
        # without the fraction of a second, which forms would otherwise show
        return now if is_lenient else (now + parse_duration(length, where=where)).replace(microsecond=0)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    given = _Text(text, where, now, None)
    if found.tzinfo is None:
        try:
            return given.at(date.fromisoformat(text), None)  # a day alone
        except ValueError:
            return given.at(found.date(), found.time())
    try:
        return found.astimezone(UTC)
    except (OverflowError, OSError) as error:
        raise InputError(f"{quoted(text)} is more than ten years away", where=where) from error


def _words(text: str, where: str, now: datetime) -> tuple[_Text, list[str]]:
    """Return the text with its zone, and the words without filler words."""
    words = text.replace(",", " ").split() if len(text) <= 60 else []
    given = _Text(text, where, now, None)
    if words and re.fullmatch(_ZONE, words[-1]):
        from zoneinfo import ZoneInfo  # few times contain a zone

        try:
            given = given._replace(zone=ZoneInfo(words.pop()))
        except (KeyError, ValueError, OSError) as error:
            what = "names a time zone that this host does not know"
            raise given.refused(what, "write Europe/Berlin or UTC") from error
    joined = " ".join(words).lower().replace("\N{EN DASH}", "-")
    joined = re.sub(r"(?<=\d) (?=[ap]m\b)", "", joined)
    joined = re.sub(r"(?<=[\dm])(?: ?- ?| to )(?=\d)", "-", joined)
    return given, [word for word in joined.split() if word not in _FILLERS]


def _split(given: _Text, words: Sequence[str]) -> tuple[list[time | tuple[time, time]], list[str]]:
    clocks: list[time | tuple[time, time]] = []
    day: list[str] = []
    for place, word in enumerate(words):
        if word in {"noon", "midnight"}:
            if word == "midnight" and len(words) > 1:
                raise given.refused("may be the beginning or the end of that day", "write 00:00 of the day that begins")
            clocks.append(time(12 if word == "noon" else 0))
        elif match := re.fullmatch(_SPAN, word):
            clocks.append(_span_of(given, match))
        elif (match := re.fullmatch(_TIME, word)) and (match[2] or match[3]):
            clocks.append(_clock(given, *match.groups()))
        else:
            beside = (*words[max(0, place - 1) : place], *words[place + 1 : place + 2])
            is_of_date = len(word) == 4 or any(_index(_MONTHS, each) is not None for each in beside)
            if word.isascii() and word.isdigit() and not is_of_date:  # an hour without minutes
                hour = int(word[:9])
                if hour > 23:
                    raise given.refused("is not a time")
                hint = f"write {hour:02}:00" + (f" or {hour}pm" if 1 <= hour <= 12 else "")
                raise given.refused(f"leaves open which time {hour} is", hint)
            day.append(word)
    return clocks, day


def _clock(given: _Text, hour: str, minute: str | None, half: str | None) -> time:
    hours, minutes = int(hour), int(minute or 0)
    if half and not 1 <= hours <= 12:
        raise given.refused("is not a time: am and pm go with hours from 1 to 12")
    if half:
        hours = hours % 12 + (12 if half == "pm" else 0)
    if hours > 23 or minutes > 59:
        raise given.refused("is not a time")
    return time(hours, minutes)


def _span_of(given: _Text, match: re.Match[str]) -> tuple[time, time]:
    first, last = match.groups()[:3], match.groups()[3:]
    end = time(0) if last == ("24", None, None) else _clock(given, *last)
    start = _clock(given, *first)
    if last[2] and not first[2] and int(first[0]) <= 12:  # 1-5pm begins at 13:00, and 9-5pm at 09:00
        evening = _clock(given, first[0], first[1], last[2])
        start = evening if evening < end else start
    is_bare = not any((*first[1:], *last[1:]))
    if is_bare and end <= start and 0 < end.hour <= 12 and start.hour <= 12:
        hours = f"{start.hour}-{end.hour + 12}"
        raise given.refused(
            f"may end at {end.hour:02}:00 or {end.hour + 12}:00", f"write {hours}, or both times as 09:00-17:00"
        )
    if start == end:
        raise given.refused("ends as it begins")
    return start, end


def _only(given: _Text, clocks: Sequence[time | tuple[time, time]], hint: str | None = None) -> time | None:
    single = [clock for clock in clocks if isinstance(clock, time)]
    if len(single) < len(clocks):
        raise given.refused("is a span of time", hint)
    if len(single) > 1:
        raise given.refused("has several times")
    return single[0] if single else None


def _next(given: _Text, day: Sequence[str], clock: time | None, after: datetime) -> datetime:
    if not day and clock is None:
        raise given.refused("is not a time")
    if day == ["tonight"]:
        clock = TONIGHT if clock is None else clock
        if clock < time(6):
            hint = f"write tomorrow {clock:%H:%M}"
            raise given.refused("may be early today or early tomorrow", hint)
        day = ["today"]
    for candidate in _candidates(given, list(day), after):
        if (found := given.at(candidate, clock)) > after:
            return found
    raise given.refused("has passed")


def _candidates(given: _Text, day: list[str], after: datetime) -> Iterator[date]:
    """Yield the possible days, earliest first; refuse words that are not a day."""
    begin = after.astimezone(given.zone).date()
    if not day:
        yield from (begin + timedelta(days=ahead) for ahead in range(3))
    elif day in (["today"], ["tomorrow"]):
        yield given.today + timedelta(days=int(day == ["tomorrow"]))
    elif (weekday := _index(_DAYS, day[-1])) is not None and len(day) <= 2:
        ahead = (weekday - begin.weekday()) % 7
        if day[0] == "next":
            # that day of the next week; refuse one that may also mean this week
            found = begin + timedelta(days=7 - begin.weekday() + weekday)
            if weekday > begin.weekday():
                soon = found - timedelta(days=7)
                hint = f"write {soon} or {found}"
                raise given.refused(f"may be {soon:%a %d %b} or {found:%a %d %b}", hint)
            yield found
        elif len(day) == 1:
            yield from (begin + timedelta(days=ahead + week) for week in (0, 7))
        else:
            raise given.refused("is not a time")
    else:
        yield from _dates(given, day, begin)


def _days_before(given: _Text, day: list[str]) -> Iterator[date]:
    """Yield the possible days, latest first; refuse words that are not a day."""
    today = given.today
    is_last = day[:1] == ["last"]
    unit = " ".join(day[is_last:])
    weekday = _index(_DAYS, unit)
    if not day:
        yield from (today - timedelta(days=back) for back in range(3))
    elif unit in {"today", "yesterday"} and not is_last:
        yield today - timedelta(days=int(unit == "yesterday"))
    elif unit == "week":
        yield today - timedelta(days=today.weekday() + 7 * is_last)
    elif unit in {"month", "year"}:
        begin = today.replace(day=1) if unit == "month" else today.replace(month=1, day=1)
        before = (begin - timedelta(days=1)).replace(day=1)
        yield begin if not is_last else before if unit == "month" else before.replace(month=1)
    elif weekday is not None:
        back = (today.weekday() - weekday) % 7
        yield from (today - timedelta(days=back + week) for week in (0, 7) if back + week or not is_last)
    elif is_last or unit in {"tomorrow", "tonight"}:
        raise given.refused("is not a time of the past")
    else:
        yield from reversed(list(_dates(given, day, date(today.year - 1, 1, 1))))


def _dates(given: _Text, day: list[str], begin: date) -> Iterator[date]:
    """Yield the days of `2026-12-01`, `1 Dec`, `Dec 1 2026`."""
    if len(day) == 1 and re.fullmatch(_COUNTRIES, day[0]):
        raise given.refused("could be day-month or month-day", f"write {begin.isoformat()} or 1 Dec")
    months = [index for word in day if (index := _index(_MONTHS, word)) is not None]
    numbers = [int(number[1]) for word in day if (number := re.fullmatch(r"(\d{1,4})(?:st|nd|rd|th)?", word, re.ASCII))]
    try:
        if len(day) == 1:
            yield date.fromisoformat(day[0])
        elif len(months) == 1 and len(numbers) == len(day) - 1 and len(numbers) in {1, 2}:
            years = [numbers[1]] if len(numbers) == 2 else [begin.year, begin.year + 1]
            for year in years:
                yield date(year, months[0] + 1, numbers[0])
        else:
            raise given.refused("is not a time")
    except ValueError as error:
        raise given.refused("is not a time") from error


def _index(names: Sequence[str], word: str) -> int | None:
    """Return the index of the name that begins with the word, which has at least three letters."""
    found = [place for place, name in enumerate(names) if len(word) >= 3 and name.startswith(word)]
    return found[0] if len(found) == 1 else None


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="minutes")
