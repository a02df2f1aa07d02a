"""What the palette has to offer on a screen: what works now, and why the rest does not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from textual.screen import Screen

from gputui.tui.commands import COMMANDS, LOG_COMMANDS
from gputui.tui.commands.command import Command, place_of
from gputui.tui.commands.places import places

_places = cache(places)
"""Once: they never change, and each command that does not work asks for them."""


@dataclass(frozen=True)
class Offer:
    """A command that can be found by name, on one screen at one moment."""

    command: Command
    why_not: str = ""
    """A sentence, where it cannot be done; empty where it can."""

    @property
    def label(self) -> str:
        """Its name, and before it that of its group: several have `next`."""
        return f"{self.command.group}: {self.command.title}"


def offers(screen: Screen[Any], *, only_looks: bool = False) -> list[Offer]:
    """What works now in the focused pane, on the screen or in the app; behind it all else.

    `only_looks`: the console may change nothing.
    """
    found = [
        Offer(command, why_not(command, screen, only_looks=only_looks)) for command in COMMANDS if command.in_palette
    ]
    return sorted(found, key=lambda offer: bool(offer.why_not))


def why_not(command: Command, screen: Screen[Any], *, only_looks: bool = False) -> str:
    """Why it cannot be done now, a sentence; empty if it can."""
    place = place_of(command, screen)
    if place is not None and command.works_at(place):
        return ""
    if only_looks and command.changes:
        return "Not here: this console only looks on."
    if place is None:
        return f"Not here: it works {_where(command)}."
    return f"Not now: it needs {command.needs}."


def _where(command: Command) -> str:
    if command in LOG_COMMANDS:
        return "in a log that has the focus"
    return next(f"on the {place}" for place, commands in _places().items() if command in commands)
