"""The console's own palettes as themes of Textual, for its own widgets."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from gputui.tui.themes.palette import Palette
from gputui.tui.themes.palettes import ANSI, LIGHT, OWN


def themes() -> tuple[Theme, ...]:
    """All of them."""
    return tuple(theme_of(name, palette, dark=palette is not LIGHT) for name, palette in OWN.items())


def theme_of(name: str, palette: Palette, *, dark: bool) -> Theme:
    """What Textual's own widgets and style sheets take their colours from."""
    ansi = palette is ANSI
    accent, faint = _css(palette.accent), _css(palette.faint)
    return Theme(
        name=name,
        primary=accent,
        secondary=_css(palette.other),
        accent=accent,
        foreground=_css(palette.ink),
        background=_css(palette.ground),
        surface=_css(palette.raised),
        panel=_css(palette.raised),
        success=_css(palette.good),
        warning=_css(palette.warn),
        error=_css(palette.bad),
        dark=dark,
        boost="ansi_black" if ansi else None,
        ansi=ansi,
        variables={"border": faint, **(_ANSI_VARIABLES if ansi else {"input-selection-background": f"{accent} 35%"})},
    )


_ANSI_VARIABLES = {
    **BUILTIN_THEMES["ansi-dark"].variables,
    "block-cursor-foreground": "ansi_black",
    "block-cursor-background": "ansi_cyan",
    "input-cursor-background": "ansi_white",
    "input-cursor-foreground": "ansi_black",
    "input-selection-background": "ansi_cyan",
    "input-selection-foreground": "ansi_black",
}


def _css(colour: str) -> str:
    """The colour as Textual's style sheets write it."""
    return colour if colour.startswith("#") else f"ansi_{colour}"
