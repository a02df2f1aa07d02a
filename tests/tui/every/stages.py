"""Stages of the main screen, in which its commands work."""

from __future__ import annotations

from itertools import chain, repeat

from msgspec.structs import replace
from textual.widgets import Input

from gputui.domain.action import Pause, PauseRecurring, Suspend
from gputui.domain.snapshot import Controls
from gputui.tui.progress import LongTask
from tests.factories import uuid
from tests.tui.every.hand import Hand
from tests.tui.every.row import Step
from tests.tui.sample import many_jobs


async def queue(hand: Hand) -> None:
    """Leave the queue focused, as at the start."""
    hand.main.jobs.action_tab("queue")
    await hand.breathe()


async def long_work(hand: Hand) -> None:
    """Run a task that began a minute ago."""
    await queue(hand)
    times = chain([0.0], repeat(60.0))
    work = LongTask("Counting", "beans", clock=lambda: next(times))
    work.begin()
    hand.app.works.watch(work)
    hand.app.works.look()
    await hand.breathe()


def at_job(job_id: int) -> Step:
    """Move the queue's cursor to that job."""

    async def at(hand: Hand) -> None:
        if hand.app.focused is not hand.queue or hand.queue.sheet is not hand.queue.live:
            await queue(hand)
        hand.queue.move_to(list(hand.queue.keys).index(job_id))
        await hand.breathe()

    at.__name__ = f"job_{job_id}"
    return at


async def another_log(hand: Hand) -> None:
    """Move to job 104 beside the log of job 101, which the user asked for: a resting cursor leaves it."""
    await at_job(104)(hand)
    hand.main.logs.follow(101)


async def failed_job(hand: Hand) -> None:
    """Open the ended jobs, and move to one that failed."""
    await queue(hand)
    hand.main.jobs.action_finished()
    await hand.until(lambda: 92 in hand.queue.keys)
    await at_job(92)(hand)


def at_gpu(index: int) -> Step:
    """Focus the grid, and move its cursor to that GPU."""

    async def at(hand: Hand) -> None:
        hand.grid.focus()
        hand.grid.move_to(list(hand.grid.keys).index(uuid(index)))
        await hand.breathe()

    at.__name__ = f"gpu_{index}"
    return at


def at_tab(name: str) -> Step:
    """Show that tab in the queue's pane."""

    async def at(hand: Hand) -> None:
        hand.main.jobs.action_tab(name)
        await hand.until(lambda: name == "finished" or hand.queue.cursor is not None)

    at.__name__ = f"tab_{name}"
    return at


async def no_runs(hand: Hand) -> None:
    """Pause the recurring job."""
    number = next(iter(hand.console.store.recurring()))
    hand.console.actions.act(PauseRecurring((number,)))
    recurring = tuple(hand.console.store.recurring().values())
    await hand.console.show(hand.pilot, replace(hand.console.snapshot, recurring=recurring))
    await at_tab("recurring")(hand)


async def suspended(hand: Hand) -> None:
    """Suspend the job under the cursor."""
    hand.console.actions.act(Suspend((101,)))
    await hand.console.show(hand.pilot, replace(hand.console.snapshot, jobs=tuple(hand.console.store.jobs().values())))
    await at_job(101)(hand)


async def paused(hand: Hand) -> None:
    """Pause the scheduler."""
    hand.console.actions.act(Pause("kernel update"))
    await hand.console.show(hand.pilot, replace(hand.console.snapshot, controls=Controls(True, "kernel update")))


async def marked(hand: Hand) -> None:
    """Mark a job."""
    await at_job(107)(hand)
    hand.main.jobs.action_mark()
    await hand.breathe()


async def filtered(hand: Hand) -> None:
    """Filter the jobs."""
    hand.main.query_one("#filter", Input).value = "bob"
    await hand.until(lambda: hand.queue.rows.filter == "bob")


async def held(hand: Hand) -> None:
    """Hold a job."""
    await at_job(107)(hand)
    await hand.press("h")
    await hand.until(lambda: hand.console.store.get(107).held)
    await hand.console.settle(hand.pilot)


async def log_hidden(hand: Hand) -> None:
    """Hide the log."""
    hand.log.focus()
    await hand.breathe()
    hand.main.panes.action_hide()
    await hand.breathe()


async def long_queue(hand: Hand) -> None:
    """Select the first of a hundred waiting jobs; below them is the row of the ended ones."""
    await hand.console.show(hand.pilot, many_jobs(100))
    hand.queue.move_to(0)
    await hand.until(lambda: hand.queue.rows.extent.waiting == 100)


async def long_queue_last(hand: Hand) -> None:
    """Select the last of a hundred jobs."""
    await long_queue(hand)
    hand.queue.move_to(99)
    await hand.breathe()
