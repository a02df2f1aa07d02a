"""Thin bars, and history graphs of braille dots."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from gputui.tui.present.cells import Cell
from gputui.tui.present.style import AMBER, DIM, GREEN, RED, TRACK

_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)
"""Braille dots that fill the left and right half of a cell from below, by height 0 to 4 (Unicode block 2800)."""


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
    """The newest readings at the right, two to a cell and four dots high; a gap where nothing was read."""
    newest = history[-2 * room :]
    points: list[float | None] = [*[None] * (2 * room - len(newest)), *newest]
    return "".join(
        chr(0x2800 | _LEFT[_height(points[i])] | _RIGHT[_height(points[i + 1])]) for i in range(0, 2 * room, 2)
    )


def _height(share: float | None) -> int:
    """A reading that is there has one dot at least, so that idle differs from unknown."""
    return 0 if share is None else 1 + min(3, int(share * 4))
