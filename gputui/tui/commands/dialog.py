"""Commands of dialogs: questions, lists, help and notices. Escape leaves each, whatever the settings say."""

from __future__ import annotations

from gputui.tui.commands.command import DIALOG, Command


def _command(action: str, keys: tuple[str, ...], title: str, help_: str, id_: str, shown: str = "") -> Command:
    return Command(action, keys, title, help_, DIALOG, False, False, shown, id=id_)


YES = _command("answer('yes')", ("y", "enter"), "yes", "Yes, do it.", "yes", "y Enter")
NO = _command("answer('no')", ("n", "escape", "q"), "no", "No, leave it.", "no", "n Esc")
LEAVE_COMMANDS = (
    _command(
        "choose('HAND_OVER')",
        ("b", "enter"),
        "hand over",
        "Quit, and have the scheduler go on in the background.",
        "hand_over",
        "b Enter",
    ),
    _command("choose('STOP')", ("s",), "stop", "Quit, and start no further job.", "stop"),
    _command("stay", ("escape", "n", "q"), "stay", "Quit not.", "stay"),
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
CLOSE = _command("close", ("enter",), "close", "Close what is only to be read.", "close")
DIALOG_COMMANDS = (YES, NO, *LEAVE_COMMANDS, TAKE_LINE, SAVE_TEMPLATE, *COPY_COMMANDS, SEARCH_HELP, CLOSE)
