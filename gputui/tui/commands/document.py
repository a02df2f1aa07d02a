"""Generates docs/keys.md from the declarations."""

from __future__ import annotations

from gputui.domain.keyed import with_keys
from gputui.tui.commands import by_group
from gputui.tui.commands.command import Command
from gputui.tui.keys import key_name, order_words


def keys_document() -> str:
    """Return the text of docs/keys.md."""
    lines = [
        "# Keys",
        "",
        "Written by `python scripts/keys.py` from `gputui/tui/commands/`; `?` in the console shows the same.",
        "Commands about a job act on the selected job, on the job that holds the selected GPU, or on the job whose log",
        "is shown, according to the pane that has the focus. The mouse selects, scrolls, and opens with a double",
        "click; tabs, titles of columns, notices and the words in the last line can be clicked, the line above the",
        "queue and that above the log dragged, and lines of a log picked by dragging. The last column is what the",
        "settings file calls a command: see docs/console.md, Custom keys. The right button lists what can be",
        "done to the row under it.",
    ]
    lines += ["", with_keys(order_words(), lambda name: f"`{key_name(_by_name[name].keys[0])}`")]
    for group, commands in by_group().items():
        lines += ["", f"## {group}", "", "| keys | name | does | in settings |", "|---|---|---|---|"]
        lines += [
            f"| {_quoted(command)} | {command.title} | {command.help} | `{command.name}` |" for command in commands
        ]
    return "\n".join(lines) + "\n"


_by_name = {command.name: command for commands in by_group().values() for command in commands}


def _quoted(command: Command) -> str:
    names = (key_name(key).replace("|", "\\|") for key in command.keys)  # `|` ends a table cell
    return " ".join(f"`{name}`" for name in names)
