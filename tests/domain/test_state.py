"""The life of a job: every pair of states is legal or illegal, and the table says which."""

from __future__ import annotations

from itertools import product

import pytest

from gputui.domain.errors import TransitionError
from gputui.domain.state import ACTIVE, TERMINAL, TRANSITIONS, JobState, check_transition

# Rows: from. Columns: to, in the same order. Written out, so that a change of the table is a change here.
TABLE = """
              PD CF R  CG CD F  CA TO OOM PR
PENDING       .  x  .  .  .  x  x  .  .   .
CONFIGURING   x  .  x  x  x  x  x  x  x   x
RUNNING       x  .  .  x  x  x  x  x  x   x
COMPLETING    x  .  .  .  x  x  x  x  x   x
COMPLETED     x  .  .  .  .  .  .  .  .   .
FAILED        x  .  .  .  .  .  .  .  .   .
CANCELLED     x  .  .  .  .  .  .  .  .   .
TIMEOUT       x  .  .  .  .  .  .  .  .   .
OUT_OF_MEMORY x  .  .  .  .  .  .  .  .   .
PREEMPTED     x  .  .  .  .  .  x  .  .   .
"""


def legal() -> set[tuple[JobState, JobState]]:
    header, *rows = TABLE.strip().splitlines()
    by_short = {state.short: state for state in JobState}
    columns = [by_short[short] for short in header.split()]
    return {
        (JobState(row.split()[0]), column)
        for row in rows
        for column, mark in zip(columns, row.split()[1:], strict=True)
        if mark == "x"
    }


def test_transitions() -> None:
    # every pair of states
    allowed = legal()
    for before, after in product(JobState, JobState):
        if (before, after) in allowed:
            check_transition(before, after)
        else:
            with pytest.raises(TransitionError, match=f"{before} cannot become {after}"):
                check_transition(before, after)
    # only a requeue leads out of an end
    assert all(TRANSITIONS[state] == {JobState.PENDING} for state in TERMINAL)


def test_each_state() -> None:
    # every state has a row and leads to an end
    assert set(TRANSITIONS) == set(JobState)
    for state in JobState:
        reached, edge = {state}, {state}
        while edge := {after for before in edge for after in TRANSITIONS[before]} - reached:
            reached |= edge
        assert reached & TERMINAL
    # every state is waiting active ended or preempted
    assert frozenset(JobState) == ACTIVE | TERMINAL | {JobState.PENDING, JobState.PREEMPTED}
    assert not ACTIVE & TERMINAL
    assert {state for state in JobState if state.is_active} == ACTIVE
    assert {state for state in JobState if state.is_terminal} == TERMINAL
    # short forms are those of squeue
    assert [state.short for state in JobState] == ["PD", "CF", "R", "CG", "CD", "F", "CA", "TO", "OOM", "PR"]
