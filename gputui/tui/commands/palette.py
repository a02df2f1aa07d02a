"""Finds commands by letters of their name, by a synonym such as `kill`, or by words of their description.

What cannot be done now is found as well as what can: else the name of the one would find the other, and Enter carry
out a command that nobody meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from textual.fuzzy import FuzzySearch
from textual.screen import Screen

from gputui.tui.commands import COMMANDS, LOG_COMMANDS
from gputui.tui.commands.command import Command, place_of
from gputui.tui.commands.places import places

_places = cache(places)
"""Places of commands, cached: they never change, and each command that does not work asks for them."""


@dataclass(frozen=True)
class Offer:
    """A command that can be found by name, on one screen at one moment."""

    command: Command
    why_not: str = ""
    """A sentence, where it cannot be done; empty where it can."""

    @property
    def label(self) -> str:
        """Name with its group before it: several commands are called `next`."""
        return f"{self.command.group}: {self.command.title}"


def offers(screen: Screen[Any], *, only_looks: bool = False) -> list[Offer]:
    """Return the commands that work now in the focused pane, on the screen or in the app; behind them the others.

    `only_looks`: the console may change nothing.
    """
    found = [
        Offer(command, why_not(command, screen, only_looks=only_looks)) for command in COMMANDS if command.in_palette
    ]
    return sorted(found, key=lambda offer: bool(offer.why_not))


def why_not(command: Command, screen: Screen[Any], *, only_looks: bool = False) -> str:
    """Return the sentence on why a command cannot be done now; empty if it can."""
    place = place_of(command, screen)
    if place is not None and command.works_at(place):
        return ""
    if only_looks and command.changes:
        return "Not here: this console is read-only."
    if place is None:
        return f"Not here: it works {_where(command)}."
    return f"Not now: it needs {command.needs}."


def _where(command: Command) -> str:
    if command in LOG_COMMANDS:
        return "in a log that has the focus"
    return next(f"on the {place}" for place, commands in _places().items() if command in commands)


_SEARCH = FuzzySearch()
_BY_WORDS, _BEGINS_SYNONYM, _BEGINS_TITLE, _SYNONYM, _WHOLE = 0.0, 700.0, 800.0, 900.0, 1000.0
"""Scores of a command found by its sentence alone, by the beginning of a synonym or of its title, by a synonym, and by
its whole name. Letters anywhere in the name score between the first two."""
_LEAST = 3
"""Letters of a title or synonym at least: fewer begin too many words."""


@dataclass(frozen=True)
class Match:
    """A command that was looked for."""

    offer: Offer
    letters: frozenset[int] = frozenset()
    """Places of the label's letters that matched, from 0."""


def find(offers: Sequence[Offer], wanted: str) -> list[Match]:
    """The best first, of equals those that work; all that work, as they are, where nothing is wanted."""
    text = " ".join(wanted.split()).lower()
    if not text:
        return [Match(offer) for offer in offers if not offer.why_not]
    scored = [each for offer in offers if (each := _scored(offer, text)) is not None]
    scored.sort(key=lambda each: (-each[0], bool(each[1].offer.why_not)))
    return [found for _, found in scored]


def _scored(offer: Offer, text: str) -> tuple[float, Match] | None:
    name = offer.label
    if text in {name.lower(), offer.command.title.lower()}:
        return _WHOLE, Match(offer, _letters(name, text, len(text)))
    score, letters = _SEARCH.match(text, name)
    synonyms = offer.command.synonyms.lower().split(", ")
    if text in synonyms:
        return _SYNONYM, Match(offer)
    if len(text) >= _LEAST and offer.command.title.lower().startswith(text):
        return _BEGINS_TITLE, Match(offer, _letters(name, offer.command.title, len(text)))
    if len(text) >= _LEAST and any(word.startswith(text) for word in synonyms):
        return _BEGINS_SYNONYM, Match(offer)
    if score > 0:
        return score, Match(offer, frozenset(letters))
    return (_BY_WORDS, Match(offer)) if _has_all(_all_words(offer), text.split()) else None


def _all_words(offer: Offer) -> str:
    return f"{offer.label} {offer.command.help} {offer.command.synonyms}".lower()


def _letters(name: str, title: str, count: int) -> frozenset[int]:
    """Return the places of the first letters of the title, with which the name ends."""
    first = len(name) - len(title)
    return frozenset(range(first, first + count))


def _has_all(text: str, words: Iterable[str]) -> bool:
    return all(word in text for word in words)
