"""Stages with other screens open, in which their commands work."""

from __future__ import annotations

from textual.widgets import Input

from gputui.tui.screens.dialogs import ColumnChooser
from gputui.tui.screens.forms import Submit
from gputui.tui.screens.logs import LogsScreen
from gputui.tui.screens.pages import Detail, GpuDetailScreen, ProcessesScreen
from gputui.tui.screens.process_view import ContainerScreen, GpuProcessesScreen
from gputui.tui.screens.timeline import TimelineScreen, TimelineTable
from gputui.tui.screens.what_if import WhatIf
from tests.tui.every import stages
from tests.tui.every.hand import Hand
from tests.tui.every.row import Step


async def columns(hand: Hand) -> None:
    """Open the dialog of columns."""
    hand.main.jobs.action_columns()
    table = (await hand.opened(ColumnChooser)).table
    await hand.until(lambda: len(table.keys) > 1)
    table.move_to(1)
    await hand.breathe()


async def fewer_columns(hand: Hand) -> None:
    """Hide one column."""
    await columns(hand)
    hand.top(ColumnChooser).table.action_toggle_column()
    await hand.breathe()


async def detail(hand: Hand) -> None:
    """Open the page of job 101."""
    await stages.at_job(101)(hand)
    hand.main.action_detail()
    await hand.opened(Detail)


async def waiting_detail(hand: Hand) -> None:
    """Open the page of job 107."""
    await stages.at_job(107)(hand)
    hand.main.action_detail()
    await hand.opened(Detail)


def gpu_page(index: int) -> Step:
    """Open the page of that GPU."""

    async def page(hand: Hand) -> None:
        await stages.at_gpu(index)(hand)
        hand.main.action_gpu()
        screen = await hand.opened(GpuDetailScreen)
        await hand.until(lambda: screen.gpu() is not None)

    page.__name__ = f"gpu_page_{index}"
    return page


async def processes(hand: Hand) -> None:
    """Open the processes of job 101."""
    await stages.at_job(101)(hand)
    hand.main.action_processes()
    await hand.opened(ProcessesScreen)
    await hand.until(lambda: "sh -c train" in hand.console.screen_text)


async def process_view(hand: Hand) -> None:
    """Open the process view, with the process in a container selected."""
    hand.app.action_gpu_processes()
    screen = await hand.opened(GpuProcessesScreen)
    await hand.until(lambda: (row := screen.row()) is not None and row.pid is not None)


async def container(hand: Hand) -> None:
    """Open the page of the foreign container, with the engine's details."""
    await process_view(hand)
    hand.top(GpuProcessesScreen).action_open()
    await hand.opened(ContainerScreen)
    await hand.until(lambda: "/data/bob" in hand.console.screen_text)


async def logs(hand: Hand) -> None:
    """Open the logs of both attempts of job 101 side by side."""
    await stages.at_job(101)(hand)
    hand.main.logs.action_attempts()
    await hand.opened(LogsScreen)


async def form(hand: Hand) -> None:
    """Open the submit form, with a command in it."""
    hand.main.action_submit()
    screen = await hand.opened(Submit)
    screen.query_one("#command", Input).value = "true"
    await hand.pilot.pause()
    assert screen.draft()["command"] == "true"


async def untouched_form(hand: Hand) -> None:
    """Open the submit form."""
    hand.main.action_submit()
    await hand.opened(Submit)


async def recalled(hand: Hand) -> None:
    """Open the form with an earlier submission."""
    await form(hand)
    screen = hand.top(Submit)
    screen.parts[0].action_older(1)
    await hand.until(lambda: screen.draft()["image"] == "earlier")


async def proposed(hand: Hand) -> None:
    """Propose a higher priority for job 107."""
    await stages.at_job(107)(hand)
    await hand.press("plus")
    await hand.opened(WhatIf)


async def timeline(hand: Hand) -> None:
    """Open the timeline with its plan, and the cursor on GPU 0."""
    hand.main.action_timeline()
    screen = await hand.opened(TimelineScreen)
    table = screen.query_one(TimelineTable)
    await hand.until(lambda: screen.timeline is not None and table.scale.cells > 1)
    await hand.breathe()
    table.move_to(0)
    await hand.breathe()


async def timeline_later(hand: Hand) -> None:
    """Move the timeline on, and select the second bar of its row."""
    await timeline(hand)
    table = hand.top(TimelineScreen).query_one(TimelineTable)
    table.action_bar(1)
    table.action_look(1)
    await hand.breathe()
