"""Repair of a damaged queue, for tests."""

from __future__ import annotations

from pathlib import Path

from gputui.domain.kept_data import Recovery
from gputui.store.repair import repair_of
from tests.factories import ACTOR, NOW


def repair(directory: Path) -> Recovery:
    """Repair the queue; return the findings."""
    found = repair_of(directory)
    recovery = found.assess()
    assert recovery is not None
    found.carry_out(recovery, NOW, ACTOR)
    assert found.assess() is None
    return recovery
