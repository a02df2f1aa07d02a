"""Groups commands by the places where their keys are pressed; two in one place share a key only by declaration."""

from __future__ import annotations

from gputui.tui.commands import (
    ANYWHERE_COMMANDS,
    APP_COMMANDS,
    BACK,
    CLOSE,
    COLUMN_COMMANDS,
    COMMANDS,
    COPY,
    COPY_COMMANDS,
    EDIT_COMMANDS,
    FURTHER,
    GIVE_UP,
    GPU,
    GPU_COMMANDS,
    GPU_PAGE_COMMANDS,
    GRID_COMMANDS,
    HELP,
    JOB_COMMANDS,
    LEAVE_COMMANDS,
    LOG_COMMANDS,
    LOG_JOB_COMMANDS,
    MAIN_COMMANDS,
    MOVE_COMMANDS,
    NO,
    NOTICES,
    PALETTE,
    PANE_COMMANDS,
    PROCESS_COMMANDS,
    PROCESS_VIEW,
    PROCESSES,
    QUEUE_COMMANDS,
    SAVE_TEMPLATE,
    SEARCH_HELP,
    SEND,
    SHELL,
    STANDING_COMMANDS,
    STOP_CONTAINER,
    SUBMIT_COMMANDS,
    TAKE_LINE,
    TIMELINE_COMMANDS,
    TIMELINE_SCREEN,
    WHAT_IF_COMMANDS,
    YES,
    Command,
)
from gputui.tui.keys import key_name

_IN_A_TAB = frozenset({"pause_recurring", "resume_recurring", "remove"})
_PLACES = {
    "main screen": (
        *(command for command in MAIN_COMMANDS if command.name not in _IN_A_TAB),
        *EDIT_COMMANDS,
        *QUEUE_COMMANDS,
        *PANE_COMMANDS,
        *APP_COMMANDS,
        *MOVE_COMMANDS,
        *GRID_COMMANDS,
        *LOG_COMMANDS,
        *LOG_JOB_COMMANDS,
    ),
    "tab of recurring jobs": (*STANDING_COMMANDS, *QUEUE_COMMANDS, *PANE_COMMANDS, *APP_COMMANDS, *MOVE_COMMANDS),
    "columns": (*COLUMN_COMMANDS, BACK, *MOVE_COMMANDS),
    "logs": (
        *JOB_COMMANDS,
        *LOG_COMMANDS,
        *(command for command in LOG_JOB_COMMANDS if command.name != "attempts"),
        *(command for command in PANE_COMMANDS if command.action_name in {"zoom", "pane"}),
        BACK,
        *APP_COMMANDS,
        *MOVE_COMMANDS,
    ),
    "screen of a job": (*JOB_COMMANDS, BACK, *APP_COMMANDS),
    "screen of a GPU": (*JOB_COMMANDS, *GPU_PAGE_COMMANDS, BACK, *APP_COMMANDS, *MOVE_COMMANDS),
    "screen of processes": (PROCESSES, SHELL, COPY, BACK, *APP_COMMANDS, *MOVE_COMMANDS),
    "process view": (
        PROCESS_VIEW,
        *PROCESS_COMMANDS,
        *(command for command in QUEUE_COMMANDS if command.action in {"filter", "clear_filter"}),
        *(command for command in JOB_COMMANDS if command.name == "cancel"),
        BACK,
        *(command for command in APP_COMMANDS if command is not PROCESS_VIEW),
        *MOVE_COMMANDS,
    ),
    "page of a container": (
        STOP_CONTAINER,
        *LOG_COMMANDS,
        *(command for command in LOG_JOB_COMMANDS if command.name == "error"),
        BACK,
        *APP_COMMANDS,
        *MOVE_COMMANDS,
    ),
    "submit form": (*SUBMIT_COMMANDS, PALETTE),
    "timeline": (
        TIMELINE_SCREEN,
        *JOB_COMMANDS,
        *GPU_COMMANDS,
        *TIMELINE_COMMANDS,
        BACK,
        *APP_COMMANDS,
        *MOVE_COMMANDS,
    ),
    "what-if panel": (*WHAT_IF_COMMANDS, *FURTHER, YES, NO),
    "questions": (YES, NO),
    "question at the end": LEAVE_COMMANDS,
    "lists to choose from": (TAKE_LINE, SAVE_TEMPLATE, BACK, *MOVE_COMMANDS),
    "list of themes": (TAKE_LINE, BACK, *MOVE_COMMANDS[:2]),
    "dialog that copies": (*COPY_COMMANDS, BACK),
    "help": (SEARCH_HELP, HELP, CLOSE, BACK, *MOVE_COMMANDS),
    "notices": (NOTICES, CLOSE, BACK, *MOVE_COMMANDS),
    "lines to type": (GIVE_UP,),
    "form of a reservation": (GIVE_UP, SEND),
}


def places() -> dict[str, tuple[Command, ...]]:
    """Return the commands by the place of their keys; those not named above belong to their group's place."""
    found = {place: (*commands, *ANYWHERE_COMMANDS) for place, commands in _PLACES.items()}
    placed = {command.name for commands in found.values() for command in commands}
    for command in COMMANDS:
        if command.name not in placed:
            found[command.group] = (*found.get(command.group, APP_COMMANDS), command)
    return found


_OF_ROWS = frozenset({"mark", "filter", "clear_filter", "fold", "sort", "columns"})
_OF_PANES = tuple(
    command for command in PANE_COMMANDS if command.action_name in {"zoom", "hide", "all_panes", "log_place"}
)
_OF_GPUS = frozenset({"reserve", "gpu_view", "gpu_processes", "graph_span"})
_OF_LOGS = frozenset(
    {
        *("pause_log", "log_search", "log_only", "clear_log", "error", "attempt_before", "attempt_after", "attempts"),
        *("pin_log", "log_wrap", "log_times", "copy_lines", "save_log"),
    }
)
_EVERY = (*JOB_COMMANDS, *EDIT_COMMANDS, *QUEUE_COMMANDS, *PANE_COMMANDS, *APP_COMMANDS)

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
    "log": (*(command for command in (*LOG_COMMANDS, *LOG_JOB_COMMANDS) if command.name in _OF_LOGS), *_OF_PANES),
    "processes": (
        *PROCESS_COMMANDS,
        *(command for command in JOB_COMMANDS if command.name == "cancel"),
    ),
}
"""Commands of the menu of each pane and table, in order; only available ones are listed."""


def menu_words(commands: tuple[Command, ...]) -> tuple[str, ...]:
    """Return the name of each, with its key at the right."""
    rows = [(command.title, key_name(command.keys[0]) if command.keys else "") for command in commands]
    names, keys = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    return tuple(f"{title:<{names}}  {key:>{keys}}" for title, key in rows)
