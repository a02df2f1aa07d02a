"""Runs of crontab expressions: tables, and a slow cron that is simulated minute by minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.domain.recurring import latest_until, next_after, parse
from tests.cases import cases
from tests.lane import examples

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")
MINUTE = timedelta(minutes=1)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def runs(expression: str, zone: str, start: str, count: int) -> list[str]:
    """Return `count` runs after a time in UTC, in UTC."""
    at, found = utc(start), []
    for _ in range(count):
        at = next_after(expression, ZoneInfo(zone), at)
        found.append(f"{at:%m-%d %H:%M}")
    return found


# what the expression means


@cases(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2026-03-02T12:00:00", "2026-03-02 12:01"),
        ("* * * * *", "2026-03-02T12:00:59.999999", "2026-03-02 12:01"),
        ("0 * * * *", "2026-03-02T11:59:59", "2026-03-02 12:00"),
        ("0 * * * *", "2026-03-02T12:00:00", "2026-03-02 13:00"),
        ("*/15 * * * *", "2026-03-02T12:46:00", "2026-03-02 13:00"),
        ("10-40/15,58 9 * * *", "2026-03-02T09:40:00", "2026-03-02 09:58"),
        ("30 2 * * 1-5", "2026-03-06T02:30:00", "2026-03-09 02:30"),
        ("0 0 * * 0", "2026-03-02T12:00:00", "2026-03-08 00:00"),
        ("0 0 * * 7", "2026-03-02T12:00:00", "2026-03-08 00:00"),
        ("0 0 * * Sun", "2026-03-02T12:00:00", "2026-03-08 00:00"),
        ("0 0 * * 5-7", "2026-03-07T12:00:00", "2026-03-08 00:00"),
        ("0 0 * * fri-sun", "2026-03-07T12:00:00", "2026-03-08 00:00"),
        ("0 0 1 jan,JUL *", "2026-03-02T12:00:00", "2026-07-01 00:00"),
        ("0 0 13 * 5", "2026-03-02T12:00:00", "2026-03-06 00:00"),  # either day
        ("0 0 13 * 5", "2026-04-11T12:00:00", "2026-04-13 00:00"),
        ("0 0 */13 * 5", "2026-03-02T12:00:00", "2026-03-27 00:00"),  # begins with a star: both days
        ("0 0 13 * */5", "2026-03-02T12:00:00", "2026-03-13 00:00"),
        ("0 0 31 * *", "2026-03-31T12:00:00", "2026-05-31 00:00"),
        ("0 0 29 2 *", "2026-03-02T12:00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-03-02T12:00:00", "2104-02-29 00:00"),
        ("0 0 29 2 */7", "2088-03-02T12:00:00", "2128-02-29 00:00"),  # Feb 29, on a Sunday
        ("59 23 31 12 *", "2026-12-31T23:58:59", "2026-12-31 23:59"),
        ("@hourly", "2026-03-02T12:00:00", "2026-03-02 13:00"),
        ("@daily", "2026-03-02T12:00:00", "2026-03-03 00:00"),
        ("@midnight", "2026-03-02T12:00:00", "2026-03-03 00:00"),
        ("@weekly", "2026-03-02T12:00:00", "2026-03-08 00:00"),
        ("@monthly", "2026-03-02T12:00:00", "2026-04-01 00:00"),
        ("@Yearly", "2026-03-02T12:00:00", "2027-01-01 00:00"),
        ("@annually", "2026-03-02T12:00:00", "2027-01-01 00:00"),
    ],
)
def test_expressions_are_read(expression: str, after: str, expected: str) -> None:
    assert f"{next_after(expression, UTC, utc(after)):%Y-%m-%d %H:%M}" == expected


@cases(
    ("expression", "says"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("* * * * * *", "has 6 fields"),
        ("@reboot", "'@reboot' is not known"),
        ("60 * * * *", "'60' is not a valid minute"),
        ("* 24 * * *", "'24' is not a valid hour"),
        ("* * 0 * *", "'0' is not a valid day of month"),
        ("* * * 13 *", "'13' is not a valid month"),
        ("* * * * 8", "'8' is not a valid day of week"),
        ("* * * mon *", "'mon' is not a valid month"),
        ("* * * * monday", "'monday' is not a valid day of week"),
        ("5/15 * * * *", "a step is above 0 and follows"),
        ("*/0 * * * *", "a step is above 0"),
        ("40-10 * * * *", "write the smaller first"),
        ("-5 * * * *", "'-5' is not a valid minute"),
        ("1,,2 * * * *", "'' is not a valid minute"),
        ("٣ * * * *", "is not a valid minute"),
        ("\x1b[2J * * * *", "is not a valid minute"),
        ("0 0 31 2 *", "never matches: no month it names has a day 31"),
        ("0 0 30-31 feb *", "no month it names has a day 30"),
        ("0 0 31 2,4,6,9,11 *", "never matches"),
        ("0 0 30 2 */2", "never matches"),
    ],
)
def test_invalid_expressions_are_refused(expression: str, says: str) -> None:
    with pytest.raises(InputError, match=r"cron: ") as refusal:
        parse(expression)
    assert says in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_skipped_days_and_impossible_ones() -> None:
    # an impossible day does no harm beside a day of the week
    assert runs("0 0 31 2 1", "UTC", "2026-01-05T00:00", 2) == ["02-02 00:00", "02-09 00:00"]
    # no run is made for a skipped day
    found = next_after("0 12 30 12 *", ZoneInfo("Pacific/Apia"), utc("2011-06-01T00:00"))
    assert found.year == 2012
    # every run is later than the one before
    at, each = utc("2026-03-28T00:00"), list[datetime]()
    while at < utc("2026-03-30T00:00"):
        at = next_after("*/20 1-3 * * *", BERLIN, at)
        each.append(at)
    assert all(before < after for before, after in pairwise(each))
    assert next_after("*/20 1-3 * * *", BERLIN, each[0].astimezone(NEW_YORK)) == each[1]


# where clocks are changed: Berlin 2026-03-29 01:00 and 2026-10-25 01:00 UTC; New York 03-08 07:00 and 11-01 06:00 UTC


@cases(
    ("expression", "zone", "start", "expected"),
    [
        # skipped, 02:00 to 03:00: right after the change, once
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29 01:00", "03-30 00:00", "03-30 00:30"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29 01:00", "03-30 00:00", "03-30 01:00"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T00:00", ["03-07 07:30", "03-08 07:00", "03-09 06:30"]),
        ("30 2 8 3 *", "America/New_York", "2026-03-01T00:00", ["03-08 07:00", "03-08 07:30"]),
        ("15 3 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29 01:15"]),
        # skipped, with a wildcard: by the clock on the wall
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-30 00:00", "03-30 00:30"]),
        ("30 * * * *", "Europe/Berlin", "2026-03-29T00:00", ["03-29 00:30", "03-29 01:30", "03-29 02:30"]),
        ("@hourly", "America/New_York", "2026-03-08T05:30", ["03-08 06:00", "03-08 07:00", "03-08 08:00"]),
        # repeated, 02:00 to 03:00: the first time alone
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 00:30", "10-26 01:30"]),
        ("0,30 1,2,3 * * *", "Europe/Berlin", "2026-10-25T00:00", ["10-25 00:30", "10-25 02:00", "10-25 02:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00", ["11-01 05:30", "11-02 06:30"]),
        ("30 1 * * *", "America/New_York", "2026-11-01T06:10", ["11-02 06:30"]),
        # repeated, with a wildcard: in real time
        ("30 * * * *", "Europe/Berlin", "2026-10-25T00:00", ["10-25 00:30", "10-25 01:30", "10-25 02:30"]),
        ("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 00:00", "10-25 00:30", "10-25 01:00"]),
        ("@hourly", "America/New_York", "2026-11-01T04:30", ["11-01 05:00", "11-01 06:00", "11-01 07:00"]),
        # half an hour; midnight itself skipped; a whole day left out, which is a correction
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", ["10-03 15:30", "10-04 15:15"]),
        ("@daily", "Africa/Cairo", "2026-04-23T00:00", ["04-23 22:00", "04-24 21:00"]),
        ("0 12 30 12 *", "Pacific/Apia", "2011-01-01T00:00", ["12-29 22:00"]),
    ],
)
def test_runs_follow_changes_of_the_clocks(expression: str, zone: str, start: str, expected: list[str]) -> None:
    assert runs(expression, zone, start, len(expected)) == expected


# the simulated cron


def slow_match(expression: str) -> Callable[[datetime], bool]:
    """Return whether a time on the wall is meant, of an expression without names."""
    highest = (59, 23, 31, 12, 7)
    words = expression.split()

    def holds(place: int, value: int) -> bool:
        for part in words[place].split(","):
            span, _, step = part.partition("/")
            low, _, high = span.replace("*", f"{int(place in (2, 3))}-{highest[place]}").partition("-")
            if value in range(int(low), int(high or low) + 1, int(step or 1)):
                return True
        return False

    def is_match(wall: datetime) -> bool:
        of_month = holds(2, wall.day)
        of_week = holds(4, wall.isoweekday() % 7) or (wall.isoweekday() == 7 and holds(4, 7))
        has_star = words[2][0] == "*" or words[4][0] == "*"
        day = of_month and of_week if has_star else of_month or of_week
        return holds(0, wall.minute) and holds(1, wall.hour) and holds(3, wall.month) and day

    return is_match


def simulated(expression: str, zone: ZoneInfo, start: datetime, minutes: int) -> Iterator[datetime]:
    """Runs in the minutes from `start` on, as cron's main loop makes them: by its own clock, which lags behind or waits
    when that on the wall is changed by less than three hours."""
    is_match, is_fixed = slow_match(expression), "*" not in {word[0] for word in expression.split()[:2]}
    own = start.astimezone(zone).replace(tzinfo=None) - MINUTE
    for number in range(minutes):
        at = start + number * MINUTE
        wall = at.astimezone(zone).replace(tzinfo=None)
        ahead = (wall - own) // MINUTE
        is_due = not is_fixed and is_match(wall)
        if abs(ahead) >= 180:
            own = wall
            is_due = is_match(wall)
        while own < wall:
            own += MINUTE
            is_due = is_due or (is_fixed and is_match(own))
        if is_due:
            yield at


ZONES = st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "UTC"])
CHANGES = st.sampled_from(
    ["2026-03-08T07:00", "2026-03-29T01:00", "2026-04-04T15:00", "2026-04-23T22:00", "2026-10-03T15:30",
     "2026-10-25T01:00", "2026-10-29T21:00", "2026-11-01T06:00", "2028-02-29T00:00", "2026-12-31T23:00"]
)  # fmt: skip


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    bounds = st.tuples(number, number).map(sorted)
    one = st.one_of(
        number.map(str),
        bounds.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        st.tuples(bounds, st.integers(1, high)).map(lambda both: f"{both[0][0]}-{both[0][1]}/{both[1]}"),
        st.integers(1, high).map(lambda step: f"*/{step}"),
    )
    return st.just("*") | st.lists(one, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(
    field(0, 59), field(0, 23) | field(0, 4), st.just("*") | field(1, 31), st.just("*") | field(1, 12), field(0, 7)
).map(" ".join)


@settings(max_examples=examples(60), deadline=None)
@given(EXPRESSIONS, ZONES, CHANGES, st.integers(-300, 120))
@example("30 2 * * *", "Europe/Berlin", "2026-03-29T01:00", -120)
@example("*/7 * * * *", "Europe/Berlin", "2026-10-25T01:00", -120)
@example("0,30 1,2 * * *", "Australia/Lord_Howe", "2026-04-04T15:00", -120)
@example("0 0 * * *", "Africa/Cairo", "2026-04-23T22:00", -120)
def test_runs_are_those_of_cron(expression: str, zone: str, change: str, offset: int) -> None:
    try:
        parse(expression)
    except InputError:
        return
    # the simulation begins well before, so that it knows of a change of clocks shortly before `start`
    begin, start, minutes = utc(change) - 12 * 60 * MINUTE, utc(change) + offset * MINUTE, 30 * 60
    expected = [run for run in simulated(expression, ZoneInfo(zone), begin, minutes) if run > start]
    end = begin + (minutes - 1) * MINUTE
    found, at = [], start
    while (at := next_after(expression, ZoneInfo(zone), at)) <= end:
        found.append(at)
    assert found == expected


@settings(max_examples=examples(40), deadline=None)
@given(EXPRESSIONS, ZONES, CHANGES, st.integers(0, 60 * 24 * 40))
def test_the_latest_run_is_the_last_before_the_next(expression: str, zone: str, start: str, minutes: int) -> None:
    try:
        first = next_after(expression, ZoneInfo(zone), utc(start))
    except InputError:
        return
    until = first + minutes * MINUTE + timedelta(seconds=20)
    latest = latest_until(expression, ZoneInfo(zone), first, until)
    assert first <= latest <= until < next_after(expression, ZoneInfo(zone), latest)
