"""All that can be done: keys, footer, help, palette and docs/keys.md are made from these declarations."""

from __future__ import annotations

from gputui.tui.commands.command import (
    FORM,
    GPUS,
    JOBS,
    LOGS,
    MOVE,
    QUEUE,
    SCHEDULER,
    TIMELINE,
    VIEW,
    WHAT_IF,
    Command,
    bindings,
    bound_to,
    place_of,
)
from gputui.tui.commands.dialog import (
    CLOSE,
    COPY_COMMANDS,
    DIALOG_COMMANDS,
    LEAVE_COMMANDS,
    NO,
    SAVE_TEMPLATE,
    SEARCH_HELP,
    TAKE_LINE,
    YES,
)
from gputui.tui.commands.forecast import FURTHER, TIMELINE_COMMANDS, WHAT_IF_COMMANDS
from gputui.tui.commands.job import (
    BACK,
    COPY,
    GPU,
    GPU_COMMANDS,
    GPU_PAGE_COMMANDS,
    JOB_COMMANDS,
    PROCESSES,
    SHELL,
    SUBMIT,
)
from gputui.tui.commands.log import LOG_COMMANDS, LOG_JOB_COMMANDS
from gputui.tui.commands.main import (
    APP_COMMANDS,
    HELP,
    MAIN_COMMANDS,
    NOTICES,
    PALETTE,
    TIMELINE_SCREEN,
    UNDO,
    WORK_COMMANDS,
)
from gputui.tui.commands.queue import COLUMN_COMMANDS, EDIT_COMMANDS, QUEUE_COMMANDS, STANDING_COMMANDS
from gputui.tui.commands.submission import GIVE_UP, SEND, SUBMIT_COMMANDS
from gputui.tui.commands.view import GRID_COMMANDS, MOVE_COMMANDS, PANE_COMMANDS

__all__ = [
    "APP_COMMANDS",
    "BACK",
    "CHANGING",
    "CLOSE",
    "COLUMN_COMMANDS",
    "COMMANDS",
    "COPY",
    "COPY_COMMANDS",
    "DIALOG_COMMANDS",
    "EDIT_COMMANDS",
    "FORM",
    "FURTHER",
    "GIVE_UP",
    "GPU",
    "GPUS",
    "GPU_COMMANDS",
    "GPU_PAGE_COMMANDS",
    "GRID_COMMANDS",
    "HELP",
    "JOBS",
    "JOB_COMMANDS",
    "LEAVE_COMMANDS",
    "LOGS",
    "LOG_COMMANDS",
    "LOG_JOB_COMMANDS",
    "MAIN_COMMANDS",
    "MOVE",
    "MOVE_COMMANDS",
    "NO",
    "NOTICES",
    "PALETTE",
    "PANE_COMMANDS",
    "PROCESSES",
    "QUEUE",
    "QUEUE_COMMANDS",
    "SAVE_TEMPLATE",
    "SCHEDULER",
    "SEARCH_HELP",
    "SEND",
    "SHELL",
    "STANDING_COMMANDS",
    "SUBMIT",
    "SUBMIT_COMMANDS",
    "TAKE_LINE",
    "TIMELINE",
    "TIMELINE_COMMANDS",
    "TIMELINE_SCREEN",
    "UNDO",
    "VIEW",
    "WHAT_IF",
    "WHAT_IF_COMMANDS",
    "WORK_COMMANDS",
    "YES",
    "Command",
    "bindings",
    "bound_to",
    "by_group",
    "place_of",
]

COMMANDS = (
    *MAIN_COMMANDS,
    *QUEUE_COMMANDS,
    *EDIT_COMMANDS,
    *COLUMN_COMMANDS,
    *PANE_COMMANDS,
    *APP_COMMANDS,
    *WORK_COMMANDS,
    BACK,
    *GPU_PAGE_COMMANDS[len(GPU_COMMANDS) :],
    *WHAT_IF_COMMANDS,
    *FURTHER,
    *TIMELINE_COMMANDS,
    *SUBMIT_COMMANDS,
    *MOVE_COMMANDS,
    *GRID_COMMANDS,
    *LOG_COMMANDS,
    *LOG_JOB_COMMANDS,
    *DIALOG_COMMANDS,
)
CHANGING = frozenset(command.verb for command in COMMANDS if command.changes)
"""Actions that change anything but the screen."""


def by_group(commands: tuple[Command, ...] = COMMANDS) -> dict[str, list[Command]]:
    """The commands under their headings."""
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.group, []).append(command)
    return groups
