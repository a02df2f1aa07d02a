"""Log on the screen of a console over fakes, ready for keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from gputui.tui.actions import ExitChoice
from gputui.tui.screens.log_pane import LogPane
from tests.tui.console import Console, until

NUMBERED = [b"line %d" % i for i in range(300)]


async def begun(console: Console, pilot: Pilot[ExitChoice], lines: list[bytes]) -> LogPane:
    """Open the log of job 101 on the main screen, with the focus."""
    console.logs.lines[101] = lines
    await console.begin(pilot)
    await console.read_log(pilot, 101)
    pane = console.app.screen.query_one(LogPane)
    pane.focus()
    return pane


async def looked(pane: LogPane, pilot: Pilot[ExitChoice]) -> None:
    """Wait until everything is searched and loaded."""
    await until(pilot, lambda: pane.reading.search.is_done and not pane.is_loading and not pane.paints_soon)
    await pilot.pause()


@asynccontextmanager
async def reading(
    lines: list[bytes], size: tuple[int, int] = (100, 40), console: Console | None = None
) -> AsyncIterator[tuple[Console, Pilot[ExitChoice], LogPane]]:
    """Yield a console with that log of job 101 on its main screen and in focus, its pilot, and the pane."""
    console = console or Console()
    async with console.app.run_test(size=size) as pilot:
        yield console, pilot, await begun(console, pilot, lines)
