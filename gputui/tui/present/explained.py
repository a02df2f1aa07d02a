"""Why a waiting job stands where it stands, as lines of its page: what `gputui explain` tells."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.tui.present.cells import Cell, Span, cell
from gputui.tui.present.style import AMBER, DIM, PLAIN, RED

if TYPE_CHECKING:
    from gputui.domain.policy.explain import Explanation, TermWords

Line = tuple[str, Cell]


@dataclass(frozen=True)
class Told:
    """What is known of the explanation of a waiting job."""

    explanation: Explanation | None = None
    """None: still being worked out."""
    failure: str = ""
    is_compact: bool = False
    """There are few rows: the score is one line."""


def sureness(told: Told) -> list[Line]:
    """How sure its expected start is."""
    found = told.explanation
    return [("how sure", cell(plain(found.certainty, 400)) if found else _pending(told))]


def score_lines(job: Job, told: Told, now: datetime) -> list[Line]:
    """Its score, and of what that is made."""
    found = told.explanation
    if found is None:
        return [("score", _pending(told))]
    first: Span = (" · put first by hand, before every score" if job.topped_at else "", AMBER)
    total: Span = (f"{found.terms.total:.0f}", PLAIN)
    place: Span = (f" · number {found.position} of {found.waiting} waiting", DIM)
    from gputui.domain.policy.explain import told_terms

    terms = told_terms(job, found, now)
    if told.is_compact:
        return [("score", (total, (" = ", DIM), *_sum(terms), place, first))]
    return [("score", (total, place, first)), *map(_term_line, terms)]


def _pending(told: Told) -> Cell:
    return cell(f"not known: {plain(told.failure, 200)}", RED) if told.failure else cell("being worked out …", DIM)


def _sum(terms: tuple[TermWords, ...]) -> Cell:
    """`class 1000 + age 12 - duration 42 + fair share 250 + nice 0`."""
    spans: list[Span] = []
    for term in terms:
        sign = "- " if term.points < 0 else "+ " if spans else ""
        spans += [(f" {sign}" if spans else sign, DIM), (f"{term.name} {abs(term.points):.0f}", PLAIN)]
    return tuple(spans)


def _term_line(term: TermWords) -> Line:
    return f"  {term.name}", ((f"{term.points:8.1f}", PLAIN), (f"  {plain(term.of, 120)}", DIM))
