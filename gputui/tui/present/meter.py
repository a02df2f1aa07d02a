"""Thin bars, and history graphs of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from gputui.tui.present.cells import Cell
from gputui.tui.present.style import AMBER, DIM, GREEN, RED, TRACK

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
