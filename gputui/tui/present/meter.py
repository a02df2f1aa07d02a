"""Thin bars, and history graphs of blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from rich.style import Style

from gputui.tui.present.cells import Cell
from gputui.tui.present.style import AMBER, DIM, GREEN, PLAIN, RED, TRACK

_EIGHTHS = "▁▂▃▄▅▆▇█"


def bar(share: float | None, room: int, style: Style) -> Cell:
    """`share` of `room` cells filled; nothing but the track when it is unknown."""
    if share is None:
        return (("╌" * room, TRACK),)
    whole, half = divmod(round(min(1.0, max(0.0, share)) * room * 2), 2)
    filled = "━" * whole + "╸" * half
    return ((filled, style), ("─" * (room - len(filled)), TRACK))


def load_style(share: float | None) -> Style:
    """Quiet when idle, green when busy."""
    return DIM if share is None or share < 0.05 else GREEN


def heat_style(celsius: float | None) -> Style:
    """Amber where boards begin to slow down, red where they do."""
    if celsius is None or celsius < 80:
        return DIM
    return AMBER if celsius < 88 else RED


def graph(history: Sequence[float | None], room: int) -> str:
    """The newest readings at the right, one to a cell; a gap where nothing was read."""
    return "".join(_height(share) for share in history[-room:]).rjust(room)


def _height(share: float | None) -> str:
    """A reading that is there has one eighth at least, so that idle differs from unknown."""
    return " " if share is None else _EIGHTHS[min(7, max(0, int(share * 8)))]


_PERCENT = re.compile(r"[,:]?\s*\b(\d{1,3})\s?%")
_WORK = 7
"""Cells of the bar of something under way."""


def progress(words: str, now: datetime) -> Cell:
    """A bar as far as the words say it is, in percent; where they do not, something that moves with the time."""
    found = _PERCENT.search(words)
    if found is None:
        return (*moving(int(now.timestamp())), (f" {words}", AMBER))
    percent = min(100, int(found[1]))
    rest = (words[: found.start()] + words[found.end() :]).strip()
    return (*bar(percent / 100, _WORK, AMBER), (f" {percent:>2} %", PLAIN), (f" {rest}", AMBER))


def moving(second: int, room: int = _WORK) -> Cell:
    """To and fro, a cell a second: what that costs the terminal is a few bytes."""
    way = room - 2
    at = way - abs(way - second % (2 * way))
    return (("─" * at, TRACK), ("━━", AMBER), ("─" * (way - at), TRACK))
