"""The console of a busy server, tortured with random keys, clicks and sizes: no exception, memory flat, never stuck."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from textual import events
from textual.geometry import Size

from gputui.tui.app import Gputui
from gputui.tui.commands import COMMANDS
from gputui.tui.leave import Leave
from gputui.tui.messages import WishFailed
from tests.torture.busy_server import BusyServer, Floods

pytestmark = pytest.mark.torture

SEED = 20260302
SECONDS = 6.0
"""Of CI's torture; `--torture 100` is ten minutes."""
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
LONGEST = 1.0
"""Seconds for which the event loop may work without coming round."""
WARM = 1 / 3
MOST_GROWTH = 40.0
"""MB by which memory may grow after the first third."""


class Tortured(Gputui):
    """A console that nobody can leave, and that keeps what its border caught."""

    caught: list[str]

    def _leave(self, how: Leave | None) -> None:
        del how

    def on_wish_failed(self, message: WishFailed) -> None:
        if message.error.where == "gputui":
            self.caught.append(str(message.error))
        super().on_wish_failed(message)


@dataclass
class Measured:
    """What was seen meanwhile."""

    gaps: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Seconds of its own work between two rounds of the event loop: what other programs do does not count."""
    resident: list[float] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)
    screens: Counter[str] = field(default_factory=Counter)

    async def watch(self, step: float = 0.01) -> None:
        """Note how much later than wished the event loop comes round, and twice a second the memory."""
        sampled = 0.0
        while True:
            before, worked = time.monotonic(), time.thread_time()
            await asyncio.sleep(step)
            now = time.monotonic()
            self.gaps.append(now - before - step)
            self.busy.append(time.thread_time() - worked)
            if now - sampled >= 0.5:
                sampled = now
                self.resident.append(resident())

    @property
    def growth(self) -> float:
        """MB between the means of the second third and of the last."""
        third = max(1, round(len(self.resident) * WARM))
        middle, last = self.resident[third : 2 * third], self.resident[-third:]
        return sum(last) / len(last) - sum(middle) / max(1, len(middle))

    def __str__(self) -> str:
        gaps = sorted(self.gaps)
        return (
            f"{sum(self.keys.values())} keys on {dict(self.screens)}; "
            f"gap p50 {1000 * gaps[len(gaps) // 2]:.0f} ms, p99 {1000 * gaps[len(gaps) * 99 // 100]:.0f} ms, "
            f"max {1000 * gaps[-1]:.0f} ms, max of own work {1000 * max(self.busy):.0f} ms; memory "
            f"{[round(mb) for mb in self.resident[:: len(self.resident) // 12 or 1]]} MB, growth {self.growth:.1f} MB"
        )


def resident() -> float:
    """MB of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Hands:
    """Somebody at the keyboard and the mouse, as the terminal's driver reports it: nothing is waited for."""

    def __init__(self, app: Tortured, chosen: random.Random, measured: Measured) -> None:
        self._app = app
        self._chosen = chosen
        self._measured = measured

    def _send(self, *sent: events.Event) -> None:
        driver = self._app._driver
        assert driver is not None
        for event in sent:
            event.set_sender(self._app)
            driver.send_message(event)

    def press(self, key: str) -> None:
        self._measured.keys[key] += 1
        self._send(events.Key(key, CHARACTERS.get(key, key if len(key) == 1 else None)))

    def resize(self, size: Size) -> None:
        assert self._app._driver is not None
        self._app._driver._size = size
        self._send(events.Resize(size, size))

    def click(self) -> None:
        x, y = (self._chosen.randrange(max(1, most)) for most in self._app.size)
        kinds = (events.MouseMove, *(events.MouseDown, events.MouseUp) * self._chosen.choice((1, 1, 2)))
        self._send(*(kind(None, x, y, 0, 0, 1, False, False, False, x, y) for kind in kinds))

    def scroll(self) -> None:
        x, y = (self._chosen.randrange(max(1, most)) for most in self._app.size)
        kind = self._chosen.choice((events.MouseScrollDown, events.MouseScrollUp))
        self._send(kind(None, x, y, 0, 0, 0, False, False, False, x, y))

    async def play(self, seconds: float) -> None:
        """Press, click, scroll, type and resize at random, thirty times a second."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._app._exception is None:
            self._measured.screens[type(self._app.screen).__name__] += 1
            what = self._chosen.random()
            if what < 0.01:
                self.resize(Size(*self._chosen.choice(SIZES)))
            elif what < 0.04:
                self.click()
            elif what < 0.06:
                self.scroll()
            elif what < 0.1:
                self.press("escape")
            else:
                self.press(self._chosen.choice(TYPED if what < 0.2 else KEYS))
            if len(self._app.screen_stack) > 3:
                self.press("escape")
            await asyncio.sleep(PAUSE)


@pytest.mark.timeout(1800)
async def test_a_busy_console_stands_random_keys(
    tmp_path: Path, torture: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)  # what a random key saves, it saves here
    caplog.set_level(logging.ERROR)
    server = BusyServer(tmp_path, SEED)
    app = Tortured(
        server.feed, server.actions, Floods(), server.settings, clock=server.clock, host="here", user="alice"
    )
    app.caught = []
    app.animation_level = "none"
    measured = Measured()
    async with app.run_test(size=(200, 50)) as pilot:
        hosting = asyncio.create_task(server.host.run())
        living = asyncio.create_task(server.live())
        while not app.snapshot.jobs:
            await pilot.pause(0.05)
        gc.collect()
        watching = asyncio.create_task(measured.watch())
        await Hands(app, random.Random(SEED), measured).play(SECONDS * torture)
        print(measured)
        for task in (watching, living):
            task.cancel()
        server.host.stop()
        await asyncio.wait_for(hosting, 20)
    server.close()
    assert app.caught == []
    assert [record.getMessage() for record in caplog.records] == []
    assert max(measured.busy) < LONGEST, measured
    assert measured.growth < MOST_GROWTH, measured
    assert sum(measured.keys.values()) > SECONDS * torture, measured
