"""Sizes and durations are read as people write them; anything else is an InputError that says where."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.domain.text import (
    MAX_DURATION,
    MAX_SIZE,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    plural,
)
from tests.cases import cases

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
LIKE_A_NUMBER = st.text("0123456789.-+:eEkmgtpibwdhsnaf _\u0661\u0000'", max_size=45)


@cases(
    ("text", "size"),
    [
        ("1048576", MIB),
        ("16g", 16 * GIB),
        ("16G", 16 * GIB),
        ("16gb", 16 * GIB),
        ("16GiB", 16 * GIB),
        ("16 GiB", 16 * GIB),
        (" 512m ", 512 * MIB),
        ("1.5GiB", 3 * GIB // 2),
        ("64k", 64 * KIB),
        ("2t", 2 * TIB),
        ("100b", 100),
        ("1024p", MAX_SIZE),
        ("1152921504606846975", MAX_SIZE - 1),
    ],
)
def test_sizes_are_read_in_common_notations(text: str, size: int) -> None:
    assert parse_size(text) == size


@cases(
    "text",
    ["", " ", "g", "-1", "+1", "1e9", "1,5g", "16ib", "16gg", "1 2g", "nan", "inf", "0x10", "\u0661\u0662", "1g\x00"],
)
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a size") as caught:
        parse_size(text, where="--memory")
    assert caught.value.where == "--memory"
    assert caught.value.hint


@cases("text", ["0", "0g", "0.1", "1025p", "9" * 40])
def test_sizes_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="out of range"):
        parse_size(text)


@given(LIKE_A_NUMBER | st.text(max_size=60))
def test_a_size_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        assert 0 < parse_size(text) <= MAX_SIZE


@given(st.integers(1, MAX_SIZE))
def test_bytes_are_read_exactly(size: int) -> None:
    assert parse_size(str(size)) == size


@given(st.integers(1, MAX_SIZE))
def test_a_formatted_size_is_narrow_and_close(size: int) -> None:
    shown = format_size(size)
    assert len(shown) <= 5
    assert parse_size(shown) == pytest.approx(size, rel=0.051)


@given(st.sampled_from("kmgtp"), st.integers(1, 1023))
def test_formatted_whole_units_are_read_back(unit: str, count: int) -> None:
    assert format_size(parse_size(f"{count}{unit}")) == f"{count}{unit.upper()}"


def test_sizes_are_formatted() -> None:
    shown = [format_size(size) for size in (None, 0, 1023, 1024, 1536, 80 * GIB, GIB - 1, MAX_SIZE, -GIB)]
    assert shown == ["-", "0", "1023", "1K", "1.5K", "80G", "1G", "1024P", "-1G"]


@cases(
    ("text", "duration"),
    [
        ("0", timedelta(0)),
        ("0.0", timedelta(0)),
        ("1.5s", timedelta(seconds=1.5)),
        ("45s", timedelta(seconds=45)),
        ("30m", timedelta(minutes=30)),
        ("30min", timedelta(minutes=30)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("1H30M", timedelta(hours=1, minutes=30)),
        ("1.5h", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1w2d", timedelta(days=9)),
        ("3:20", timedelta(minutes=3, seconds=20)),
        ("12:00:00", timedelta(hours=12)),
        ("2-12:00", timedelta(days=2, hours=12)),
        ("2-12:00:00", timedelta(days=2, hours=12)),
        (" 5m ", timedelta(minutes=5)),
        ("1 h", timedelta(hours=1)),
        ("1 Day and 2 hours, 30 min", timedelta(days=1, hours=2, minutes=30)),
        ("3650d", MAX_DURATION),
    ],
)
def test_durations_are_read_in_common_notations(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@cases(
    "text",
    [
        "",
        " ",
        "h",
        "-5",
        "+5",
        "5x",
        "1m1h",
        "2 30",
        "1 month",
        "1:2:3:4",
        "1-2",
        "1e3",
        "nan",
        "inf",
        "\u0661s",
        "5\x00",
        "0" * 41,
    ],
)
def test_invalid_durations_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a duration") as caught:
        parse_duration(text, where="--time-limit")
    assert caught.value.where == "--time-limit"
    assert caught.value.hint


@cases("text", ["90", " 90 ", "1.5", "007", "9" * 40])
def test_a_bare_number_asks_for_its_unit(text: str) -> None:
    number = text.strip()
    with pytest.raises(InputError, match=f"has no unit .write {number}s, {number}m or {number}h"):
        parse_duration(text, where="--time-limit")


@cases("text", ["3651d", "9" * 39 + "w", "9" * 30 + "-00:00:00", "9" * 30 + ":00"])
def test_durations_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="out of range"):
        parse_duration(text)


@given(LIKE_A_NUMBER | st.text(max_size=60))
def test_a_duration_is_read_or_refused(text: str) -> None:
    with suppress(InputError):
        assert timedelta(0) <= parse_duration(text) <= MAX_DURATION


@given(st.timedeltas(timedelta(0), MAX_DURATION))
def test_a_formatted_duration_is_narrow_and_loses_less_than_its_last_unit(duration: timedelta) -> None:
    shown = format_duration(duration)
    lost = duration - parse_duration(shown)
    last = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1)}[shown[-1]]
    assert len(shown) <= 8
    assert timedelta(0) <= lost < last


def test_durations_are_formatted() -> None:
    seconds = (0, 45.9, 750, 3 * 3600 + 300, 2 * 86400 + 4 * 3600, -5)
    shown = [format_duration(timedelta(seconds=value)) for value in seconds]
    assert shown == ["0s", "45s", "12m30s", "3h05m", "2d04h", "0s"]
    assert format_duration(None) == "-"


def test_nouns_take_their_plural() -> None:
    assert [plural(count, "GPU") for count in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]


@given(st.text(max_size=60) | st.just("x" * 10_000))
def test_a_refusal_is_short_and_harmless(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_size("\x1b[2J" + text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500
