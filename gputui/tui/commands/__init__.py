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
    place_of,
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
from gputui.tui.commands.main import APP_COMMANDS, MAIN_COMMANDS, PALETTE, TIMELINE_SCREEN, UNDO, WORK_COMMANDS
from gputui.tui.commands.queue import COLUMN_COMMANDS, EDIT_COMMANDS, QUEUE_COMMANDS, STANDING_COMMANDS
from gputui.tui.commands.submission import SUBMIT_COMMANDS
from gputui.tui.commands.view import GRID_COMMANDS, MOVE_COMMANDS, PANE_COMMANDS

__all__ = [
    "APP_COMMANDS",
    "BACK",
    "CHANGING",
    "COLUMN_COMMANDS",
    "COMMANDS",
    "COPY",
    "EDIT_COMMANDS",
    "FORM",
    "FURTHER",
    "GPU",
    "GPUS",
    "GPU_COMMANDS",
    "GPU_PAGE_COMMANDS",
    "GRID_COMMANDS",
    "JOBS",
    "JOB_COMMANDS",
    "LOGS",
    "LOG_COMMANDS",
    "LOG_JOB_COMMANDS",
    "MAIN_COMMANDS",
    "MOVE",
    "MOVE_COMMANDS",
    "PALETTE",
    "PANE_COMMANDS",
    "PROCESSES",
    "QUEUE",
    "QUEUE_COMMANDS",
    "SCHEDULER",
    "SHELL",
    "STANDING_COMMANDS",
    "SUBMIT",
    "SUBMIT_COMMANDS",
    "TIMELINE",
    "TIMELINE_COMMANDS",
    "TIMELINE_SCREEN",
    "UNDO",
    "VIEW",
    "WHAT_IF",
    "WHAT_IF_COMMANDS",
    "WORK_COMMANDS",
    "Command",
    "bindings",
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
)
CHANGING = frozenset(command.verb for command in COMMANDS if command.changes)
"""Actions that change anything but the screen."""


def by_group(commands: tuple[Command, ...] = COMMANDS) -> dict[str, list[Command]]:
    """The commands under their headings."""
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.group, []).append(command)
    return groups
