"""Replaces, in every line on its way to the terminal, role colours by a theme's colours and characters by ASCII.

A Textual line filter: it processes everything that is drawn, by gputui's widgets and Textual's. Each style and each
text is computed once; unchanged lines are not drawn, and cost nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as Background
from textual.filter import LineFilter

from gputui.domain.text import JOINER, width
from gputui.tui.themes.derived import contrast
from gputui.tui.themes.palette import DARK, Palette

_PAIRS = (
    ("▁▂▃▄▅▆▇█", "_.:-=+*#"),  # eighths of a cell, from the bottom
    ("▏▎▍▌▋▊▉▐", "||||####"),
    ("░▒▓▔▀▙▛▜▟", ":%#######"),
    ("━╸╺═╍╌≈─│", "=--#~.!-|"),
    ("┣┫├┤╞╡", "[](){}"),  # beginnings and ends of timeline bars
    ("▸▶▾◂▲▼△▽←→↑↓↩⇒↳↵", ">>v<^v^v<>^v<>`<"),
    ("●○◐◑◉•·■□◆✓✔✗✘✕×‖⚠★☆", "*ooo@*.#o*vvxxxx=!**"),
    ("▰▱", "#-"),
    ("…–—−‐‑°±µμ", "~----- +uu"),
    ("“”„‘’«»≤≥≠", '"""\'\'<><>!'),
    ("\u00a0\u2007\u2009\u202f�ßøØæ", "    ?soOa"),
)
_CURSOR = {"▌": ">", "▌ ": "> "}
"""Marks of the cursor's row, each a text of its own; within a longer text the same character ends a bar."""
_SINGLE = {shown: plain for many, plains in _PAIRS for shown, plain in zip(many, plains, strict=True)}


def ascii_of(text: str) -> str:
    """Return the text in ASCII, with the same width in cells."""
    return text if text.isascii() else _CURSOR.get(text) or _translated(text)


@lru_cache(4096)
def _translated(text: str) -> str:
    found: list[str] = []
    joined = False
    for character in text:
        if not joined:
            found.append(_of(character))
        joined = character == JOINER
    return "".join(found)


@lru_cache(2048)
def _of(character: str) -> str:
    if character.isascii():
        return character
    cells = width(character)
    if (known := _SINGLE.get(character)) is not None and cells == 1:
        return known
    return (_drawn(ord(character)) or _letter(character) or "?").ljust(cells, "?")[:cells]


def _drawn(code: int) -> str:
    """Return the replacement of box lines, and of braille by its highest dot."""
    if 0x2500 <= code < 0x2580:
        words = unicodedata.name(chr(code))
        is_across, is_upright = "HORIZONTAL" in words, "VERTICAL" in words
        return "-" if is_across and not is_upright else "|" if is_upright and not is_across else "+"
    if 0x2800 <= code < 0x2900:
        dots = code - 0x2800
        heights = ((0x09, "#"), (0x12, "="), (0x24, "-"), (0xC0, "."))
        return next((shown for mask, shown in heights if dots & mask), " ")
    return "#" if 0x2580 <= code < 0x25A0 else ""


def _letter(character: str) -> str:
    """Return the letter without diacritics."""
    plain = unicodedata.normalize("NFKD", character)
    return "".join(part for part in plain if part.isascii() and part.isprintable())[:1]


_PICKED, _PICKED_FAINT = Color.parse(DARK.picked), Color.parse(DARK.picked_faint)
_SICK = Color.parse(DARK.sick)
_LOUD = 3.0
"""Contrast from which a background has a meaning, and is reversed if there are no colours."""


def exchange(palette: Palette, *, colourless: bool = False) -> Callable[[Style], Style]:
    """Return the function that replaces styles; each style is computed once."""
    return lru_cache(4096)(_Bare(palette).style if colourless else _Coloured(palette).style)


class _Coloured:
    """Replaces role colours with a palette's; other colours stay."""

    def __init__(self, palette: Palette) -> None:
        pairs = zip(DARK.colours(), palette.colours(), strict=True)
        self._colours = {Color.parse(role): Color.parse(shown) for role, shown in pairs}
        self._on_picked = Style(color=palette.on_picked) if palette.on_picked else None
        same = palette.picked_faint == palette.ground
        self._on_picked_faint = Style(underline=True) if same else None
        self._on_raised = Style(bold=True) if palette.raised == palette.ground else None
        self._raised = Color.parse(DARK.raised)
        self._is_settled = not palette.ground.startswith("#") and palette.ground != "default"
        self._ink, self._ground = Color.parse(palette.ink), Color.parse(palette.ground)

    def style(self, style: Style) -> Style:
        colours = Style.from_color(_in(self._colours, style.color), _in(self._colours, style.bgcolor))
        return self._settled(style + colours + (self._mark(style.bgcolor) or Style.null()))

    def _settled(self, style: Style) -> Style:
        """Return the style with the palette's own two of the sixteen colours in place of terminal defaults."""
        if not self._is_settled:
            return style
        ink = self._ink if style.color is None or style.color.is_default else None
        ground = self._ground if style.bgcolor is None or style.bgcolor.is_default else None
        return style + Style.from_color(ink, ground)

    def _mark(self, ground: Color | None) -> Style | None:
        """Return the mark for grounds that the palette cannot distinguish."""
        marks = {_PICKED: self._on_picked, _PICKED_FAINT: self._on_picked_faint, self._raised: self._on_raised}
        return marks.get(ground) if ground is not None else None


def _in(colours: dict[Color, Color], colour: Color | None) -> Color | None:
    return colours.get(colour) if colour is not None else None


class _Bare:
    """Look without colours, with weight, underlining and reversal instead."""

    def __init__(self, palette: Palette) -> None:
        self._ground = palette.ground if palette.ground.startswith("#") else "#000000"
        loud, quiet = (DARK.bad, DARK.accent), (DARK.faint,)
        self._weights = {Color.parse(colour): Style(bold=True) for colour in loud}
        self._weights |= {Color.parse(colour): Style(dim=True) for colour in quiet}

    def style(self, style: Style) -> Style:
        bare = style.without_color
        if style.color is not None:
            bare += self._weights.get(style.color, Style.null())
        if style.meta:
            bare += Style.from_meta(style.meta)
        return bare + self._behind(style.bgcolor)

    def _behind(self, ground: Color | None) -> Style:
        if ground in (_PICKED, _SICK):
            return Style(reverse=True)
        if ground == _PICKED_FAINT:
            return Style(underline=True)
        if ground is not None and ground.triplet is not None and contrast(ground.triplet.hex, self._ground) >= _LOUD:
            return Style(reverse=True)
        return Style.null()


_NO_STYLE = Style.null()


class ThemeFilter(LineFilter):
    """Line filter for one palette, with or without colours, in Unicode or ASCII."""

    def __init__(self, palette: Palette = DARK, *, colourless: bool = False, ascii_only: bool = False) -> None:
        super().__init__(enabled=colourless or ascii_only or palette != DARK)
        self._ascii = ascii_only
        self._styled = exchange(palette, colourless=colourless)

    def apply(self, segments: list[Segment], background: Background) -> list[Segment]:
        """Return the segments in this palette."""
        del background
        styled = self._styled
        return [
            Segment(ascii_of(text) if self._ascii else text, styled(style or _NO_STYLE), control)
            for text, style, control in segments
        ]
