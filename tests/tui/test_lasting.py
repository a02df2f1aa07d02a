"""A console that runs for weeks leaks no memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import pytest
from msgspec.structs import asdict, replace
from textual._styles_cache import StylesCache
from textual.pilot import Pilot
from textual.screen import Screen
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from gputui.domain.action import SetPriority
from gputui.domain.errors import GputuiError
from gputui.domain.gpu_history import STEP, GpuHistory
from gputui.domain.job import Job
from gputui.domain.snapshot import Snapshot
from gputui.engine.actions.actions import Actions
from gputui.tui.actions import ExitChoice, Undo
from gputui.tui.screens.log_pane import HISTORY
from gputui.tui.screens.main import Main
from gputui.tui.widgets.queue_rows import Sorting
from tests.factories import ACTOR, FakeClock, job
from tests.lane import in_its_lane
from tests.memory_store import MemoryJobStore
from tests.tui import sample
from tests.tui.console import Console, on_screen, until
from tests.tui.pictures import quiet
from tests.waiting import PATIENCE

SCREENS = {
    "help": "question_mark",
    "detail": "enter",
    "timeline": "T",
    "logs": "L",
    "form": "s",
    "columns": "vertical_line",
    "palette": "colon",
    "notices": "exclamation_mark",
    "themes": "ctrl+t",
    "what if": "plus",
}
"""Screens by their keys on the main screen."""
MORE_SCREENS = {
    "processes": "X",
    "reserve": "B",
    "GPU": "i",
    "edit": "j j j j j e",
    "clone": "C",
    "again": "E",
    "timeline what if": "T plus",
}


HALVES = [in_its_lane(0, is_long=False), in_its_lane(1, is_long=True)]
"""Halves of the screens: the test line has the other one in each of two tests."""


async def opened(console: Console, pilot: Pilot[ExitChoice], key: str) -> weakref.ref[Screen[object]]:
    """Open a screen and close it again."""
    await console.press(pilot, key)
    screen = console.app.screen
    assert screen is not console.app.screen_stack[0]
    found = weakref.ref(screen)
    while console.app.screen is screen:
        await console.press(pilot, "escape")
    return found


@pytest.fixture
def few_objects() -> None:
    """Let collections leave out what other tests and pytest keep: the tests collect a hundred times."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("few_objects")
async def test_drawn_lines_are_freed() -> None:
    async with on_screen(Console(what_if="always"), (120, 36)) as (console, pilot):
        for key in SCREENS.values():
            await opened(console, pilot, key)
        await console.press(pilot, "question_mark")
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]
        assert any(issubclass(kind, ScrollBar) for kind in kinds)
        widgets = sum(issubclass(kind, Widget) for kind in kinds)
        assert 0 < sum(issubclass(kind, StylesCache) for kind in kinds) <= widgets


@pytest.mark.usefixtures("few_objects")
@pytest.mark.parametrize("number", HALVES)
async def test_a_closed_screen_is_freed(number: int) -> None:
    async with on_screen(Console(what_if="always"), (120, 36)) as (console, pilot):
        for name, key in list(SCREENS.items())[number::2]:
            await opened(console, pilot, key)
            threads, widgets = threading.active_count(), _living_widgets()
            closed = await opened(console, pilot, key)
            await console.press(pilot, "j", "k", "tab", "shift+tab", "home")
            await console.show(pilot, console.snapshot)
            await until(pilot, partial(_is_gone, closed, threads))
            assert _living_widgets() <= widgets, name


def _living_widgets() -> int:
    gc.collect()
    return sum(issubclass(type(each), Widget) for each in gc.get_objects())


def _is_gone(closed: weakref.ref[Screen[object]], threads: int) -> bool:
    """A forecast that is no longer wanted stops at its next step."""
    gc.collect()
    return closed() is None and threading.active_count() <= threads


def test_readings_do_not_accumulate_after_the_clock_is_set_back() -> None:
    history, late = GpuHistory(), sample.rich_snapshot()
    history.add(late)
    for seconds in range(3600):
        history.add(replace(late, taken_at=late.taken_at - timedelta(hours=2) + timedelta(seconds=seconds)))
    kept = history._stepper._now.values()  # noqa: SLF001 - what piled up is seen nowhere else
    assert max(map(len, kept)) <= STEP.total_seconds() + 1


async def test_the_number_of_remembered_searches_is_bounded() -> None:
    async with on_screen(Console(), (120, 36)) as (console, pilot):
        kept = HISTORY["/"] = [f"older {number}" for number in range(50)]
        await console.press(pilot, "tab", "slash", *"new", "enter")
        assert kept[-2:] == ["older 49", "new"]
        assert len(kept) == 50
    HISTORY.clear()


def test_actions_on_many_jobs_are_kept_for_undo_only_as_far_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gputui.tui.actions.MOST", 20)
    store = MemoryJobStore()
    ids = store.submit([job(number) for number in range(1, 7)], actor=ACTOR)
    actions = Actions(store, FakeClock(), ACTOR)
    undo = Undo(actions, dict)
    for value in range(10):
        undo.carry_out(SetPriority(ids, value))
    for _ in range(3):
        undo.last()
    assert store.get(ids[0]).priority == 6
    with pytest.raises(GputuiError, match="Nothing to undo"):
        undo.last()


async def test_the_queue_of_the_last_scores_is_freed_with_the_next_one() -> None:
    console = Console()
    async with console.app.run_test(size=(200, 50)) as pilot:
        first = replace(console.snapshot)
        await console.show(pilot, first)
        main = console.app.screen
        assert isinstance(main, Main)
        main.queue.rows.sort_by(Sorting("score"))
        main.refresh_time()
        while not main.queue.rows.scores:
            await pilot.pause(0.01)
        main.queue.rows.sort_by(Sorting())
        kept = weakref.ref(first)
        del first
        await console.show(pilot, replace(console.snapshot))
        await console.show(pilot, replace(console.snapshot))
        for _ in range(100):
            gc.collect()
            if kept() is None:
                break
            await pilot.pause(0.05)
        assert kept() is None


class Seen(Job, frozen=True, dict=True):
    """Job whose references can be observed."""


@asynccontextmanager
async def seen(what_if: str = "off") -> AsyncIterator[tuple[Console, Pilot[ExitChoice], weakref.ref[Seen]]]:
    """Return a console that shows a queue with a job that no other object references."""
    async with on_screen(Console(what_if=what_if), (120, 36)) as (console, pilot):
        yield console, pilot, await show_seen(console, pilot, console.snapshot)


async def show_seen(console: Console, pilot: Pilot[ExitChoice], usual: Snapshot) -> weakref.ref[Seen]:
    """Show the usual queue with a new job in place of the last one."""
    *others, last = usual.jobs
    one = Seen(**asdict(last))
    await console.show(pilot, replace(usual, jobs=(*others, one)))
    return weakref.ref(one)


async def let_go(console: Console, pilot: Pilot[ExitChoice], kept: weakref.ref[Seen], name: str = "") -> None:
    """Wait until no object references it any more; other queues are shown meanwhile."""
    try:
        async with asyncio.timeout(PATIENCE):
            while kept() is not None:
                await console.show(pilot, replace(console.snapshot))
                await pilot.pause(0.02)
    except TimeoutError:
        raise AssertionError(f"{name} keeps the queue") from None


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Switch off the collection of cycles: only unreferenced objects go."""
    gc.disable()
    yield
    gc.enable()


async def test_the_queue_of_marked_jobs_is_freed_once_none_is_marked() -> None:
    async with seen() as (console, pilot, kept):
        await console.press(pilot, "space", "space", "k", "escape")
        await let_go(console, pilot, kept)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("number", HALVES)
async def test_a_closed_screen_keeps_no_queue_though_something_keeps_the_screen(number: int) -> None:
    """The garbage collector would free a cycle, but it runs only every few minutes."""
    async with seen(what_if="always") as (console, pilot, kept):
        usual = console.snapshot
        for name, keys in list({**SCREENS, **MORE_SCREENS}.items())[1 - number :: 2]:
            await console.press(pilot, *keys.split())
            closed = console.app.screen
            assert closed is not console.app.screen_stack[0], name
            await quiet(console, pilot)
            assert kept() is not None, name
            while len(console.app.screen_stack) > 1:
                await console.press(pilot, "escape")
            await let_go(console, pilot, kept, name)
            assert not closed.is_running, name
            await console.press(pilot, "home")
            kept = await show_seen(console, pilot, usual)
