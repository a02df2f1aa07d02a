"""Exchanges the colours of roles for those of a palette, or for what a terminal can do without colours."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from rich.color import Color
from rich.style import Style

from gputui.tui.themes.colours import contrast
from gputui.tui.themes.palette import DARK, Palette

_PICKED, _PICKED_FAINT = Color.parse(DARK.picked), Color.parse(DARK.picked_faint)
_LOUD = 3.0
"""Contrast to the ground from which on a background means something, and is reversed where there are no colours."""


def exchange(palette: Palette, *, colourless: bool = False) -> Callable[[Style], Style]:
    """What a style becomes; each is worked out once."""
    return lru_cache(4096)(_Bare(palette).style if colourless else _Coloured(palette).style)


class _Coloured:
    """Roles in the colours of a palette; colours that are no roles stay."""

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
        """Written in the palette's own two of the sixteen colours where a widget leaves it to the terminal."""
        if not self._is_settled:
            return style
        ink = self._ink if style.color is None or style.color.is_default else None
        ground = self._ground if style.bgcolor is None or style.bgcolor.is_default else None
        return style + Style.from_color(ink, ground)

    def _mark(self, ground: Color | None) -> Style | None:
        """What tells grounds apart that the palette cannot."""
        marks = {_PICKED: self._on_picked, _PICKED_FAINT: self._on_picked_faint, self._raised: self._on_raised}
        return marks.get(ground) if ground is not None else None


def _in(colours: dict[Color, Color], colour: Color | None) -> Color | None:
    return colours.get(colour) if colour is not None else None


class _Bare:
    """No colours at all: weight, underlining and reversal in their place."""

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
        if ground == _PICKED:
            return Style(reverse=True)
        if ground == _PICKED_FAINT:
            return Style(underline=True)
        if ground is not None and ground.triplet is not None and contrast(ground.triplet.hex, self._ground) >= _LOUD:
            return Style(reverse=True)
        return Style.null()
