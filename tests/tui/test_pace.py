"""Slow connections: fewer snapshots, no graphs, and no delayed keys."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.job_spec import JobId
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import EMPTY, Node, Snapshot
from gputui.domain.state import Reason
from gputui.tui.app import Pacer
from gputui.tui.progress import SLOW, USUAL, Pace, Repaints, log_pace
from tests.cli.conftest import Run, alone, clock, run, store
from tests.factories import GIB, NOW, sample, view
from tests.tui.console import Console, on_screen
from tests.tui.test_pictures import show_history

__all__ = ["alone", "clock", "run", "store"]


class FakeTimer:
    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


class Shown:
    """Snapshots that a pacer let through, and the calls it scheduled."""

    def __init__(self, pace: Pace) -> None:
        self.shown: list[Snapshot] = []
        self.asked: list[float] = []
        self.timer = FakeTimer()
        self.pacer = Pacer(pace, self.shown.append, self._later)  # type: ignore[arg-type]

    def _later(self, wait: float, call: object) -> FakeTimer:
        self.asked.append(wait)
        self.call = call
        return self.timer


PICTURES = [replace(EMPTY, taken_at=NOW + timedelta(seconds=second)) for second in range(4)]


def test_usually_every_snapshot_is_shown() -> None:
    seen = Shown(USUAL)
    for picture in PICTURES:
        seen.pacer.take(picture)
    assert seen.shown == PICTURES
    assert not seen.asked


def test_a_slow_console_shows_the_last_of_several_snapshots() -> None:
    seen = Shown(SLOW)
    for picture in PICTURES:
        seen.pacer.take(picture)
    assert seen.shown == PICTURES[:1]
    assert len(seen.asked) == 1
    assert 4.5 < seen.asked[0] <= SLOW.pictures
    seen.call()  # type: ignore[operator]
    assert seen.shown == [PICTURES[0], PICTURES[3]]
    assert seen.timer.stopped


def test_own_actions_are_shown_immediately() -> None:
    seen = Shown(SLOW)
    seen.pacer.take(PICTURES[0])
    seen.pacer.hurry()
    seen.pacer.take(PICTURES[1])
    assert seen.shown == PICTURES[:2]


def test_the_main_screen_is_drawn_once_for_each_reading() -> None:
    second = 0.0
    repaints = Repaints(1.0, lambda: second)

    def later(seconds: float, used: int = GIB) -> Snapshot:
        age = timedelta(seconds=seconds)
        read = view(0, sample=sample(0, memory_used=used), age=age)
        return replace(EMPTY, taken_at=NOW + age, nodes=(Node("node1", (read,)),))

    first = later(0)
    assert repaints.wants(EMPTY, first)
    repaints.note()
    assert not repaints.wants(first, later(0.9)), "readings are older, and that is all"
    assert not repaints.wants(first, replace(later(0.9), reasons=Unread())), "reasons are drawn with the next reading"
    assert repaints.wants(later(0.9), later(0.95, used=5)), "another reading"
    assert repaints.wants(first, replace(first, leads_here=True))
    assert repaints.wants(first, first), "asked for again"
    assert repaints.wants(later(0.9), later(1.0)), "time has passed"
    repaints.note()
    second = 1.05
    assert not repaints.wants_tick(), "the next reading is about to come"
    second = 1.25
    assert repaints.wants_tick(), "it did not come"
    repaints.note()
    second = 2.0
    assert not repaints.wants_tick()
    second = 2.25
    assert repaints.wants_tick()


class Unread(dict[JobId, Reason]):
    """Reasons that must not be compared: each would be made."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None


async def test_a_slow_console_draws_lines_without_graphs_and_no_seconds() -> None:
    console = Console(console=ConsoleSettings("off", slow=True))
    async with console.app.run_test(size=(200, 50)) as pilot:
        await show_history(console, pilot)
        console.app.pacer.hurry()
        await console.begin(pilot)
        lines = console.screen_text.splitlines()
        assert lines[0].rstrip().endswith(" 12:00")
        assert lines[1].split()[:2] == ["GPU", "UTIL"]
        assert "LAST MINUTES" not in console.screen_text
        assert not any(graph in line for line in lines[:10] for graph in "▁▂▃▄▅▆▇⣀⣤⣶⣿")
        assert log_pace(console.app) == SLOW.log


async def test_keys_are_not_slowed() -> None:
    async with on_screen(Console(console=ConsoleSettings("off", slow=True)), (120, 36)) as (console, pilot):
        await pilot.press("j", "j")
        assert any(line.startswith("▌") and " 105 starting" in line for line in console.screen_text.splitlines())


def test_textual_is_configured_before_it_is_imported() -> None:
    program = (
        "import sys; from gputui.console.startup import limit_frame_rate; from gputui.config import resolve;"
        "assert 'textual' not in sys.modules; limit_frame_rate(resolve());"
        "from textual import constants; print(constants.MAX_FPS, constants.TEXTUAL_ANIMATIONS)"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("TEXTUAL", "GPUTUI"))}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environ, "GPUTUI_CONSOLE_SLOW": "yes"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.split() == ["5", "none"]


@pytest.mark.usefixtures("alone")
def test_only_the_console_can_be_slow(run: Run) -> None:
    result = run("--slow", "queue")
    assert (result.code, "--slow is for the console alone" in result.err) == (2, True)
