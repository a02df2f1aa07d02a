"""Stages in which commands of a log work."""

from __future__ import annotations

from tests.tui.every import stages
from tests.tui.every.hand import Hand


async def log(hand: Hand) -> None:
    """Focus the log of job 101, completely read."""
    await stages.at_job(101)(hand)  # an earlier stage may have left the cursor at a job without a log
    pane = hand.log
    await hand.until(lambda: pane.follower is not None and pane.follower.job_id == 101, "the log is that of job 101")
    pane.focus()
    stream = hand.console.logs.streams[101]
    await hand.until(stream.all_read.is_set)
    pane.tick()
    await hand.until(lambda: pane.reading.lines.end > 0 and hand.app.focused is pane and not pane.is_arriving)


async def log_above(hand: Hand) -> None:
    """Scroll the log up."""
    await log(hand)
    hand.log.turn_wheel(-40)
    await hand.breathe()


async def log_searched(hand: Hand) -> None:
    """Search the log."""
    from gputui.tui.widgets.log_pattern import pattern_of

    await log(hand)
    hand.log.reading.search.look_for(pattern_of("line 1"))
    hand.log.search_further()
    await hand.until(lambda: hand.log.reading.search.is_done)


async def log_narrowed(hand: Hand) -> None:
    """Filter the log."""
    from gputui.tui.widgets.log_pattern import pattern_of

    await log(hand)
    hand.log.reading.search.narrow(pattern_of("error"))
    hand.log.reading.search.widen(1)
    hand.log.repaint()
    await hand.breathe()


async def log_aside(hand: Hand) -> None:
    """Move the log sideways."""
    await log(hand)
    if hand.log.reading.painter.wraps:
        hand.log.action_toggle_wrap()
    hand.log.action_sideways(1)
    await hand.breathe()


async def log_of_first(hand: Hand) -> None:
    """Show the log of the first attempt."""
    await log(hand)
    hand.main.logs.follow(101, 1)
    await hand.breathe()


async def log_of_waiting(hand: Hand) -> None:
    """Show the log of a job that has not started yet."""
    await log(hand)
    hand.main.logs.follow(107)
    await hand.breathe()
