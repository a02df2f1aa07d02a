"""What the queue's pane looks like: marks, folds, other tabs, and its dialogs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest
from textual.pilot import Pilot

from gputui.domain.job import Job
from gputui.tui.leave import Leave
from tests.factories import recurring
from tests.tui.console import Console
from tests.tui.test_pictures import Compare
from tests.tui.test_queue import ended, with_array

SIZES = {"80x24": (80, 24), "120x36": (120, 36), "200x50": (200, 50)}
STATES = {
    "marked": ("o", "space", "j", "space", "S", "S"),
    "finished": ("2",),
    "recurring": ("3",),
    "columns": ("vertical_line", "j", "space"),
    "edit": ("j", "j", "j", "j", "j", "e"),
}


def history(since: datetime | None) -> Iterator[Job]:
    return iter([ended(5, 3), ended(4, 5)])


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("keys", STATES.values(), ids=STATES)
def test_the_queue(snap_compare: Compare, keys: tuple[str, ...], size: tuple[int, int]) -> None:
    console = Console(replace(with_array(), recurring=(recurring(id=7, name="nightly"),)), past=history)

    async def before(pilot: Pilot[Leave]) -> None:
        await console.begin(pilot)
        await pilot.press(*keys)
        for _ in range(100):
            if not console.app.screen_stack[0]._past.is_reading:  # type: ignore[attr-defined]
                break
            await pilot.pause(0.01)
        await console.settle(pilot)

    assert snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]
