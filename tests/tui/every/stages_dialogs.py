"""Stages with open dialogs."""

from __future__ import annotations

from gputui.tui.screens.dialogs import Choose, Confirm, CopyDialog, LeaveDialog, Prompt, Themes
from gputui.tui.screens.forms import Reserve
from gputui.tui.screens.help import Help, Notices
from gputui.tui.screens.log_pane import LogPrompt
from gputui.tui.widgets.line_table import CellLines
from tests.tui.every import stages, stages_log, stages_screens
from tests.tui.every.hand import Hand


async def question(hand: Hand) -> None:
    """Ask whether to cancel job 101."""
    await stages.at_job(101)(hand)
    hand.main.action_verb("cancel")
    await hand.opened(Confirm)


async def leaving(hand: Hand) -> None:
    """Open the dialog about leaving."""
    await stages.queue(hand)
    hand.app.action_leave()
    await hand.opened(LeaveDialog)


async def submissions(hand: Hand) -> None:
    """Open the list of recent submissions, over the form."""
    await stages_screens.untouched_form(hand)
    await hand.press("ctrl+r")
    await hand.opened(Choose)


async def templates(hand: Hand) -> None:
    """Open the list of templates, over the form."""
    await stages_screens.form(hand)
    await hand.press("ctrl+l")
    await hand.opened(Choose)


async def copying(hand: Hand) -> None:
    """Open the dialog of texts to copy from job 101."""
    await stages.at_job(101)(hand)
    hand.main.action_copy()
    await hand.opened(CopyDialog)


async def help_(hand: Hand) -> None:
    """Open the help."""
    await stages.queue(hand)
    hand.app.action_help()
    await _laid_out(hand, await hand.opened(Help))


async def notices(hand: Hand) -> None:
    """Open the list of notices."""
    await stages.queue(hand)
    hand.app.action_notices()
    await _laid_out(hand, await hand.opened(Notices))


async def _laid_out(hand: Hand, dialog: Help | Notices) -> None:
    await hand.until(lambda: bool(dialog.query_one(CellLines).lines))


async def themes(hand: Hand) -> None:
    """Open the list of themes."""
    await stages.queue(hand)
    hand.app.action_themes()
    await hand.opened(Themes)


async def reason(hand: Hand) -> None:
    """Open the prompt for the reason of a pause."""
    await stages.queue(hand)
    hand.main.server.action_pause()
    await hand.opened(Prompt)


async def log_search(hand: Hand) -> None:
    """Open the line for a search in the log."""
    await stages_log.log(hand)
    hand.log.action_search()
    await hand.opened(LogPrompt)


async def reservation(hand: Hand) -> None:
    """Open the form of a reservation."""
    await stages.queue(hand)
    hand.main.action_reserve()
    await hand.opened(Reserve)
