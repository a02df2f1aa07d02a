"""Short forms of UUIDs: as short as possible, and unique."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.gpu import short_names

MOCK = [f"GPU-12345678-1234-1234-1234-1234567890{number:02d}" for number in range(8)]
"""UUIDs of an NVML mock, which differ only at the end."""


def test_uuids_are_cut() -> None:
    # UUIDs with different beginnings are cut to the minimum
    assert short_names(["GPU-4404041a-04cf", "GPU-79a2ba02-a537"]) == {
        "GPU-4404041a-04cf": "GPU-4404041a",
        "GPU-79a2ba02-a537": "GPU-79a2ba02",
    }
    assert short_names([]) == {}
    # UUIDs with equal beginnings stay long enough to differ
    assert len(set(short_names(MOCK).values())) == len(MOCK)
    assert short_names(MOCK)[MOCK[3]] == MOCK[3]


@given(st.lists(st.text("ab", max_size=6)), st.integers(0, 8))
def test_short_names_are_unique_beginnings(uuids: list[str], least: int) -> None:
    found = short_names(uuids, least)
    assert len(set(found.values())) == len(set(uuids))
    assert all(uuid.startswith(short) for uuid, short in found.items())
