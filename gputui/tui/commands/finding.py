"""Commands found by letters of their name, or by words of what they do.

What cannot be done now is found as well as what can: else the name of the one would find the other, and Enter carry
out a command that nobody meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from textual.fuzzy import FuzzySearch

from gputui.tui.commands.offers import Offer

_SEARCH = FuzzySearch()
_BY_WORDS, _WHOLE = 0.0, 1000.0
"""What finding it by its sentence alone is worth, beside the score of letters of its name; and the whole name."""


@dataclass(frozen=True)
class Found:
    """A command that was looked for."""

    offer: Offer
    letters: frozenset[int] = frozenset()
    """Which of its label matched, from 0."""


def find(offers: Sequence[Offer], wanted: str) -> list[Found]:
    """The best first, of equals those that work; all that work, as they are, where nothing is wanted."""
    text = " ".join(wanted.split()).lower()
    if not text:
        return [Found(offer) for offer in offers if not offer.why_not]
    scored = [each for offer in offers if (each := _scored(offer, text)) is not None]
    scored.sort(key=lambda each: (-each[0], bool(each[1].offer.why_not)))
    return [found for _, found in scored]


def _scored(offer: Offer, text: str) -> tuple[float, Found] | None:
    name = offer.label
    if text in {name.lower(), offer.command.title.lower()}:
        return _WHOLE, Found(offer, _ending(name, text))
    score, letters = _SEARCH.match(text, name)
    if score > 0:
        return score, Found(offer, frozenset(letters))
    return (_BY_WORDS, Found(offer)) if _has_all(f"{name} {offer.command.help}".lower(), text.split()) else None


def _ending(name: str, text: str) -> frozenset[int]:
    return frozenset(range(len(name) - len(text), len(name)))


def _has_all(text: str, words: Iterable[str]) -> bool:
    return all(word in text for word in words)
