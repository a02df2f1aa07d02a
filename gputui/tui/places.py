"""Places where commands work: those of their keys, the menus of panes, and why a command or a key does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

from textual.screen import Screen

from gputui.domain.cluster import Capability
from gputui.domain.verbs import JOBS
from gputui.tui.commands import (
    ANYWHERE_COMMANDS,
    APP_COMMANDS,
    BACK,
    BY_NAME,
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
    place_of,
)
from gputui.tui.textual_internals import bindings_to

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
OF_CLUSTERS = {(command.action_name, command.argument): command for command in COMMANDS if command.capability}
"""Commands that need a capability, by name and argument of their action."""
OF_VIEWS = frozenset(command.capability for command in COMMANDS if command.capability and not command.needs)
"""Capabilities that the queue as a whole has or lacks, whatever is selected."""
CHANGING = frozenset(command.action_name for command in COMMANDS if command.changes)
"""Actions that change more than the screen."""


def by_group(commands: tuple[Command, ...] = COMMANDS) -> dict[str, list[Command]]:
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.group, []).append(command)
    return groups


@cache  # they never change, and each unavailable command needs them
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
    "processes": (*PROCESS_COMMANDS, *(command for command in JOB_COMMANDS if command.name == "cancel")),
}
"""Commands of the menu of each pane and table, in order; only available ones are listed."""


READ_ONLY = "Not here: this console is read-only."
Lacking: TypeAlias = Mapping[Capability, str]
"""Sentence for each capability that the cluster lacks."""
ALL_THERE: Lacking = MappingProxyType({})


def why_not(command: Command, screen: Screen[Any], *, only_looks: bool = False, lacking: Lacking = ALL_THERE) -> str:
    """Return a sentence on why a command is unavailable now; empty if it is available."""
    if sentence := lack(command, lacking):
        return sentence
    place = place_of(command, screen)
    if place is not None and command.works_at(place):
        return ""
    if only_looks and command.changes:
        return READ_ONLY
    if place is None:
        somewhere = (f"on the {place}" for place, commands in places().items() if command in commands)
        return f"Not here: it works {'in a log that has the focus' if command in LOG_COMMANDS else next(somewhere)}."
    return _not_now(command, screen)


def _not_now(command: Command, screen: Screen[Any]) -> str:
    whose = getattr(screen, "not_mine", "") if command.group == JOBS or command.name == "edit" else ""
    return whose or f"Not now: it needs {command.needs}."


def lack(command: Command, lacking: Lacking) -> str:
    """Return a sentence on what the cluster, or this user, lacks for a command; empty if nothing."""
    sentence = lacking.get(command.capability, "") if command.capability else ""
    if sentence.startswith("only operators"):
        return f"{sentence.capitalize()}." if command.changes else ""  # all may look
    return f"Not in this cluster: {sentence.rstrip('.')}." if sentence else ""


def why_key_does_nothing(key: str, screen: Screen[Any], lacking: Lacking = ALL_THERE, *, only_looks: str = "") -> str:
    """Return a sentence on why a key does nothing now; empty if it does something, or if no command has it here.

    `only_looks`: what would let the user change anything in a read-only console. Escape leaves whatever there is to
    leave, and needs no explanation.
    """
    if key == "escape":
        return ""
    chain = (screen.focused or screen).ancestors_with_self
    bound = {binding.id for node in chain for binding in bindings_to(node, key)}
    told = ""
    for command in (command for name, command in BY_NAME.items() if name in bound):
        place = place_of(command, screen)
        if place is None or command.works_at(place):  # without a place, the key is bound to another action here
            return ""
        if only_looks and command.changes:
            told = told or f"{command.title}: {READ_ONLY} {only_looks.capitalize()}."
        elif reason := lack(command, lacking) or (_not_now(command, screen) if command.needs else ""):
            told = told or f"{command.title}: {reason}"
    return told
