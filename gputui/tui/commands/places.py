"""Places where commands work: those of their keys, the menus of panes, and why a command or key does nothing now."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

from textual.screen import Screen

from gputui.domain.cluster import Capability
from gputui.domain.verbs import JOBS
from gputui.tui.commands import table
from gputui.tui.commands.command import Command, place_of
from gputui.tui.keys import key_name
from gputui.tui.textual_internals import bindings_to

_IN_A_TAB = frozenset({"pause_recurring", "resume_recurring", "remove"})
_PLACES = {
    "main screen": (
        *(command for command in table.MAIN_COMMANDS if command.name not in _IN_A_TAB),
        *table.EDIT_COMMANDS,
        *table.QUEUE_COMMANDS,
        *table.PANE_COMMANDS,
        *table.APP_COMMANDS,
        *table.MOVE_COMMANDS,
        *table.GRID_COMMANDS,
        *table.LOG_COMMANDS,
        *table.LOG_JOB_COMMANDS,
    ),
    "tab of recurring jobs": (
        *table.STANDING_COMMANDS,
        *table.QUEUE_COMMANDS,
        *table.PANE_COMMANDS,
        *table.APP_COMMANDS,
        *table.MOVE_COMMANDS,
    ),
    "columns": (*table.COLUMN_COMMANDS, table.BACK, *table.MOVE_COMMANDS),
    "logs": (
        *table.JOB_COMMANDS,
        *table.LOG_COMMANDS,
        *(command for command in table.LOG_JOB_COMMANDS if command.name != "attempts"),
        *(command for command in table.PANE_COMMANDS if command.action_name in {"zoom", "pane"}),
        table.BACK,
        *table.APP_COMMANDS,
        *table.MOVE_COMMANDS,
    ),
    "screen of a job": (*table.JOB_COMMANDS, table.BACK, *table.APP_COMMANDS),
    "screen of a GPU": (
        *table.JOB_COMMANDS,
        *table.GPU_PAGE_COMMANDS,
        table.BACK,
        *table.APP_COMMANDS,
        *table.MOVE_COMMANDS,
    ),
    "screen of processes": (
        table.PROCESSES,
        table.SHELL,
        table.COPY,
        table.BACK,
        *table.APP_COMMANDS,
        *table.MOVE_COMMANDS,
    ),
    "process view": (
        table.PROCESS_VIEW,
        *table.PROCESS_COMMANDS,
        *(command for command in table.QUEUE_COMMANDS if command.action in {"filter", "clear_filter"}),
        *(command for command in table.JOB_COMMANDS if command.name == "cancel"),
        table.BACK,
        *(command for command in table.APP_COMMANDS if command is not table.PROCESS_VIEW),
        *table.MOVE_COMMANDS,
    ),
    "page of a container": (
        table.STOP_CONTAINER,
        *table.LOG_COMMANDS,
        *(command for command in table.LOG_JOB_COMMANDS if command.name == "error"),
        table.BACK,
        *table.APP_COMMANDS,
        *table.MOVE_COMMANDS,
    ),
    "submit form": (*table.SUBMIT_COMMANDS, table.PALETTE),
    "timeline": (
        table.TIMELINE_SCREEN,
        *table.JOB_COMMANDS,
        *table.GPU_COMMANDS,
        *table.TIMELINE_COMMANDS,
        table.BACK,
        *table.APP_COMMANDS,
        *table.MOVE_COMMANDS,
    ),
    "what-if panel": (*table.WHAT_IF_COMMANDS, *table.FURTHER, table.YES, table.NO),
    "questions": (table.YES, table.NO),
    "question at the end": table.LEAVE_COMMANDS,
    "lists to choose from": (table.TAKE_LINE, table.SAVE_TEMPLATE, table.BACK, *table.MOVE_COMMANDS),
    "list of themes": (table.TAKE_LINE, table.BACK, *table.MOVE_COMMANDS[:2]),
    "dialog that copies": (*table.COPY_COMMANDS, table.BACK),
    "help": (table.SEARCH_HELP, table.HELP, table.CLOSE, table.BACK, *table.MOVE_COMMANDS),
    "notices": (table.NOTICES, table.CLOSE, table.BACK, *table.MOVE_COMMANDS),
    "lines to type": (table.GIVE_UP,),
    "form of a reservation": (table.GIVE_UP, table.SEND),
}
OF_CLUSTERS = {(command.action_name, command.argument): command for command in table.COMMANDS if command.capability}
"""Commands that need a capability, by name and argument of their action."""
OF_VIEWS = frozenset(command.capability for command in table.COMMANDS if command.capability and not command.needs)
"""Capabilities that the queue as a whole has or lacks, whatever is selected."""
CHANGING = frozenset(command.action_name for command in table.COMMANDS if command.changes)
"""Actions that change more than the screen."""


def by_group(commands: tuple[Command, ...] = table.COMMANDS) -> dict[str, list[Command]]:
    groups: dict[str, list[Command]] = {}
    for command in commands:
        groups.setdefault(command.group, []).append(command)
    return groups


@cache  # they never change, and each unavailable command needs them
def places() -> dict[str, tuple[Command, ...]]:
    """Return the commands by the place of their keys; those not named above belong to their group's place."""
    found = {place: (*commands, *table.ANYWHERE_COMMANDS) for place, commands in _PLACES.items()}
    placed = {command.name for commands in found.values() for command in commands}
    for command in table.COMMANDS:
        if command.name not in placed:
            found[command.group] = (*found.get(command.group, table.APP_COMMANDS), command)
    return found


_OF_ROWS = frozenset({"mark", "filter", "clear_filter", "fold", "sort", "columns"})
_OF_PANES = tuple(
    command for command in table.PANE_COMMANDS if command.action_name in {"zoom", "hide", "all_panes", "log_place"}
)
_OF_GPUS = frozenset({"reserve", "gpu_view", "gpu_processes", "graph_span"})
_OF_LOGS = frozenset(
    {
        *("pause_log", "log_search", "log_only", "clear_log", "error", "attempt_before", "attempt_after", "attempts"),
        *("pin_log", "log_wrap", "log_times", "copy_lines", "save_log"),
    }
)
_EVERY = (*table.JOB_COMMANDS, *table.EDIT_COMMANDS, *table.QUEUE_COMMANDS, *table.PANE_COMMANDS, *table.APP_COMMANDS)
MENUS = {
    "queue": (
        *table.STANDING_COMMANDS,
        *table.JOB_COMMANDS,
        table.GPU,
        *(command for command in table.EDIT_COMMANDS if command.name not in _OF_GPUS),
        *(command for command in table.QUEUE_COMMANDS if command.name in _OF_ROWS),
        *_OF_PANES,
    ),
    "gpus": (
        table.GPU,
        *table.GPU_COMMANDS,
        *(command for command in _EVERY if command.name in _OF_GPUS),
        *table.JOB_COMMANDS,
        *_OF_PANES,
    ),
    "log": (
        *(command for command in (*table.LOG_COMMANDS, *table.LOG_JOB_COMMANDS) if command.name in _OF_LOGS),
        *_OF_PANES,
    ),
    "processes": (*table.PROCESS_COMMANDS, *(command for command in table.JOB_COMMANDS if command.name == "cancel")),
}
"""Commands of the menu of each pane and table, in order; only available ones are listed."""


def menu_words(commands: tuple[Command, ...]) -> tuple[str, ...]:
    rows = [(command.title, key_name(command.keys[0]) if command.keys else "") for command in commands]
    names, keys = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    return tuple(f"{title:<{names}}  {key:>{keys}}" for title, key in rows)


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
        return (
            f"Not here: it works {'in a log that has the focus' if command in table.LOG_COMMANDS else next(somewhere)}."
        )
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
    for command in (command for name, command in table.BY_NAME.items() if name in bound):
        place = place_of(command, screen)
        if place is None or command.works_at(place):  # without a place, the key is bound to another action here
            return ""
        if only_looks and command.changes:
            told = told or f"{command.title}: {READ_ONLY} {only_looks.capitalize()}."
        elif reason := lack(command, lacking) or (_not_now(command, screen) if command.needs else ""):
            told = told or f"{command.title}: {reason}"
    return told
