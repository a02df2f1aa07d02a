"""What was submitted with the form lately, kept among what the console remembers of this person.

Values of the environment are never kept: they may be secrets. Their names are, so that one knows what to type again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputui.domain.text import fit, plain, width
from gputui.request.draft import NAMES, Draft, env_names, typed
from gputui.tui.remembered import Remembered

SECTION = "submissions"
MOST = 40
_COLUMN = 40
"""Cells of a column of their list at most."""
MOST_BYTES = 8192
"""Of one submission: the file is read whole at every start."""


@dataclass(frozen=True)
class Past:
    """A submission, without the values of its environment."""

    draft: Draft
    env: tuple[str, ...] = ()
    """Names of the variables that it set."""


def past(remembered: Remembered) -> tuple[Past, ...]:
    """The last submissions, the newest first; what is damaged is left out."""
    listed = remembered.get(SECTION).get("drafts")
    found = [_past(entry) for entry in listed] if isinstance(listed, list) else []
    return tuple(entry for entry in found if entry is not None)[:MOST]


def keep(remembered: Remembered, draft: Draft) -> None:
    """Put it first; the same one is not kept twice."""
    entry = Past({name: text for name, text in typed(draft).items() if name != "env"}, env_names(draft))
    if sum(len(text.encode()) for text in entry.draft.values()) > MOST_BYTES:
        return
    kept = [entry, *(other for other in past(remembered) if other != entry)][:MOST]
    remembered.put(SECTION, {"drafts": [{**each.draft, "env_names": list(each.env)} for each in kept]})


def _past(entry: object) -> Past | None:
    if not isinstance(entry, dict):
        return None
    texts = {name: text for name in NAMES if name != "env" and isinstance(text := entry.get(name), str)}
    names = entry.get("env_names")
    env = tuple(str(name) for name in names) if isinstance(names, list) else ()
    return Past(texts, env) if texts.get("image") or texts.get("command") else None


def _gpus(asked: str) -> str:
    if asked in {"", "0"}:
        return ""
    return f"{asked} GPU" if asked == "1" else f"{asked} GPUs"


def lines_of(drafts: Sequence[Draft]) -> list[str]:
    """What tells one from another in a list: names, GPUs, images in columns, and the command."""
    rows = [[plain(word, 300) for word in _words(draft)] for draft in drafts]
    wide = [min(_COLUMN, max(map(width, column))) for column in zip(*rows, strict=True)]
    return ["  ".join(_padded(row, wide)).rstrip() for row in rows]


def _words(draft: Draft) -> tuple[str, str, str, str]:
    return draft.get("name", ""), _gpus(draft.get("gpus", "")), draft.get("image", ""), draft.get("command", "")


def _padded(row: Sequence[str], wide: Sequence[int]) -> list[str]:
    """Its words as wide as their columns, without those that nobody has; the last one as it is."""
    *first, last = row
    return [fit(word, cells) for word, cells in zip(first, wide[:-1], strict=True) if cells] + [last]
