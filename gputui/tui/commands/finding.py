"""Commands found by letters of their name, or by words of what they do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from textual.fuzzy import FuzzySearch
from textual.screen import Screen

from gputui.tui.commands import COMMANDS
from gputui.tui.commands.command import Command, place_of

_SEARCH = FuzzySearch()
_BY_WORDS, _WHOLE = 0.0, 1000.0
"""What finding it by its sentence alone is worth, beside the score of letters of its name; and the whole name."""


@dataclass(frozen=True)
class Found:
    """A command that was looked for."""

    command: Command
    letters: frozenset[int] = frozenset()
    """Which of its label matched, from 0."""

    @property
    def label(self) -> str:
        """What it is called in the palette."""
        return label(self.command)


def label(command: Command) -> str:
    """Its name, and before it that of its group: several have `next`."""
    return f"{command.group}: {command.title}"


def working(screen: Screen[Any]) -> list[Command]:
    """Those that can be found by name and work now, in the focused pane, on the screen or in the app."""
    return [command for command in COMMANDS if command.in_palette and _works(command, screen)]


def _works(command: Command, screen: Screen[Any]) -> bool:
    place = place_of(command, screen)
    return place is not None and command.works_at(place)


def find(commands: Sequence[Command], wanted: str) -> list[Found]:
    """The best first; all of them, as they are, where nothing is wanted."""
    text = " ".join(wanted.split()).lower()
    if not text:
        return [Found(command) for command in commands]
    scored = [each for command in commands if (each := _scored(command, text)) is not None]
    return [found for _, found in sorted(scored, key=lambda each: -each[0])]


def _scored(command: Command, text: str) -> tuple[float, Found] | None:
    name = label(command)
    if text in {name.lower(), command.title.lower()}:
        return _WHOLE, Found(command, _ending(name, text))
    score, letters = _SEARCH.match(text, name)
    if score > 0:
        return score, Found(command, frozenset(letters))
    return (_BY_WORDS, Found(command)) if _has_all(f"{name} {command.help}".lower(), text.split()) else None


def _ending(name: str, text: str) -> frozenset[int]:
    return frozenset(range(len(name) - len(text), len(name)))


def _has_all(text: str, words: Iterable[str]) -> bool:
    return all(word in text for word in words)
