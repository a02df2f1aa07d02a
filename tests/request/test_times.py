"""Times and spans in common notations."""

from __future__ import annotations

import time as clocks
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.domain.text import parse_duration
from gputui.request import times
from tests.cases import cases

NOW = datetime(2026, 11, 18, 11, 30, tzinfo=UTC)
"""A Wednesday, 12:30 in Berlin."""


def test_a_zone_that_the_host_does_not_know_is_refused(zone: Callable[[str], None]) -> None:
    zone("Foo/Bar")
    for text in ("18:00", "tomorrow", "2026-12-01"):
        with pytest.raises(InputError, match="TZ is 'Foo/Bar', which is not a time zone on this host"):
            times.moment(text, "--begin", NOW)
    assert times.moment("in 2h", "--begin", NOW) == NOW + timedelta(hours=2)
    assert times.moment("18:00 Europe/Berlin", "--begin", NOW) == NOW.replace(hour=17, minute=0)
    zone("CET-1CEST,M3.5.0,M10.5.0/3")
    assert times.moment("18:00", "--begin", NOW) == NOW.replace(hour=17, minute=0)


@pytest.fixture
def zone() -> Iterator[Callable[[str], None]]:
    """Setter of the machine's time zone."""

    def choose(name: str) -> None:
        patch.setenv("TZ", name)
        clocks.tzset()

    with pytest.MonkeyPatch.context() as patch:
        yield choose
    clocks.tzset()


@pytest.fixture(autouse=True, scope="module")
def _berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        clocks.tzset()
        yield
    clocks.tzset()


def local(text: str, now: datetime = NOW, after: datetime | None = None) -> str:
    """Return the time meant, as a clock in Berlin shows it."""
    return f"{times.moment(text, '--begin', now, after).astimezone():%a %d %b %H:%M}"


@cases(
    ("text", "found"),
    [
        ("now", "Wed 18 Nov 12:30"), ("+1h30", "Wed 18 Nov 14:00"), ("in 2h", "Wed 18 Nov 14:30"),
        ("in 30 minutes", "Wed 18 Nov 13:00"), ("In 1 day and 2 hours", "Thu 19 Nov 14:30"),
        ("18:00", "Wed 18 Nov 18:00"), ("9:00", "Thu 19 Nov 09:00"), ("6pm", "Wed 18 Nov 18:00"),
        ("6:15 pm", "Wed 18 Nov 18:15"), ("12am", "Thu 19 Nov 00:00"), ("noon", "Thu 19 Nov 12:00"),
        ("midnight", "Thu 19 Nov 00:00"), ("tonight", "Wed 18 Nov 20:00"), ("tonight at 22:00", "Wed 18 Nov 22:00"),
        ("tomorrow", "Thu 19 Nov 00:00"), ("tomorrow 09:00", "Thu 19 Nov 09:00"),
        ("9am tomorrow", "Thu 19 Nov 09:00"), ("today, 14:00", "Wed 18 Nov 14:00"), ("Mon 09:00", "Mon 23 Nov 09:00"),
        ("Wed 13:00", "Wed 18 Nov 13:00"), ("wednesday 12:00", "Wed 25 Nov 12:00"),
        ("on Friday at 9:30", "Fri 20 Nov 09:30"), ("next Monday", "Mon 23 Nov 00:00"),
        ("next Wed 9am", "Wed 25 Nov 09:00"), ("1 Dec 14:00", "Tue 01 Dec 14:00"),
        ("December 1st", "Tue 01 Dec 00:00"), ("1 Mar 2027 9am", "Mon 01 Mar 09:00"), ("2 Jan", "Sat 02 Jan 00:00"),
        ("2026-12-01", "Tue 01 Dec 00:00"), ("2026-12-01 9am", "Tue 01 Dec 09:00"),
        ("2026-12-01T09:00", "Tue 01 Dec 09:00"), ("2026-12-01T09:00Z", "Tue 01 Dec 10:00"),
        ("2026-12-01T09:00+05:00", "Tue 01 Dec 05:00"), ("Mon 09:00 America/New_York", "Mon 23 Nov 15:00"),
        ("18:00 UTC", "Wed 18 Nov 19:00"),
    ],
)  # fmt: skip
def test_times_are_read(text: str, found: str) -> None:
    assert local(text) == found


@cases(
    ("text", "why"),
    [
        ("", "is not a time"), ("soon", "is not a time"),
        ("in 90", "has no unit (write 90s, 90m or 90h; several units as 1h30m)"),
        ("18", "leaves open which time 18 is (write 18:00)"),
        ("tomorrow 9", "leaves open which time 9 is (write 09:00 or 9pm)"), ("25:00", "is not a time"),
        ("13pm", "am and pm go with hours from 1 to 12"), ("today 08:00", "has passed"),
        ("tonight 03:00", "may be early today or early tomorrow (write tomorrow 03:00)"),
        ("tomorrow midnight", "may be the beginning or the end of that day"),
        ("next Friday", "may be Fri 20 Nov or Fri 27 Nov (write 2026-11-20 or 2026-11-27)"),
        ("12/1 9am", "could be day-month or month-day"), ("1.12.2026", "could be day-month or month-day"),
        ("Mon 9-17", "is a span of time"), ("Mon 9:00 17:00", "has several times"), ("30 Feb", "is not a time"),
        ("Mon Tue", "is not a time"), ("Mon 09:00 Mars/Base", "names a time zone that this host does not know"),
        ("2099-01-01", "is more than ten years away"),
    ],
)  # fmt: skip
def test_invalid_and_ambiguous_times_are_refused(text: str, why: str) -> None:
    with pytest.raises(InputError) as error:
        times.moment(text, "--begin", NOW)
    assert why in str(error.value)


def test_an_hour_that_clocks_skip_or_show_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"does not exist: clocks are put forward .*2027-03-28T03:30\+02:00"):
        times.moment("2027-03-28 02:30", "--begin", NOW)
    with pytest.raises(InputError, match=r"occurs twice.*2026-10-25T02:30\+02:00 or 2026-10-25T02:30\+01:00"):
        times.moment("2026-10-25 02:30", "--begin", NOW)
    assert times.moment("2026-10-25T02:30+01:00", "--begin", NOW) == datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    eve = datetime(2027, 3, 27, 11, tzinfo=UTC)
    assert local("tomorrow 09:00", eve) == "Sun 28 Mar 09:00"


@cases(
    ("place", "now", "texts", "begin"),
    [
        ("Africa/Cairo", "2026-04-26", ["2026-04-24", "24 Apr", "last friday"], "2026-04-24T01:00:00+03:00"),
        ("America/Havana", "2026-11-18", ["2026-11-01", "1 Nov", "2026-11", "this month"], "2026-11-01T00:00:00-04:00"),
    ],
)
def test_a_day_begins_with_its_first_moment_where_clocks_are_set_at_midnight(
    zone: Callable[[str], None], place: str, now: str, texts: list[str], begin: str
) -> None:
    at = datetime.fromisoformat(f"{now}T12:00Z")
    named = {f"{text} {place}": times.past(f"{text} {place}", "--since", at) for text in texts if text[-1].isalpha()}
    zone(place)
    found = {text: times.past(text, "--since", at) for text in texts}
    assert {text: each.astimezone().isoformat() for text, each in {**found, **named}.items()} == dict.fromkeys(
        [*found, *named], begin
    )


def test_hours_without_their_letter_and_ends_after_their_start() -> None:
    start = datetime(2026, 11, 24, 10, tzinfo=UTC)
    assert local("10:00", after=start) == "Wed 25 Nov 10:00"
    assert local("Mon 9:00", after=start) == "Mon 30 Nov 09:00"
    assert local("12:30") == "Thu 19 Nov 12:30", "the present minute has passed"
    assert parse_duration("2h30") == timedelta(hours=2, minutes=30)
    for text in ("2h3", "2h75", "h30"):
        with pytest.raises(InputError):
            parse_duration(text)


@cases(
    ("text", "found"),
    [
        ("Mon 9-17", ("Mon 23 Nov 09:00", "Mon 23 Nov 17:00")),
        ("Mon 9 - 17", ("Mon 23 Nov 09:00", "Mon 23 Nov 17:00")),
        ("tomorrow from 9:00 to 17:30", ("Thu 19 Nov 09:00", "Thu 19 Nov 17:30")),
        ("Mon 9am-5pm", ("Mon 23 Nov 09:00", "Mon 23 Nov 17:00")),
        ("Mon 9-5pm", ("Mon 23 Nov 09:00", "Mon 23 Nov 17:00")),
        ("Mon 1-5pm", ("Mon 23 Nov 13:00", "Mon 23 Nov 17:00")),
        ("tonight 22-6", ("Wed 18 Nov 22:00", "Thu 19 Nov 06:00")),
        ("2026-12-01 20-24", ("Tue 01 Dec 20:00", "Wed 02 Dec 00:00")),
        ("18-20", ("Wed 18 Nov 18:00", "Wed 18 Nov 20:00")),
        ("Mon 09:00", None),
        ("in 2h", None),
        ("2026-12-01", None),
    ],
)
def test_spans_are_read(text: str, found: tuple[str, str] | None) -> None:
    got = times.span(text, "--start", NOW)
    assert (got and tuple(f"{each.astimezone():%a %d %b %H:%M}" for each in got)) == found


@cases("text", ["Mon 9-5", "Mon 9-9", "Mon 9-17 18:00", "Mon 9-25"])
def test_invalid_spans_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--start"):
        times.span(text, "--start", NOW)


@given(st.datetimes(datetime(2026, 11, 19), datetime(2035, 1, 1)))  # noqa: DTZ001 - local times are meant
def test_an_iso_time_is_local_unless_clocks_jump(naive: datetime) -> None:
    naive = naive.replace(second=0, microsecond=0)
    try:
        found = times.moment(naive.isoformat(), "--begin", NOW)
    except InputError as error:
        assert naive.month in {3, 10}
        assert "clocks are put" in str(error)  # noqa: PT017
    else:
        assert found.astimezone().replace(tzinfo=None) == naive


_WORDS = [
    *(
        "in", "next", "mon", "fri", "tomorrow", "tonight", "9", "9-17", "10:30", "dec", "1", "2026", "pm", "utc",
        "UTC", "-",
    )
]  # fmt: skip


@given(st.lists(st.sampled_from(_WORDS) | st.text(max_size=5), max_size=5).map(" ".join))
@example("in \N{SUPERSCRIPT TWO}h")
@example("9999-12-31T23:59")
@example("0001-01-01")
@example("31 dec 9999 23:00 Pacific/Kiritimati")
def test_any_text_gives_a_time_or_an_input_error(text: str) -> None:
    for read in (times.moment, times.span):
        try:
            read(text, "--begin", NOW)
        except InputError as error:
            assert error.where == "--begin"  # noqa: PT017 - only some texts are refused


def before(text: str) -> str:
    """Return the time of the past that is meant, as a clock in Berlin shows it."""
    return f"{times.past(text, '--since', NOW).astimezone():%a %Y-%m-%d %H:%M}"


@cases(
    ("text", "found"),
    [
        ("-7d", "Wed 2026-11-11 12:30"), ("7 days ago", "Wed 2026-11-11 12:30"), ("2h ago", "Wed 2026-11-18 10:30"),
        ("now", "Wed 2026-11-18 12:30"), ("12:00", "Wed 2026-11-18 12:00"), ("13:00", "Tue 2026-11-17 13:00"),
        ("today", "Wed 2026-11-18 00:00"), ("yesterday 18:00", "Tue 2026-11-17 18:00"),
        ("monday", "Mon 2026-11-16 00:00"), ("wed 14:00", "Wed 2026-11-11 14:00"),
        ("last monday", "Mon 2026-11-16 00:00"), ("last wed", "Wed 2026-11-11 00:00"),
        ("this week", "Mon 2026-11-16 00:00"), ("last week", "Mon 2026-11-09 00:00"),
        ("last month", "Thu 2026-10-01 00:00"), ("this month", "Sun 2026-11-01 00:00"),
        ("last year", "Wed 2025-01-01 00:00"), ("2026-11", "Sun 2026-11-01 00:00"),
        ("2026-11-01", "Sun 2026-11-01 00:00"), ("1 Nov 9am", "Sun 2026-11-01 09:00"),
        ("24 Dec", "Wed 2025-12-24 00:00"), ("2026-11-01T09:00+00:00", "Sun 2026-11-01 10:00"),
    ],
)  # fmt: skip
def test_past_times_are_their_last_occurrence(text: str, found: str) -> None:
    assert before(text) == found


@cases(
    ("text", "words"),
    [
        ("-7", "has no unit"), ("tomorrow", "is not a time of the past"), ("last 12:00", "is not a time of the past"),
        ("today 18:00", "is in the future"), ("mon 9-17", "is a span of time"), ("whenever", "last monday"),
        ("-9999w", "at most 3650 days"), ("2005", "is not a time"),
    ],
)  # fmt: skip
def test_invalid_past_times_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        times.past(text, "--since", NOW)
    assert words in f"{caught.value} {caught.value.hint}"
