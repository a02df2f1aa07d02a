"""Which commands have their keys in one place: two of them may not share one, but by declaration."""

from __future__ import annotations

from gputui.tui.commands import (
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
    PROCESSES,
    QUEUE_COMMANDS,
    SAVE_TEMPLATE,
    SEARCH_HELP,
    SEND,
    SHELL,
    STANDING_COMMANDS,
    SUBMIT_COMMANDS,
    TAKE_LINE,
    TIMELINE_COMMANDS,
    TIMELINE_SCREEN,
    WHAT_IF_COMMANDS,
    YES,
    Command,
)

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
        *(command for command in PANE_COMMANDS if command.verb in {"zoom", "pane"}),
        BACK,
        *APP_COMMANDS,
        *MOVE_COMMANDS,
    ),
    "screen of a job": (*JOB_COMMANDS, BACK, *APP_COMMANDS),
    "screen of a GPU": (*JOB_COMMANDS, *GPU_PAGE_COMMANDS, BACK, *APP_COMMANDS, *MOVE_COMMANDS),
    "screen of processes": (PROCESSES, SHELL, COPY, BACK, *APP_COMMANDS, *MOVE_COMMANDS),
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
    """The commands whose keys are pressed in one place; what is named nowhere above is taken to be with its group."""
    placed = {command.name for commands in _PLACES.values() for command in commands}
    found = dict(_PLACES)
    for command in COMMANDS:
        if command.name not in placed:
            found[command.group] = (*found.get(command.group, APP_COMMANDS), command)
    return found
