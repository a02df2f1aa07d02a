"""Several logs at once: pinned ones, those of running jobs, and attempts of one job side by side."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gputui.tui.actions import ExitChoice
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.logs import REST, LogsScreen, columns_for
from gputui.tui.screens.main import Main
from gputui.tui.widgets.log_follower import MOST_PINNED, LogOf, Pinned
from tests.cases import cases
from tests.tui import sample
from tests.tui.console import Console, on_screen, until
from tests.tui.reader import looked
from tests.tui.test_pictures import LOG, Compare

pytestmark = pytest.mark.usefixtures("drawn")

SIZE = (200, 50)
EVAL = [b"\x1b[36mstep\x1b[0m %d  accuracy %.3f" % (step, 0.5 + step * 0.004) for step in range(80)]
FAILED = [
    *LOG[:20],
    b"[rank0]: Traceback (most recent call last):",
    b'[rank0]:   File "/app/train.py", line 88, in <module>',
    b"[rank0]:     loss.backward()",
    b"[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 1.21 GiB free.",
    b"node1:88:112 [0] NCCL WARN socketStartConnect: Connect to 10.0.0.2<43215> failed",
    b"srun: error: node1: task 0: Exited with exit code 1",
]


def twice() -> Console:
    """Return a snapshot in which job 101 runs for the second time."""
    snapshot = sample.with_job(sample.rich_snapshot(), [replace(sample.secret_job(), id=101)])
    console = Console(snapshot)
    console.logs.lines = {101: LOG, 104: EVAL}
    console.logs.attempts = {(101, 1): FAILED, (101, 2): LOG}
    return console


async def read_all(console: Console, pilot: Pilot[ExitChoice]) -> list[LogPane]:
    """Wait until every pane shows its lines."""
    panes = list(console.app.screen.query(LogPane))
    await until(pilot, lambda: all(pane.reading.lines.end for pane in panes) and console.logs.are_read)
    for pane in panes:
        pane.tick()
        await looked(pane, pilot)
    return panes


@cases(
    ("count", "width", "columns"),
    [(1, 300, 1), (2, 80, 1), (2, 120, 2), (3, 120, 2), (4, 200, 2), (6, 200, 3), (6, 300, 3), (5, 300, 5), (0, 80, 1)],
)
def test_logs_are_distributed_evenly(count: int, width: int, columns: int) -> None:
    assert columns_for(count, width) == columns


def test_no_more_are_pinned_than_fit() -> None:
    pinned = Pinned()
    for number in range(MOST_PINNED + 1):
        words = pinned.toggle(LogOf(number))
    assert "6 logs are pinned already" in words
    assert len(pinned.logs) == MOST_PINNED
    assert pinned.toggle(LogOf(2)) == "no longer pinned"
    assert LogOf(2) not in pinned.logs


async def test_pinned_logs_are_shown_together_and_removed() -> None:
    async with on_screen(twice(), SIZE) as (console, pilot):
        await console.press(pilot, "p", "j", "p", "L")
        panes = await read_all(console, pilot)
        assert [pane.follower.job_id for pane in panes if pane.follower] == [101, 104]
        assert "LOG #104 resnet-ablation" in console.screen_text
        assert "accuracy" in console.screen_text
        assert panes[0].region.y == panes[1].region.y
        await pilot.press("tab")
        assert console.app.focused is panes[1]
        await console.press(pilot, "p")
        assert isinstance(console.app.screen, LogsScreen)
        assert console.app.services.pinned.logs == [LogOf(101)]
        await until(pilot, lambda: panes[0].region.width == SIZE[0])
        await console.press(pilot, "p")
        assert len(console.app.screen_stack) == 1
    assert all(stream.closed.is_set() for stream in console.logs.streams.values())


async def test_without_pinned_logs_those_of_running_jobs_are_shown() -> None:
    async with on_screen(twice(), (80, 24)) as (console, pilot):
        await pilot.press("L")
        panes = await read_all(console, pilot)
        assert [pane.follower.job_id for pane in panes if pane.follower] == [101, 104]
        assert panes[0].region.x == panes[1].region.x == 0
        await pilot.press("z")
        await pilot.pause()
        assert panes[0].size.height == 22
        await pilot.press("tab")
        await pilot.pause()
        assert panes[1].size.height == 22
        await pilot.press("escape")
        assert isinstance(console.app.screen, Main)


async def test_without_logs_the_screen_says_so() -> None:
    async with on_screen(Console(sample.empty_queue()), SIZE) as (console, pilot):
        await pilot.press("L")
        assert any("No log is pinned" in told for told in console.told)


async def test_attempts_are_side_by_side_and_each_is_searched_separately() -> None:
    async with on_screen(twice(), SIZE) as (console, pilot):
        await pilot.press("A")
        panes = await read_all(console, pilot)
        assert "attempt 1 of 2" in console.screen_text
        assert "attempt 2 of 2" in console.screen_text
        await pilot.press("e")
        await looked(panes[0], pilot)
        assert "error 1 of 4: traceback" in console.screen_text
        assert panes[1].follows
        await pilot.press("full_stop")
        await pilot.pause()
        assert [pane.follower.attempt for pane in panes if pane.follower] == [2, 2]


async def test_f_follows_the_log_on_the_main_screen() -> None:
    async with on_screen(twice(), SIZE) as (console, pilot):
        await console.press(pilot, "L")
        await read_all(console, pilot)
        await console.press(pilot, "tab")
        await console.press(pilot, "f")
        assert isinstance(console.app.screen, Main)
        follower = console.app.screen.log_pane.follower
        assert follower is not None
        assert follower.job_id == 104


async def test_a_requested_log_stays_after_a_cursor_move() -> None:
    async with on_screen(twice(), SIZE) as (console, pilot):
        main = console.app.screen
        assert isinstance(main, Main)
        main.logs.follow_cursor_soon()
        main.logs.follow(104)
        await pilot.pause(2 * REST)
        assert main.logs.followed is not None
        assert main.logs.followed.job_id == 104


async def test_the_next_attempt_is_followed_when_it_starts() -> None:
    console = Console()
    console.logs.lines = {101: LOG, 104: EVAL}
    async with on_screen(console, SIZE) as (_, pilot):
        await pilot.press("L")
        panes = await read_all(console, pilot)
        opened = len(console.logs.opened)
        await console.show(pilot, sample.with_job(console.snapshot, [replace(sample.secret_job(), id=101)]))
        await until(pilot, lambda: len(console.logs.opened) > opened)
        assert "attempt 2 of 2" in console.screen_text
        assert panes[1].follower is not None
        assert console.logs.opened[-1][0] == 101


NARROW = pytest.mark.parametrize("size", [(80, 24)], ids=["80x24"])


class TestPictures:
    def matches(self, snap_compare: Compare, size: tuple[int, int], *keys: str) -> bool:
        console = twice()

        async def before(pilot: Pilot[ExitChoice]) -> None:
            await console.begin(pilot)
            await console.read_log(pilot, 101)
            for key in keys:
                await pilot.press(key)
                await read_all(console, pilot)
            await console.settle(pilot)

        return snap_compare(console.app, terminal_size=size, run_before=before)  # type: ignore[arg-type]

    @NARROW
    def test_attempts_with_an_error_match_their_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert self.matches(snap_compare, size, "A", "e", "e")

    @NARROW
    def test_logs_of_running_jobs_match_their_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert self.matches(snap_compare, size, "L")

    @NARROW
    def test_a_search_matches_its_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert self.matches(snap_compare, size, "L", "z", "slash", *"loss", "enter", "n", "V", "j")

    @NARROW
    def test_a_filter_matches_its_picture(self, snap_compare: Compare, size: tuple[int, int]) -> None:
        assert self.matches(snap_compare, size, "L", "ampersand", *"5 ", "enter", "right_parenthesis")
