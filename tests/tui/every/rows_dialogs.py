"""Rows of commands of dialogs: by key, and by a click on their words."""

from __future__ import annotations

from gputui.tui.actions import ExitChoice
from tests.factories import uuid
from tests.tui.every import eyes, stages_dialogs, stages_screens
from tests.tui.every.hand import Hand
from tests.tui.every.row import Row, Step


def on(words: str) -> Step:
    """Return a click on these words, wherever they are."""

    async def click(hand: Hand) -> None:
        y, line = next((y, line) for y, line in enumerate(hand.console.screen_text.splitlines()) if words in line)
        await hand.click_at(line.index(words) + len(words) - 1, y)

    return click


def _copies(name: str, text: str, words: str) -> Row:
    return Row(name, stages_dialogs.copying, eyes.clipboard, text, mouse=on(words), footer=False)


def _closes(name: str, stage: Step, mouse: Step | None = None) -> Row:
    return Row(name, stage, eyes.screen, "Main", mouse=mouse, footer=False)


ROWS = (
    Row("yes", stages_dialogs.question, eyes.actions, [("cancel", "job 101")], mouse=on("Enter  yes"), footer=False),
    _closes("no", stages_dialogs.question, on("Esc  no")),
    Row("hand_over", stages_dialogs.leaving, eyes.left, ExitChoice.HAND_OVER, mouse=on("hand over to a"), footer=False),
    Row("stop", stages_dialogs.leaving, eyes.left, ExitChoice.STOP, mouse=on("stop scheduling"), footer=False),
    _closes("stay", stages_dialogs.leaving, on("stay here")),
    Row("take_line", stages_dialogs.submissions, eyes.image_below, "earlier", mouse=on("Enter  OK"), footer=False),
    Row("take_line", stages_dialogs.themes, eyes.screen, "Main", footer=False),
    Row(
        "save_template",
        stages_dialogs.templates,
        eyes.screen,
        "Prompt",
        mouse=on("save the form as a template"),
        footer=False,
    ),
    _copies("copy_id", "101", "i  id"),
    _copies("copy_name", "llama-7b-sft", "n  name"),
    _copies("copy_command", "true", "c  command"),
    _copies("copy_image", "busybox", "m  image"),
    _copies("copy_container", "c101", "k  container"),
    _copies("copy_gpus", f"{uuid(0)},{uuid(1)}", "g  GPUs"),
    Row("search_help", stages_dialogs.help_, eyes.types, True, footer=False),
    _closes("close", stages_dialogs.help_),
    _closes("close", stages_dialogs.notices),
    _closes("help", stages_dialogs.help_),
    _closes("notices", stages_dialogs.notices),
    *(
        _closes("back", stage)
        for stage in (
            stages_screens.columns,
            stages_dialogs.copying,
            stages_dialogs.help_,
            stages_dialogs.notices,
            stages_dialogs.themes,
        )
    ),
    Row("back", stages_dialogs.submissions, eyes.screen, "Submit", mouse=on("Esc  cancel"), footer=False),
    _closes("give_up", stages_dialogs.reason, on("Esc  cancel")),
    _closes("give_up", stages_dialogs.log_search),
    _closes("give_up", stages_dialogs.reservation, on("Esc  leave")),
    Row("last", stages_dialogs.help_, eyes.is_at_the_end, True, footer=False),
    Row("page_down", stages_dialogs.help_, eyes.is_below, True, footer=False),
    Row("down", stages_dialogs.help_, eyes.scrolled, 1.0, footer=False),
)
