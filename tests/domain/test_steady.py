"""The rule against flapping, on a given clock."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.gpu_history import HOLD, Steady, holds
from tests.factories import NOW

SECOND = timedelta(seconds=1)
HELD = int(HOLD / SECOND)

spells = st.lists(st.tuples(st.booleans(), st.integers(1, 25)), min_size=1, max_size=8)
"""Whether a state is there, for how many seconds."""


@given(spells)
def test_a_state_comes_and_goes_only_after_10_seconds(found: list[tuple[bool, int]]) -> None:
    seconds = [there for there, length in found for _ in range(length)]
    steady: Steady[str] = Steady()
    told = [bool(steady.update({"hot"} if there else (), NOW + n * SECOND)) for n, there in enumerate(seconds)]
    assert told[0] is seconds[0], "nothing is known of the time before"
    for n in range(1, len(told)):
        is_other = n >= HELD and all(there is not told[n - 1] for there in seconds[n - HELD : n + 1])
        assert (told[n] is not told[n - 1]) is is_other
    assert [holds(reversed(seconds[: n + 1])) for n in range(len(seconds))] == told, "the same rule over a history"


def test_states_that_last_or_are_not_read() -> None:
    # a state that is known to last is told at once
    steady: Steady[str] = Steady()
    steady.update((), NOW)
    assert steady.update({"idle", "hot"}, NOW + SECOND, {"idle": NOW - HOLD}) == {"idle"}
    # unread seconds change nothing
    assert holds(()) is None
    assert holds([None, None]) is None
    assert holds([None, True, None, False]) is False
    assert holds([None, *[True] * (HELD + 1), None, False]) is True
