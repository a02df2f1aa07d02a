"""The console of a busy server, tortured with random keys, clicks and sizes: no exception, memory flat, never stuck.

It leads, with scheduler, store and GPUs in its own process, as `gputui` does when it is started alone. A console beside
`gputui serve` does a part of that.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from pathlib import Path
from typing import TypeAlias
from weakref import WeakSet

import pytest
from textual import events
from textual.geometry import Size
from textual.pilot import Pilot
from textual.screen import Screen

from gputui.tui.actions import ExitChoice
from gputui.tui.app import PAGES
from gputui.tui.commands import COMMANDS
from gputui.tui.services import Services
from tests.fake_backend import FakeBackend
from tests.torture.busy_server import BusyServer, Floods
from tests.torture.measure import Measured, Rest, Tortured, within

pytestmark = pytest.mark.torture

SEED = 20260302
SECONDS = 3.0
"""Seconds of a run in CI; `--torture 100` takes five minutes."""
SIZES = ((80, 24), (120, 36), (200, 50), (300, 80), (40, 10), (20, 5), (1, 1))
TYPED = (*"abct019", "space", "slash", "full_stop", "comma", "minus", "tilde", "equals_sign", "enter", "escape", "tab")
KEYS = tuple(sorted({key for command in COMMANDS for key in command.keys}))
CHARACTERS = {
    "space": " ",
    "slash": "/",
    "full_stop": ".",
    "comma": ",",
    "minus": "-",
    "tilde": "~",
    "equals_sign": "=",
}
PAUSE = 1 / 30
RESTS = 30
AWAY_WITHIN = 10.0
"""Maximum seconds until a closed screen is freed."""
LONGEST, USUAL = 800, 250
"""Milliseconds for which the event loop may work in one round: at most, and in 99 % of rounds."""
LONG = 300.0
"""Seconds after which caches are full."""
MOST_GROWTH, MOST_AT_FIRST = 12.0, 40.0
"""MB by which memory in use may grow from the second third of a long run to the last, and of a short one."""
HOLES = 27.0
"""MB of holes that the first action about all jobs leaves, and no action after it: see `measure.in_use`."""

MORE = Counter({"widgets": 150, "on the screen": 3, "threads": 3, "tasks": 10})
"""Numbers of objects that may be alive at rest beyond the first third: a message holds its last sender."""


MouseKind: TypeAlias = type[events.MouseEvent]


def _mouse(kind: MouseKind, at: tuple[int, int], button: int = 1) -> events.MouseEvent:
    return kind(None, *at, 0, 0, button, False, False, False, *at)


class Hands:
    """Keyboard and mouse events as the terminal's driver sends them, without waits."""

    def __init__(self, app: Tortured, pilot: Pilot[ExitChoice], chosen: random.Random, measured: Measured) -> None:
        self._app = app
        self._pilot = pilot
        self._chosen = chosen
        self._measured = measured

    def _send(self, *sent: events.Event) -> None:
        told = " ".join(each.key if isinstance(each, events.Key) else type(each).__name__ for each in sent)
        self._measured.lately.append(f"{type(self._app.screen).__name__}:{told}")
        for event in sent:
            event.set_sender(self._app)
            self._app.post_message(event)

    def press(self, key: str) -> None:
        self._measured.keys[key] += 1
        self._send(events.Key(key, CHARACTERS.get(key, key if len(key) == 1 else None)))

    async def resize(self, size: Size) -> None:
        self._measured.lately.append(f"{size.width}x{size.height}")
        await self._pilot.resize_terminal(*size)

    def click(self) -> None:
        at, button = self._somewhere(), self._chosen.choice((1, 1, 1, 3))
        kinds = (events.MouseMove, *(events.MouseDown, events.MouseUp) * self._chosen.choice((1, 1, 2)))
        self._send(*(_mouse(kind, at, button) for kind in kinds))

    def drag(self) -> None:
        begun, *way, ended = (self._somewhere() for _ in range(5))
        self._send(
            _mouse(events.MouseDown, begun),
            *(_mouse(events.MouseMove, at) for at in way),
            _mouse(events.MouseUp, ended),
        )

    def scroll(self) -> None:
        kind = self._chosen.choice((events.MouseScrollDown, events.MouseScrollUp))
        self._send(_mouse(kind, self._somewhere(), 0))

    def _somewhere(self) -> tuple[int, int]:
        across, down = (self._chosen.randrange(max(1, most)) for most in self._app.size)
        return across, down

    async def play(self, seconds: float) -> None:
        """Press, click, drag, scroll, type and resize at random, thirty times a second."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._app.is_running:
            self._measured.screens[type(self._app.screen).__name__] += 1
            what = self._chosen.random()
            if what < 0.01:
                await self.resize(Size(*self._chosen.choice(SIZES)))
            elif what < 0.04:
                self.click()
            elif what < 0.05:
                self.drag()
            elif what < 0.06:
                self.scroll()
            elif what < 0.1:
                self.press("escape")
            else:
                self.press(self._chosen.choice(TYPED if what < 0.2 else KEYS))
            if len(self._app.screen_stack) > 3:
                self.press("escape")
            await asyncio.sleep(PAUSE)

    async def rest(self) -> None:
        """Close all screens, and measure the console at rest."""
        while (len(self._app.screen_stack) > 1 or self._app.input_queue.is_busy) and self._app.is_running:
            await asyncio.sleep(3 * PAUSE)  # what was opened last is there, and what was pressed last is done
            if self._app.screen.is_mounted and len(self._app.screen_stack) > 1:
                self._app.pop_screen()
        await asyncio.sleep(10 * PAUSE)
        for _ in range(round(AWAY_WITHIN / PAUSE)):
            if not self._is_leaving:
                break
            await asyncio.sleep(PAUSE)
        self._measured.rests.append(await Rest.of(self._app))

    @property
    def _is_leaving(self) -> bool:
        """Return whether a screen that was closed is still there: on a busy machine it takes its time to go."""
        app = self._app
        return any(each.is_running and each not in app.screen_stack for each in app.born if isinstance(each, Screen))


@pytest.mark.timeout(1800)
async def test_a_busy_console_survives_random_keys(
    tmp_path: Path, torture: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)  # what a random key saves, it saves here
    # or twenty thousand jobs as they were could be kept for undo, and how many is left to chance
    monkeypatch.setattr("gputui.tui.actions.MOST", 100)
    caplog.set_level(logging.ERROR)
    server = BusyServer(tmp_path, SEED)
    services = Services(FakeBackend(server.actions, Floods(), "here"), server.settings, server.clock, PAGES)
    app = Tortured(server.feed, services)
    app.caught, app.born = [], WeakSet()
    app.animation_level = "none"
    measured = Measured()
    async with app.run_test(size=(200, 50)) as pilot:
        hosting = asyncio.create_task(server.host.run())
        living = asyncio.create_task(server.live())
        while not app.snapshot.jobs:
            await pilot.pause(0.05)
        watching = asyncio.create_task(measured.watch())
        hands = Hands(app, pilot, random.Random(SEED), measured)
        for _ in range(RESTS if torture > 1 else 3):
            await hands.play(SECONDS * torture / (RESTS if torture > 1 else 3))
            await hands.rest()
        print(measured)
        for task in (watching, living):
            task.cancel()
        server.host.stop()
        await asyncio.wait_for(hosting, 60)
    server.close()
    assert app.caught == []
    assert [record.getMessage() for record in caplog.records] == []
    assert max(measured.busy) < LONGEST, measured
    assert within(measured.busy, 0.99) < USUAL, measured
    most = MOST_GROWTH if SECONDS * torture >= LONG else MOST_AT_FIRST
    assert measured.growth_used < most, measured
    assert measured.growth < most + HOLES, measured
    assert not measured.grown - MORE, f"{measured.grown}: {measured}"
    assert measured.keys.total() > SECONDS * torture, measured
