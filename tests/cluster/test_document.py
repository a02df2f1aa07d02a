"""docs/cluster.md has the engines' present capabilities."""

from __future__ import annotations

import re
from pathlib import Path

from gputui.cluster.kubernetes.site import caps_of as kubernetes_caps_of
from gputui.cluster.slurm.site import caps_of
from gputui.domain.cluster import Capability
from scripts.cluster import FUNCTIONS, updated

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "cluster.md"


def test_the_table_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == updated(text), "run python scripts/cluster.py"


def test_every_capability_is_in_the_table() -> None:
    assert set(FUNCTIONS) == set(Capability)


def test_the_refused_commands_are_named() -> None:
    sentence = re.search(r"what to use instead[^:]*: ([^.]*)\.", DOCUMENT.read_text(encoding="utf-8"))
    assert sentence is not None
    named = set(re.findall(r"`(\w+)`", sentence[1]))
    assert named == set(caps_of(None).commands) == set(kubernetes_caps_of(None).commands)
