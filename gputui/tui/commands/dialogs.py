"""Commands of dialogs, the what-if panel and the timeline. Escape leaves each dialog, whatever the settings say."""

from __future__ import annotations

from gputui.tui.commands.command import DIALOG, TIMELINE, WHAT_IF, Command


def _command(action: str, keys: tuple[str, ...], title: str, help_: str, id_: str, shown: str = "") -> Command:
    return Command(action, keys, title, help_, DIALOG, False, False, shown, id=id_)


YES = _command("answer('yes')", ("y", "enter"), "yes", "Yes.", "yes", "y Enter")
NO = _command("answer('no')", ("n", "escape", "q"), "no", "No: change nothing.", "no", "n Esc")
LEAVE_COMMANDS = (
    _command(
        "choose('HAND_OVER')",
        ("b", "enter"),
        "hand over",
        "Quit, and let a scheduler continue in the background.",
        "hand_over",
        "b Enter",
    ),
    _command("choose('STOP')", ("s",), "stop", "Quit, and start no new jobs.", "stop"),
    _command("stay", ("escape", "n", "q"), "stay", "Stay in the console.", "stay"),
)
TAKE_LINE = _command("take_line", ("enter",), "take", "Take the line under the cursor.", "take_line")
SAVE_TEMPLATE = _command("save_template", ("s",), "save", "Save what is in the form as a template.", "save_template")
COPY_COMMANDS = (
    _command("copy_part('id')", ("i", "y", "enter"), "id", "Copy the job's id.", "copy_id"),
    _command("copy_part('name')", ("n",), "name", "Copy its name.", "copy_name"),
    _command("copy_part('command')", ("c",), "command", "Copy its command.", "copy_command"),
    _command("copy_part('image')", ("m",), "image", "Copy its image.", "copy_image"),
    _command("copy_part('container')", ("k",), "container", "Copy the id of its container.", "copy_container"),
    _command("copy_part('GPUs')", ("g",), "GPUs", "Copy the UUIDs of its GPUs.", "copy_gpus"),
)
SEARCH_HELP = _command("search_help", ("slash",), "search", "Search help for a key, or for words.", "search_help")
CLOSE = _command("close", ("enter",), "close", "Close the page.", "close")
DIALOG_COMMANDS = (YES, NO, *LEAVE_COMMANDS, TAKE_LINE, SAVE_TEMPLATE, *COPY_COMMANDS, SEARCH_HELP, CLOSE)


WHAT_IF_COMMANDS = (
    Command("commit", ("enter",), "commit", "Make the change that is shown.", WHAT_IF, True, False),
    Command("forget", ("escape",), "cancel", "Change nothing.", WHAT_IF, True, False),
)
FURTHER = (
    Command(
        "further('raise')", ("plus", "equals_sign"), "more", "Another 10 of priority.", WHAT_IF, True, False, id="more"
    ),
    Command("further('lower')", ("minus",), "less", "10 of priority less.", WHAT_IF, True, False, id="less"),
    Command(
        "further('top')", ("t",), "top", "To the head of the queue instead.", WHAT_IF, True, False, id="top_instead"
    ),
    Command("drag(1)", ("J",), "move", "One place further down.", WHAT_IF, True, False, "J/K", id="drag_down"),
    Command("drag(-1)", ("K",), "further up", "One place further up.", WHAT_IF, False, False, id="drag_up"),
)
TIMELINE_COMMANDS = (
    Command(
        "zoom_time(1)", ("i",), "zoom", "Zoom in: less time on the screen.", TIMELINE, True, True, "i/o", id="zoom_in"
    ),
    Command("zoom_time(-1)", ("o",), "zoom out", "Zoom out: more time on the screen.", TIMELINE, False, id="zoom_out"),
    Command(
        "look(1)",
        ("greater_than_sign", "shift+right"),
        "later",
        "Look further ahead.",
        TIMELINE,
        True,
        True,
        "</>",
        id="later",
    ),
    Command("look(-1)", ("less_than_sign", "shift+left"), "earlier", "Look back.", TIMELINE, False, id="earlier"),
    Command("present", ("0",), "now", "Back to the present, with the whole plan in sight.", TIMELINE, id="now"),
    Command(
        "bar(1)", ("right", "l"), "next bar", "To the next job on this GPU.", TIMELINE, False, False, id="bar_next"
    ),
    Command(
        "bar(-1)", ("left",), "bar before", "To the job before on this GPU.", TIMELINE, False, False, id="bar_before"
    ),
)
