"""A palette: the colour of each role, in one theme."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from gputui.tui.present import style


@dataclass(frozen=True)
class Palette:
    """Colours as Rich reads them: `#rrggbb`, or the name of one of a terminal's sixteen."""

    ground: str = style.GROUND
    raised: str = style.RAISED
    picked: str = style.PICKED
    picked_faint: str = style.PICKED_FAINT
    ink: str = style.INK
    quiet: str = style.QUIET
    faint: str = style.FAINT
    accent: str = style.ACCENT
    good: str = style.GOOD
    warn: str = style.WARN
    bad: str = style.BAD
    other: str = style.OTHER
    history: str = style.HISTORY
    runs: str = style.RUNS
    overrun: str = style.OVERRUN
    planned: str = style.PLANNED
    head: str = style.HEAD
    logs: tuple[str, ...] = style.LOG_NAMES + style.LOG_BRIGHT
    """The sixteen colours that a job's output may ask for."""
    on_picked: str = ""
    """What everything in the selected row is written in; empty: in its own colour."""

    def colours(self) -> Iterator[str]:
        """Every colour of a role, always in the same order."""
        for field in fields(self):
            if field.name not in ("logs", "on_picked"):
                yield getattr(self, field.name)
        yield from self.logs


TEXTS = ("ink", "quiet", "accent", "good", "warn", "bad", "other")
"""Roles in which words are written."""
GROUNDS = ("ground", "raised", "picked", "picked_faint")
"""Roles on which they are."""
BARS = (("good", "runs"), ("bad", "overrun"), ("ink", "planned"), ("warn", "head"))
"""What is written on the bars of a timeline, and their ground."""
TOLD_APART = (
    ("good", "warn"),
    ("good", "bad"),
    ("warn", "bad"),
    ("other", "good"),
    ("other", "warn"),
    ("other", "bad"),
    ("accent", "bad"),
    ("accent", "warn"),
    ("quiet", "good"),
    ("quiet", "warn"),
    ("quiet", "bad"),
    ("ink", "good"),
    ("ink", "warn"),
    ("ink", "bad"),
)
"""Pairs that stand for different states: runs and failed, running and foreign, ended well and failed."""
DARK = Palette()
"""The roles as they are written down."""
