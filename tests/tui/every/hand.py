"""Keys and mouse of a console, each of which waits only for its own effect."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from textual import events
from textual.binding import Binding
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from gputui.domain.snapshot import Snapshot
from gputui.tui.actions import ExitChoice
from gputui.tui.app import Gputui
from gputui.tui.commands import Command
from gputui.tui.screens.log_pane import LogPane
from gputui.tui.screens.main import Main
from gputui.tui.screens.menu import CommandFinder, find_commands, offers
from gputui.tui.widgets.gpu_grid import GpuGrid
from gputui.tui.widgets.job_table import JobTable
from gputui.tui.widgets.status_bars import KeyBar
from tests.tui.console import Console

PATIENCE = 60.0
S = TypeVar("S", bound=Screen[Any])
MouseKind = type[events.MouseEvent]


class Hand:
    """Operator with keys and a mouse, who observes the screen."""

    def __init__(self, console: Console, pilot: Pilot[ExitChoice]) -> None:
        self.console = console
        self.pilot = pilot
        self.checked = len(console.audited())
        """Number of actions checked so far."""

    @property
    def app(self) -> Gputui:
        return self.console.app

    @property
    def main(self) -> Main:
        main = self.app.screen_stack[0]
        assert isinstance(main, Main)
        return main

    @property
    def queue(self) -> JobTable:
        return self.main.query_one(JobTable)

    @property
    def grid(self) -> GpuGrid:
        return self.main.query_one(GpuGrid)

    @property
    def log(self) -> LogPane:
        return self.app.screen.query_one(LogPane)

    def bindings(self) -> Iterable[Binding]:
        """Return the bindings in effect, one for each key."""
        return [active.binding for active in self.app.screen.active_bindings.values()]

    def bound(self) -> set[str]:
        """Return the ids of all bindings of the focused widget and its ancestors, including disabled ones.

        In a dialog those of the app work only if they come before all others.
        """
        screen = self.app.screen
        declared = [
            each
            for node in (self.app.focused or screen).ancestors_with_self
            for kind in type(node).mro()
            for each in vars(kind).get("BINDINGS", ())
            if not (screen.is_modal and node is self.app) or (isinstance(each, Binding) and each.priority)
        ]
        return {each.id for each in declared if isinstance(each, Binding) and each.id}

    def top(self, kind: type[S]) -> S:
        """Return the topmost screen, which is one of these kinds."""
        assert isinstance(self.app.screen, kind), self.app.screen
        return self.app.screen

    async def opened(self, kind: type[S]) -> S:
        """Return the screen of that kind, once it and its widgets are mounted."""
        await self.until(lambda: isinstance(self.app.screen, kind) and self.app.screen.is_mounted, kind.__name__)
        await self.breathe()
        return self.top(kind)

    async def breathe(self) -> None:
        """Wait for the console's pending work."""
        await self.pilot.pause(0)

    async def until(self, condition: Callable[[], bool], what: str = "") -> None:
        """Wait until the condition holds."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await self.pilot.pause(0.001)
        except TimeoutError:
            raise AssertionError(f"never: {what}\n{self.console.screen_text}") from None

    async def read_log(self) -> None:
        """Wait until the main screen shows all of the log that it follows."""
        pane, logs = self.main.query_one(LogPane), self.console.logs

        def is_read() -> bool:
            follower = pane.follower
            return follower is None or logs.is_read(follower.job_id, follower.attempt)

        await self.until(lambda: self.main.logs.followed is not None and is_read(), "the log is read")
        pane.tick()
        await self.until(lambda: not pane.paints_soon and pane.reading.search.is_done, "the log is painted")
        await self.breathe()

    # keys

    async def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            self.app.post_message(events.Key(key, key if len(key) == 1 else None))
            await self.breathe()

    async def choose(self, command: Command) -> None:
        """Open the palette, type the command's name, and press Enter."""
        name = f"{command.group}: {command.title}"
        best = find_commands(offers(self.app.screen), name)[0].offer
        assert best.command is command, f"{name} is the first that is found"
        await self.press("ctrl+p" if isinstance(self.app.focused, Input) else "colon")
        palette = await self.opened(CommandFinder)
        palette.query_one(Input).value = name
        await self.breathe()
        await self.press("enter")
        await self.until(lambda: self.app.screen is not palette, "the palette closes")

    # the mouse

    def _point(self, kind: MouseKind, x: int, y: int, button: int = 1) -> None:
        self.app.post_message(kind(None, x, y, 0, 0, button, False, False, False, x, y))

    async def click_at(self, x: int, y: int, times: int = 1) -> None:
        """Click on that cell of the screen."""
        for _ in range(times):
            self._point(events.MouseDown, x, y)
            self._point(events.MouseUp, x, y)
        await self.breathe()

    async def click(self, widget: Widget, x: int, y: int, times: int = 1) -> None:
        """Click on that cell of a widget."""
        await self.click_at(widget.region.x + x, widget.region.y + y, times)

    async def right_click(self, widget: Widget, x: int, y: int) -> None:
        """Click on that cell with the right button."""
        at = (widget.region.x + x, widget.region.y + y)
        self._point(events.MouseDown, *at, 3)
        self._point(events.MouseUp, *at, 3)
        await self.breathe()

    async def point_at(self, x: int, y: int) -> None:
        """Move the pointer to that cell of the screen."""
        self._point(events.MouseMove, x, y, 0)
        await self.breathe()

    async def wheel(self, widget: Widget, *, down: bool = True) -> None:
        """Turn the wheel by a notch over the middle of a widget."""
        at = widget.region.center
        self._point(events.MouseScrollDown if down else events.MouseScrollUp, int(at[0]), int(at[1]), 0)
        await self.breathe()

    async def drag(self, widget: Widget, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Press the button there, move, and release it."""
        (x, y), (to_x, to_y) = start, end
        left, top = widget.region.offset
        self._point(events.MouseDown, left + x, top + y)
        await self.breathe()
        self._point(events.MouseMove, left + to_x, top + to_y)
        await self.breathe()
        self._point(events.MouseUp, left + to_x, top + to_y)
        await self.breathe()

    def words_at(self, command: Command) -> tuple[int, int] | None:
        """Return the position of the command's words in the key bar; None if it is not offered."""
        bar, line = (shown := self.app.screen.query_one(KeyBar)).region, shown.render_line(0).text
        told = self.app.keymap.told(command)
        words = re.search(rf"(?<!\S){re.escape(f'{told.first_key} {told.title}')}(?!\S)", line)
        return (bar.x + words.end() - 1, bar.y) if words else None

    async def click_words(self, command: Command) -> None:
        """Click on the command's words in the key bar."""
        await self.until(lambda: self.words_at(command) is not None, f"the key bar has {command.title}")
        at = self.words_at(command)
        assert at is not None
        await self.click_at(*at)


@asynccontextmanager
async def at_work(
    console: Console, size: tuple[int, int] = (240, 50), snapshot: Snapshot | None = None
) -> AsyncIterator[Hand]:
    """Yield the operator of a console that shows its snapshot, or this one, with the focus on the queue."""
    async with console.app.run_test(size=size) as pilot:
        hand = Hand(console, pilot)
        console.feed.publish(snapshot or console.snapshot)
        await hand.until(lambda: len(hand.main.queue.keys) > 0, "the picture is shown")
        await hand.until(lambda: hand.app.focused is hand.queue, "the queue has the focus")
        yield hand
