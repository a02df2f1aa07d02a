"""Short forms of UUIDs: as short as they may be, and all different."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.gpu import short_names

MOCK = [f"GPU-12345678-1234-1234-1234-1234567890{number:02d}" for number in range(8)]
"""UUIDs as a mock of NVML makes them: alike but for the end."""


def test_uuids_that_differ_at_once_are_cut_to_the_least() -> None:
    assert short_names(["GPU-4404041a-04cf", "GPU-79a2ba02-a537"]) == {
        "GPU-4404041a-04cf": "GPU-4404041a",
        "GPU-79a2ba02-a537": "GPU-79a2ba02",
    }
    assert short_names([]) == {}


def test_uuids_that_differ_late_are_as_long_as_it_takes() -> None:
    assert len(set(short_names(MOCK).values())) == len(MOCK)
    assert short_names(MOCK)[MOCK[3]] == MOCK[3]


@given(st.lists(st.text("ab", max_size=6)), st.integers(0, 8))
def test_they_are_beginnings_and_differ(uuids: list[str], least: int) -> None:
    found = short_names(uuids, least)
    assert len(set(found.values())) == len(set(uuids))
    assert all(uuid.startswith(short) for uuid, short in found.items())
