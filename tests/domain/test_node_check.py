"""Verdict about a node from what a probe job found there."""

from __future__ import annotations

from typing import Any

from gputui.domain.node_readings import NodeCheck, Verdict
from tests.cases import cases


@cases(
    ("found", "verdict"),
    [
        ({"seen": ("GPU-1",)}, Verdict.OK),
        ({"seen": ()}, Verdict.OK),
        ({"seen": None}, Verdict.UNCHECKED),
        ({"seen": ("GPU-1",), "why_not": "it has no container engine"}, Verdict.UNCHECKED),
        ({"seen": ("GPU-1",), "faults": ("the container saw GPU-2",)}, Verdict.FAULTY),
        ({"why_not": "the job did not end", "faults": ("nvidia-smi is missing",)}, Verdict.FAULTY),
    ],
)
def test_a_node_is_ok_only_if_a_container_ran_and_nothing_is_wrong(found: dict[str, Any], verdict: Verdict) -> None:
    assert NodeCheck("n1", 1, **found).verdict is verdict
