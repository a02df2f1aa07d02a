"""Writes docs/keys.md from the console's commands."""

from __future__ import annotations

from pathlib import Path

from gputui.domain.conditions import with_keys
from gputui.tui.commands import BY_NAME, Command, by_group
from gputui.tui.keys import key_name, order_words


def keys_document() -> str:
    """Return the page of all keys."""
    lines = [
        "# Keys",
        "",
        "Written by `python scripts/keys.py` from `gputui/tui/commands.py`; `?` in the console shows the same.",
        "Commands about a job act on the selected job, on the job that holds the selected GPU, or on the job whose log",
        "is shown, according to the pane that has the focus. The mouse selects, scrolls, and opens with a double",
        "click; tabs, titles of columns, notices and the words in the last line can be clicked, the line above the",
        "queue and that above the log dragged, and lines of a log picked by dragging. The last column is what the",
        "settings file calls a command: see docs/console.md, Custom keys. The right button lists what can be",
        "done to the row under it.",
    ]
    lines += ["", with_keys(order_words(), lambda name: f"`{key_name(BY_NAME[name].keys[0])}`")]
    for group, commands in by_group().items():
        lines += ["", f"## {group}", "", "| keys | name | does | in settings |", "|---|---|---|---|"]
        lines += [
            f"| {_quoted(command)} | {command.title} | {command.help} | `{command.name}` |" for command in commands
        ]
    return "\n".join(lines) + "\n"


def _quoted(command: Command) -> str:
    names = (key_name(key).replace("|", "\\|") for key in command.keys)  # `|` ends a table cell
    return " ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    (Path(__file__).parent.parent / "docs" / "keys.md").write_text(keys_document(), encoding="utf-8")
