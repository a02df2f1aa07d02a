"""A busy day at three sizes, frame by frame, with the real scheduler and a clock that is turned: nobody touches a key.

`tests/torture/test_busy_day.py` does the same for five minutes, with real jobs and terminals.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.screen import Screen
from textual.widget import Widget

from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.job_table import JobTable
from tests.lane import IS_LONG
from tests.tui.busy_day import Day
from tests.tui.console import Console
from tests.tui.frames import Frame, Watch

SECONDS = 300 if IS_LONG else 60
JOBS, WAITING = 30, 16
"""Number of jobs that come whenever none is left, and of those that wait all the time where there are always more."""
QUIET = 5
"""Seconds before the first job: every graph has begun."""
SIZES = ((80, 24), (120, 36), (200, 50))
PANES = (GpuGrid, JobTable, LogPane)
STEP = 9
"""Number of columns between two places at which it is checked what lies on top."""


def what_lies_on_top(screen: Screen[object]) -> str:
    """Return the widgets that lie on the GPUs, the queue or the log; empty: none."""
    panes = [widget for kind in PANES for widget in screen.query(kind) if widget.display and widget.region.area]
    places = ((pane, x, y) for pane in panes for y in pane.region.line_range for x in _columns(pane))
    return " ".join(sorted({f"{top}" for pane, x, y in places if pane not in _with_parents(top := _at(screen, x, y))}))


def _columns(pane: Widget) -> range:
    return range(pane.region.x, pane.region.right, STEP)


def _at(screen: Screen[object], x: int, y: int) -> Widget:
    return screen.get_widget_at(x, y)[0]


def _with_parents(widget: Widget) -> list[object]:
    return list(widget.ancestors_with_self)


def in_state(snapshot: Snapshot, state: JobState) -> frozenset[JobId]:
    return frozenset(job.id for job in snapshot.jobs if job.state is state)


RUNS = [(size, waiting) for size in SIZES for waiting in (0, WAITING)]
IN_LINE = ((SIZES[0], WAITING), (SIZES[2], 0))
"""What the test line has: the narrowest screen with always more jobs, and the widest one with waves of them."""


@pytest.mark.parametrize(
    ("size", "waiting"),
    [run if run in IN_LINE else pytest.param(*run, marks=pytest.mark.long) for run in RUNS],
    ids=str,
)
async def test_what_counts_stays_in_sight_and_in_place(tmp_path: Path, size: tuple[int, int], waiting: int) -> None:
    day, watch = Day(tmp_path, seed=sum(size)), Watch("x".join(map(str, size)))
    console = Console()
    async with console.app.run_test(size=size, notifications=True) as pilot:
        for _ in range(QUIET):
            await console.show(pilot, day.second())
        watch.look(Frame("quiet", tuple(console.screen_text.splitlines())))
        for second in range(SECONDS):
            day.submit(0 if day.is_busy else JOBS)
            snapshot = day.second(waiting)
            console.clock.time = snapshot.taken_at
            await console.show(pilot, snapshot)
            states = in_state(snapshot, JobState.RUNNING), in_state(snapshot, JobState.PENDING)
            frame = Frame(f"second {second}", tuple(console.screen_text.splitlines()), *states)
            watch.look(frame, what_lies_on_top(console.app.screen))
    print(watch)
    assert watch.is_right
