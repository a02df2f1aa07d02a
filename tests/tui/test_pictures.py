"""Pictures of the console, on good days and bad ones. A picture that changes is a change to look at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import PurePath
from typing import Protocol

import pytest
from textual.app import App
from textual.pilot import Pilot

from gputui.domain.snapshot import Snapshot
from gputui.tui.actions import ExitChoice
from tests.tui import sample
from tests.tui.console import Console
from tests.tui.idle import quiet as laid_out

SMALL, MIDDLING, WIDE = (80, 24), (120, 36), (200, 50)
LOG = [
    b"\x1b[32mINFO\x1b[0m  epoch %d  loss \x1b[1m%.3f\x1b[0m  lr 2.0e-05" % (epoch, 3 - epoch * 0.03)
    for epoch in range(60)
]


class Compare(Protocol):
    def __call__(
        self,
        app: str | PurePath | App[object],
        press: tuple[str, ...] = (),
        terminal_size: tuple[int, int] = (80, 24),
        run_before: Callable[[Pilot[ExitChoice]], object] | None = None,
    ) -> bool: ...


def matches(
    snap_compare: Compare, snapshot: Snapshot | None, size: tuple[int, int], *keys: str, history: bool = False
) -> bool:
    """Return whether the console looks as it did, with this picture and after these keys."""
    console = Console(snapshot)
    console.logs.lines = {101: LOG, 50: LOG}

    async def before(pilot: Pilot[ExitChoice]) -> None:
        if history:
            await show_history(console, pilot)
        await console.begin(pilot)
        if console.logs.opened or console.app.screen.query("#log").first().follower is not None:  # type: ignore[attr-defined]
            await console.read_log(pilot, console.logs.opened[0][0])
        await pilot.press(*keys)
        await console.settle(pilot)

    return snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]


async def show_history(console: Console, pilot: Pilot[ExitChoice]) -> None:
    """Show minutes of load before the picture itself, without drawing them."""
    for step in range(45):
        gpus = []
        for view in sample.gpus():
            load = 0.0 if view.job_id is None else (step * (view.gpu.index + 3) % 40) / 40
            reading = None if view.sample is None else sample.at_load(view.sample, load)
            gpus.append(sample.with_sample(view, reading))
        taken = console.snapshot.taken_at - timedelta(seconds=10 * (45 - step))
        console.feed.publish(sample.with_node(taken_at=taken, gpus=tuple(gpus)))
        await laid_out(pilot)


AT_EVERY_SIZE = pytest.mark.parametrize("size", [SMALL, MIDDLING, WIDE], ids=["80x24", "120x36", "200x50"])
BAD_DAYS = (sample.no_gpu, sample.empty_queue, sample.stale, sample.strange_names)
"""Days on which panes look otherwise."""


class TestMain:
    @AT_EVERY_SIZE
    def test_a_busy_day_matches_its_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert matches(snap_compare, None, size, history=True)

    @pytest.mark.parametrize("day", BAD_DAYS, ids=[f"{day.__name__}-80x24" for day in BAD_DAYS])
    def test_a_bad_day_matches_its_picture(self, snap_compare: Compare, day: Callable[[], Snapshot]) -> None:
        assert matches(snap_compare, day(), SMALL)

    @pytest.mark.parametrize("size", [SMALL], ids=["80x24"])
    def test_an_empty_console_matches_its_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert snap_compare(Console().app, terminal_size=size)  # type: ignore[arg-type]
