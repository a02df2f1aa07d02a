"""Tells why a command is unavailable now, and why a key does nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, TypeAlias

from textual.dom import DOMNode
from textual.screen import Screen

from gputui.domain.cluster import Capability
from gputui.tui.commands import BY_NAME, LOG_COMMANDS
from gputui.tui.commands.command import Command, place_of
from gputui.tui.commands.places import places
from gputui.tui.textual_internals import bindings_to

READ_ONLY = "Not here: this console is read-only."
READ_ONLY_HINT = "start it without --read-only, and without the setting console.read_only, to change anything"

_places = cache(places)
"""Places of commands, cached: they never change, and each unavailable command needs them."""


Lacking: TypeAlias = Mapping[Capability, str]
"""Sentence for each capability that the cluster lacks."""
ALL_THERE: Lacking = MappingProxyType({})


def why_not(command: Command, screen: Screen[Any], *, only_looks: bool = False, lacking: Lacking = ALL_THERE) -> str:
    """Return a sentence on why a command is unavailable now; empty if it is available."""
    if sentence := _lack(command, lacking):
        return sentence
    place = place_of(command, screen)
    if place is not None and command.works_at(place):
        return ""
    if only_looks and command.changes:
        return READ_ONLY
    if place is None:
        return f"Not here: it works {_where(command)}."
    return _not_now(command)


def _not_now(command: Command) -> str:
    return f"Not now: it needs {command.needs}."


def _where(command: Command) -> str:
    if command in LOG_COMMANDS:
        return "in a log that has the focus"
    return next(f"on the {place}" for place, commands in _places().items() if command in commands)


def _lack(command: Command, lacking: Lacking) -> str:
    """Return a sentence on what the cluster lacks for a command; empty if nothing."""
    sentence = lacking.get(command.capability, "") if command.capability else ""
    return f"Not in this cluster: {sentence.rstrip('.')}." if sentence else ""


def why_key_does_nothing(
    key: str, screen: Screen[Any], lacking: Lacking = ALL_THERE, *, only_looks: bool = False
) -> str:
    """Return a sentence on why a key does nothing now; empty if it does something, or if no command has it here.

    `only_looks`: the console is read-only. Escape leaves whatever there is to leave, and needs no explanation.
    """
    if key == "escape":
        return ""
    bound = {binding.id for node in _chain(screen) for binding in bindings_to(node, key)}
    told = ""
    for command in (command for name, command in BY_NAME.items() if name in bound):
        place = place_of(command, screen)
        if place is None or command.works_at(place):  # without a place, the key is bound to another action here
            return ""
        if only_looks and command.changes:
            told = told or f"{command.title}: {READ_ONLY} {READ_ONLY_HINT.capitalize()}."
        elif reason := _lack(command, lacking) or (_not_now(command) if command.needs else ""):
            told = told or f"{command.title}: {reason}"
    return told


def _chain(screen: Screen[Any]) -> list[DOMNode]:
    """Return the nodes whose keys work now: the focused pane, those around it, screen and app."""
    return [*(screen.focused or screen).ancestors_with_self]
