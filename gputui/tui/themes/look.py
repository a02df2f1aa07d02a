"""Exchanges, in every line on its way to the terminal, the colours of roles for a theme's and characters for ASCII.

A Textual line filter: it sees all that is drawn, by our widgets and Textual's, so nothing can be left out of it. Each
style and each text is worked out once; lines that did not change are not drawn, and cost nothing.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

from gputui.tui.glyphs import ascii_of
from gputui.tui.themes.exchange import exchange
from gputui.tui.themes.palette import DARK, Palette

_NO_STYLE = Style.null()


class Look(LineFilter):
    """One palette, with or without colours, in Unicode or ASCII."""

    def __init__(self, palette: Palette = DARK, *, colourless: bool = False, ascii_only: bool = False) -> None:
        super().__init__(enabled=colourless or ascii_only or palette != DARK)
        self._ascii = ascii_only
        self._styled = exchange(palette, colourless=colourless)

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same in this look."""
        del background
        styled = self._styled
        return [
            Segment(ascii_of(text) if self._ascii else text, styled(style or _NO_STYLE), control)
            for text, style, control in segments
        ]
