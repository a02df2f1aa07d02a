"""How a console is brought to the place where a command works."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat

from textual.widgets import Input

from gputui.domain.snapshot import Controls
from gputui.tui.screens.columns import ColumnChooser
from gputui.tui.screens.detail import Detail
from gputui.tui.screens.gpu import GpuDetail
from gputui.tui.screens.logs import LogsScreen
from gputui.tui.screens.processes import Processes
from gputui.tui.screens.submit import Submit
from gputui.tui.screens.timeline import TimelineScreen
from gputui.tui.screens.what_if import WhatIf
from gputui.tui.widgets.timeline_table import TimelineTable
from gputui.tui.work import Work
from tests.factories import uuid
from tests.tui.every.hand import Hand
from tests.tui.every.row import Step
from tests.tui.sample import many_jobs


async def queue(hand: Hand) -> None:
    """The queue has the focus, as from the start."""
    hand.main.action_tab("queue")
    await hand.breathe()


async def long_work(hand: Hand) -> None:
    """Something that has taken a minute already is under way."""
    await queue(hand)
    times = chain([0.0], repeat(60.0))
    work = Work("Counting", "beans", clock=lambda: next(times))
    work.begin()
    hand.app.works.watch(work)
    hand.app.works.look()
    await hand.breathe()


def at_job(job_id: int) -> Step:
    """The queue's cursor is on that job."""

    async def at(hand: Hand) -> None:
        if hand.app.focused is not hand.queue or hand.queue.sheet is not hand.queue.live:
            await queue(hand)
        hand.queue.move_to(list(hand.queue.keys).index(job_id))
        await hand.breathe()

    at.__name__ = f"job_{job_id}"
    return at


def at_gpu(index: int) -> Step:
    """The grid has the focus, and its cursor is on that GPU."""

    async def at(hand: Hand) -> None:
        hand.grid.focus()
        hand.grid.move_to(list(hand.grid.keys).index(uuid(index)))
        await hand.breathe()

    at.__name__ = f"gpu_{index}"
    return at


def at_tab(name: str) -> Step:
    """The queue's pane shows that tab."""

    async def at(hand: Hand) -> None:
        hand.main.action_tab(name)
        await hand.until(lambda: name == "finished" or hand.queue.cursor is not None)

    at.__name__ = f"tab_{name}"
    return at


async def no_runs(hand: Hand) -> None:
    """The recurring job is paused."""
    number = next(iter(hand.console.store.recurring()))
    hand.console.actions.pause_recurring([number])
    recurring = tuple(hand.console.store.recurring().values())
    await hand.console.show(hand.pilot, replace(hand.console.snapshot, recurring=recurring))
    await at_tab("recurring")(hand)


async def paused(hand: Hand) -> None:
    """The scheduler is paused."""
    hand.console.actions.pause("kernel update")
    await hand.console.show(hand.pilot, replace(hand.console.snapshot, controls=Controls(True, "kernel update")))


async def marked(hand: Hand) -> None:
    """A job is marked."""
    await at_job(107)(hand)
    hand.main.action_mark()
    await hand.breathe()


async def filtered(hand: Hand) -> None:
    """Only some jobs are shown."""
    hand.main.query_one("#filter", Input).value = "bob"
    await hand.until(lambda: hand.main._rows.filter == "bob")


async def held(hand: Hand) -> None:
    """A job was held here."""
    await at_job(107)(hand)
    await hand.press("h")
    await hand.until(lambda: hand.console.store.get(107).held)
    await hand.console.settle(hand.pilot)


async def log_hidden(hand: Hand) -> None:
    """One pane is hidden."""
    hand.log.focus()
    await hand.breathe()
    hand.main.action_hide()
    await hand.breathe()


async def columns(hand: Hand) -> None:
    """The columns are chosen."""
    hand.main.action_columns()
    table = (await hand.opened(ColumnChooser))._table
    await hand.until(lambda: len(table.keys) > 1)
    table.move_to(1)
    await hand.breathe()


async def log(hand: Hand) -> None:
    """The log of job 101 is read, and has the focus."""
    pane = hand.log
    await hand.until(lambda: pane.follower is not None)
    pane.focus()
    stream = hand.console.logs.streams[101]
    await hand.until(stream.all_read.is_set)
    pane.tick()
    await hand.until(lambda: pane.buffer.end > 0 and hand.app.focused is pane and not pane.is_arriving)


async def log_above(hand: Hand) -> None:
    """It was scrolled up."""
    await log(hand)
    hand.log._scroll(-40)
    await hand.breathe()


async def log_searched(hand: Hand) -> None:
    """It was searched."""
    from gputui.tui.log.pattern import pattern_of

    await log(hand)
    hand.log.reading.search.look_for(pattern_of("line 1"))
    hand.log.look()
    await hand.until(lambda: hand.log.reading.search.is_done)


async def log_narrowed(hand: Hand) -> None:
    """Only some lines are shown."""
    from gputui.tui.log.pattern import pattern_of

    await log(hand)
    hand.log.reading.search.narrow(pattern_of("error"))
    hand.log.reading.search.widen(1)
    hand.log.repaint()
    await hand.breathe()


async def log_aside(hand: Hand) -> None:
    """It was moved sideways."""
    await log(hand)
    if hand.log.reading.painter.wraps:
        hand.log.action_toggle_wrap()
    hand.log.action_sideways(1)
    await hand.breathe()


async def log_of_first(hand: Hand) -> None:
    """The first attempt's log is shown."""
    await log(hand)
    hand.main.follow(101, 1)
    await hand.breathe()


async def detail(hand: Hand) -> None:
    """Everything about job 101."""
    await at_job(101)(hand)
    hand.main.action_detail()
    await hand.opened(Detail)


def gpu_page(index: int) -> Step:
    """Everything about that GPU."""

    async def page(hand: Hand) -> None:
        await at_gpu(index)(hand)
        hand.main.action_gpu()
        screen = await hand.opened(GpuDetail)
        await hand.until(lambda: screen.gpu() is not None)

    page.__name__ = f"gpu_page_{index}"
    return page


async def processes(hand: Hand) -> None:
    """What job 101 runs inside."""
    await at_job(101)(hand)
    hand.main.action_processes()
    screen = await hand.opened(Processes)
    await hand.until(lambda: screen._is_asked)


async def logs(hand: Hand) -> None:
    """The logs of both attempts of job 101, beside each other."""
    await at_job(101)(hand)
    hand.main.action_attempts()
    await hand.opened(LogsScreen)


async def form(hand: Hand) -> None:
    """The submit form, with a command in it."""
    hand.main.action_submit()
    screen = await hand.opened(Submit)
    screen.query_one("#command", Input).value = "true"
    await hand.pilot.pause()
    assert screen.draft()["command"] == "true"


async def untouched_form(hand: Hand) -> None:
    """The submit form as it opens."""
    hand.main.action_submit()
    await hand.opened(Submit)


async def recalled(hand: Hand) -> None:
    """The form with an earlier submission in it."""
    await form(hand)
    screen = hand.top(Submit)
    screen.action_older(1)
    await hand.until(lambda: screen.draft()["image"] == "earlier")


async def proposed(hand: Hand) -> None:
    """More priority for job 107 is thought of."""
    await at_job(107)(hand)
    await hand.press("plus")
    await hand.opened(WhatIf)


async def timeline(hand: Hand) -> None:
    """The timeline, with the plan in it, and the cursor on GPU 0."""
    hand.main.action_timeline()
    screen = await hand.opened(TimelineScreen)
    await hand.until(lambda: screen.timeline is not None)
    await hand.breathe()
    screen.query_one(TimelineTable).move_to(0)
    await hand.breathe()


async def timeline_later(hand: Hand) -> None:
    """It was moved on, and the second bar of its row is selected."""
    await timeline(hand)
    table = hand.top(TimelineScreen).query_one(TimelineTable)
    table.next_bar(1)
    table.look(1)
    await hand.breathe()


async def fewer_columns(hand: Hand) -> None:
    """One column was left out."""
    await columns(hand)
    hand.top(ColumnChooser).action_toggle_column()
    await hand.breathe()


async def waiting_detail(hand: Hand) -> None:
    """Everything about job 107."""
    await at_job(107)(hand)
    hand.main.action_detail()
    await hand.opened(Detail)


async def long_queue(hand: Hand) -> None:
    """The first of a hundred jobs."""
    await hand.console.show(hand.pilot, many_jobs(100))
    hand.queue.move_to(0)
    await hand.until(lambda: len(hand.queue.keys) == 100)


async def long_queue_last(hand: Hand) -> None:
    """The last of a hundred jobs."""
    await long_queue(hand)
    hand.queue.move_to(99)
    await hand.breathe()


async def log_of_waiting(hand: Hand) -> None:
    """The log of a job that did not start yet."""
    await log(hand)
    hand.main.follow(107)
    await hand.breathe()
