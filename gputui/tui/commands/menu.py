"""What the right button of the mouse lists for a row: commands about it, and about its pane."""

from __future__ import annotations

from gputui.tui.commands.command import Command
from gputui.tui.commands.job import GPU, GPU_COMMANDS, JOB_COMMANDS
from gputui.tui.commands.queue import EDIT_COMMANDS, QUEUE_COMMANDS, STANDING_COMMANDS
from gputui.tui.commands.view import PANE_COMMANDS
from gputui.tui.key_names import key_name

_OF_ROWS = frozenset({"mark", "fold", "sort", "columns"})
_OF_PANES = tuple(command for command in PANE_COMMANDS if command.verb in {"zoom", "hide", "all_panes"})
_OF_GPUS = frozenset({"reserve", "gpu_view"})
_EVERY = (*JOB_COMMANDS, *EDIT_COMMANDS, *QUEUE_COMMANDS, *PANE_COMMANDS)

MENUS = {
    "queue": (
        *STANDING_COMMANDS,
        *JOB_COMMANDS,
        GPU,
        *(command for command in EDIT_COMMANDS if command.name not in _OF_GPUS),
        *(command for command in QUEUE_COMMANDS if command.name in _OF_ROWS),
        *_OF_PANES,
    ),
    "gpus": (
        GPU,
        *GPU_COMMANDS,
        *(command for command in _EVERY if command.name in _OF_GPUS),
        *JOB_COMMANDS,
        *_OF_PANES,
    ),
}
"""By pane, in the order in which they are listed; of these, those that can be done."""


def menu_words(commands: tuple[Command, ...]) -> tuple[str, ...]:
    """The name of each, and its key at the right."""
    rows = [(command.title, key_name(command.keys[0]) if command.keys else "") for command in commands]
    names, keys = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    return tuple(f"{title:<{names}}  {key:>{keys}}" for title, key in rows)
