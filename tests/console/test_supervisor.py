"""A failed screen is reopened, wherever it failed, until it has failed too often."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import field
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from gputui.console import console
from gputui.console.console import MOST, ConsoleApp, ScreenFailedError, ScreenSupervisor
from gputui.domain.settings import Settings
from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.engine.actions.actions import Actions
from gputui.engine.feed import Feed
from gputui.engine.loop import WITHIN, FaultCount
from gputui.tui.actions import ExitChoice
from gputui.tui.app import PAGES
from gputui.tui.services import Services
from tests.cases import cases
from tests.factories import ACTOR, FakeClock
from tests.fake_backend import FakeBackend
from tests.memory_store import MemoryJobStore
from tests.tui.console import FakeLogs

LOG = Path("/state/gputui.log")


def fail() -> None:
    raise KeyError("here")


class Said(Message):
    """Message to a screen."""


class Worded(Widget):
    """Widget that fails at a place chosen by the test."""

    def on_said(self) -> None:
        raise KeyError("in a handler")


class LastWords(Widget):
    """Screen that fails only as it ends."""

    def on_unmount(self) -> None:
        raise KeyError("in its last words")


class Undrawn(Widget):
    """Screen that cannot be drawn."""

    def render(self) -> str:
        raise KeyError("in drawing")


class Uncomposed(Widget):
    """Screen whose widgets cannot be created."""

    def compose(self) -> ComposeResult:
        fail()
        yield Undrawn()


class Screen(ConsoleApp):
    """Console without a terminal that runs an action once it is painted."""

    then: Callable[[Screen], Awaitable[object] | None]

    @property
    def is_on_terminal(self) -> bool:
        return True

    @property
    def has_hung_up(self) -> bool:
        return False

    async def run_async(self, **_: Any) -> ExitChoice | None:
        return await super().run_async(headless=True, size=(80, 24))

    def on_ready(self) -> None:  # Textual calls that of the base class too
        self.call_later(self.call_later, self.act)

    async def act(self) -> None:
        if (waiting := self.then(self)) is not None:
            await waiting

    def on_said(self) -> None:
        raise KeyError("in a handler")


Act = Callable[[Screen], Awaitable[object] | None]


def made(feed: Feed | None = None) -> Screen:
    clock = FakeClock()
    backend = FakeBackend(Actions(MemoryJobStore(), clock, ACTOR), FakeLogs())
    return Screen(feed or Feed(), Services(backend, Settings(), clock, PAGES))


class OpenFeed(Feed):
    """Feed that exposes its subscribers."""

    hearers: list[Callable[[Snapshot], None]] = field(default_factory=list)

    def subscribe(self, tell: Callable[[Snapshot], None]) -> Callable[[], None]:
        unsubscribe = super().subscribe(tell)
        self.hearers.append(tell)

        def leave() -> None:
            unsubscribe()
            if tell in self.hearers:
                self.hearers.remove(tell)

        return leave


class Screens:
    """Screens of which the first ones run an action once they are painted; the one after them is closed at once."""

    def __init__(self, *acts: Act) -> None:
        self.acts = list(acts)
        self.made: list[Screen] = []
        self.messages: list[str] = []
        self.feed = OpenFeed()
        self.reopening = ScreenSupervisor(self.make, LOG)

    def make(self) -> Screen:
        app = made(self.feed)
        app.then = self.acts[len(self.made)] if len(self.made) < len(self.acts) else self.leave
        self.made.append(app)
        return app

    def leave(self, app: Screen) -> None:
        self.messages += [app.messages.newest.text] if app.messages.newest else []
        app.exit(ExitChoice.HAND_OVER, return_code=7)

    async def run(self) -> tuple[ExitChoice | None, int]:
        async with asyncio.timeout(60):
            return await self.reopening.run()


def in_a_handler_of_the_app(app: Screen) -> None:
    app.post_message(Said())


async def in_a_handler_of_a_widget(app: Screen) -> None:
    await app.screen.mount(widget := Worded())
    widget.post_message(Said())


def in_a_timer(app: Screen) -> None:
    app.set_timer(0.001, fail)


def in_a_timer_of_the_screen(app: Screen) -> None:
    app.screen.set_interval(0.001, fail)


def in_a_worker(app: Screen) -> None:
    async def work() -> None:
        fail()

    app.run_worker(work())


def in_a_thread_of_a_worker(app: Screen) -> None:
    app.run_worker(fail, thread=True)


def in_compose(app: Screen) -> None:
    app.screen.mount(Uncomposed())


async def in_last_words(app: Screen) -> None:
    await app.screen.mount(widget := LastWords())
    widget.remove()


def in_a_callback(app: Screen) -> None:
    app.screen.call_after_refresh(fail)


def in_a_watcher(app: Screen) -> None:
    app.watch(app, "snapshot", fail, init=False)
    app.snapshot = EMPTY


def in_drawing(app: Screen) -> None:
    app.screen.mount(Undrawn())


FAULTS = [
    in_a_handler_of_the_app,
    in_a_handler_of_a_widget,
    in_a_timer,
    in_a_timer_of_the_screen,
    in_a_worker,
    in_a_thread_of_a_worker,
    in_compose,
    in_last_words,
    in_a_callback,
    in_a_watcher,
    in_drawing,
]


@pytest.fixture(autouse=True)
def _no_collections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the objects of pytest frozen: a collection over all of them takes a quarter of a second."""
    if "collects" not in request.fixturenames:
        for name in ("freeze", "unfreeze", "collect"):
            monkeypatch.setattr(gc, name, lambda: 0)


@pytest.fixture
def collects() -> Iterator[None]:
    """Let the screens of a test freeze and collect objects, and freeze those of pytest again."""
    yield
    gc.freeze()


@cases("fails", FAULTS)
async def test_a_screen_that_fails_anywhere_is_opened_again_and_reports_it(
    fails: Act, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    screens = Screens(fails)
    assert await screens.run() == (ExitChoice.HAND_OVER, 7)
    assert len(screens.made) == 2
    fault = screens.made[0].fault
    assert isinstance(fault, KeyError)
    told = f"The screen failed and was opened again: KeyError: {fault}. See the log: {LOG}"
    assert screens.messages == [told]
    assert [happening.text for happening in screens.made[1].notifier.log] == [told]
    assert "Traceback" in caplog.text
    assert f"KeyError: {fault}" in caplog.text


async def test_the_scheduler_begins_though_the_screen_cannot_be_created() -> None:
    def make() -> ConsoleApp:
        raise OSError("no forms today")

    reopening = ScreenSupervisor(make, LOG)
    with pytest.raises(ScreenFailedError, match=rf"failed {MOST + 1} times.* OSError: no forms today") as info:
        await reopening.run()
    assert reopening.painted.is_set()
    assert isinstance(info.value.fault, OSError)


async def test_a_screen_that_always_fails_ends_with_its_last_fault() -> None:
    screens = Screens(*[in_a_timer] * (MOST + 1))
    with pytest.raises(ScreenFailedError, match=r"the last time by KeyError: 'here' \(/state/gputui.log tells more\)"):
        await screens.run()
    assert len(screens.made) == MOST + 1


async def test_a_screen_in_a_browser_is_not_reopened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Screen, "is_on_terminal", False)
    screens = Screens(in_a_timer)
    with pytest.raises(ScreenFailedError, match=r"^the screen failed: KeyError"):
        await screens.run()
    assert len(screens.made) == 1


async def test_a_request_to_leave_closes_the_current_screen() -> None:
    screens = Screens(in_a_timer, lambda _: screens.reopening.leave(ExitChoice.STOP, 143))
    assert await screens.run() == (ExitChoice.STOP, 143)
    assert len(screens.made) == 2


async def test_a_failing_screen_is_not_reopened_after_a_request_to_leave() -> None:
    def both(app: Screen) -> None:
        app._handle_exception(KeyError("first"))  # noqa: SLF001 - a fault of Textual as it runs this
        screens.reopening.leave(ExitChoice.STOP, 143)

    screens = Screens(both)
    assert await screens.run() == (ExitChoice.STOP, 143)
    assert len(screens.made) == 1


async def test_a_request_to_leave_between_two_screens_opens_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()

    def finish(timeout: float) -> bool:
        asyncio.run_coroutine_threadsafe(leave(), loop).result(timeout + 20)
        return True

    async def leave() -> None:
        screens.reopening.leave(ExitChoice.STOP, 143)

    def fail_with_an_action_under_way(app: Screen) -> None:
        monkeypatch.setattr(app.actions, "finish", finish)
        in_a_timer(app)

    screens = Screens(fail_with_an_action_under_way)
    assert await screens.run() == (ExitChoice.STOP, 143)
    assert len(screens.made) == 1


async def test_earlier_messages_are_kept() -> None:
    def note(app: Screen) -> None:
        app.notifier.note("information", "job 7 has ended")
        in_a_timer(app)

    screens = Screens(note)
    await screens.run()
    texts = [happening.text for happening in screens.made[1].notifier.log]
    assert texts[0] == "job 7 has ended"
    assert len(texts) == 2


async def test_a_fault_after_the_exit_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def leave(app: Screen) -> None:
        await app.screen.mount(LastWords())
        app.exit(ExitChoice.HAND_OVER, return_code=0)

    screens = Screens(leave)
    assert (await screens.run())[0] is ExitChoice.HAND_OVER
    assert len(screens.made) == 1
    assert "in its last words" in caplog.text


async def test_a_screen_that_fails_as_it_ends_gets_no_more_messages() -> None:
    async def twice(app: Screen) -> None:
        await app.screen.mount(LastWords())
        in_a_timer(app)

    screens = Screens(twice)
    assert await screens.run() == (ExitChoice.HAND_OVER, 7)
    assert len(screens.made) == 2
    assert screens.feed.hearers == []


async def test_a_failed_screen_that_never_returns_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "ENDS_WITHIN", 0.05)

    async def fail_and_wait(app: Screen) -> None:
        app.screen.set_timer(0.001, fail)
        await asyncio.Event().wait()

    screens = Screens(fail_and_wait)
    assert await screens.run() == (ExitChoice.HAND_OVER, 7)
    assert len(screens.made) == 2


@pytest.mark.usefixtures("collects")
async def test_a_failed_screen_is_freed_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("gputui.console.console"), "disabled", True)  # pytest keeps what is logged
    shown, alive = list[weakref.ref[Screen]](), list[bool]()

    def leave(app: Screen) -> None:
        alive.extend(each() is not None for each in shown)
        app.exit(ExitChoice.PLAIN)

    def make() -> Screen:
        app = made()
        app.then = leave if shown else in_a_timer
        shown.append(weakref.ref(app))
        return app

    await ScreenSupervisor(make, LOG).run()
    assert alive == [False, True]


def test_the_fourth_fault_within_a_minute_ends_the_console() -> None:
    faults = FaultCount(MOST)
    assert [faults.add(at) for at in (0.0, 1.0, 2.0)] == [True] * MOST
    assert not faults.add(WITHIN)


def test_old_faults_do_not_count() -> None:
    faults = FaultCount(MOST)
    assert all(faults.add(number * (WITHIN / MOST + 0.1)) for number in range(50))
    assert all(faults.add(at) for at in (10_000.0, 10_000.1, 10_000.2))
    assert not faults.add(10_000.3)
