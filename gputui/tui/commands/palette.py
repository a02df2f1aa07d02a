"""Finds commands by letters of their name, by a synonym such as `kill`, or by words of their description.

Unavailable commands are found as well: otherwise the name of one would find another command, and Enter would run that
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from textual.fuzzy import FuzzySearch
from textual.screen import Screen

from gputui.tui.commands import COMMANDS
from gputui.tui.commands.command import Command
from gputui.tui.commands.refusal import ALL_THERE, Lacking, why_not


class Offer(Struct, frozen=True):
    """A command found by name, on one screen at one moment."""

    command: Command
    why_not: str = ""
    """Reason why it is unavailable; empty if it is available."""

    @property
    def label(self) -> str:
        """Name with its group before it, since several commands are called `next`."""
        return f"{self.command.group}: {self.command.title}"


def offers(screen: Screen[Any], *, only_looks: bool = False, lacking: Lacking = ALL_THERE) -> list[Offer]:
    """Return the commands available in the focused pane, on the screen or in the app, followed by the others.

    `only_looks`: the console is read-only. `lacking`: what the cluster cannot do.
    """
    found = [
        Offer(command, why_not(command, screen, only_looks=only_looks, lacking=lacking))
        for command in COMMANDS
        if command.in_palette
    ]
    return sorted(found, key=lambda offer: bool(offer.why_not))


_SEARCH = FuzzySearch()
_BY_WORDS, _BEGINS_SYNONYM, _BEGINS_TITLE, _SYNONYM, _WHOLE = 0.0, 700.0, 800.0, 900.0, 1000.0
"""Scores of a command, by the way in which it was found.

By its description, by the beginning of a synonym or of its title, by a synonym, and by its whole name. Letters anywhere
in the name score between the first two.
"""
_LEAST = 3
"""Minimum number of letters of a title or synonym; fewer begin too many words."""


class Match(Struct, frozen=True):
    """A command that matches a search."""

    offer: Offer
    letters: frozenset[int] = frozenset()
    """Positions of the matching letters in the label, from 0."""


def find_commands(offers: Sequence[Offer], wanted: str) -> list[Match]:
    """Return the matches, best first, available ones first among equals; without a text, all available ones."""
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
    synonyms = [word.lower() for word in offer.command.synonyms]
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
    return f"{offer.label} {offer.command.help} {' '.join(offer.command.synonyms)}".lower()


def _letters(name: str, title: str, count: int) -> frozenset[int]:
    """Return the positions of the first letters of the title, which is the end of the name."""
    first = len(name) - len(title)
    return frozenset(range(first, first + count))


def _has_all(text: str, words: Iterable[str]) -> bool:
    return all(word in text for word in words)
