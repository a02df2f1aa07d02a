"""Chooses the theme and its characters: by the settings, the terminal, and the choice made in the console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textual.theme import BUILTIN_THEMES, Theme

from gputui.domain.errors import InputError
from gputui.domain.settings import ConsoleSettings
from gputui.tui.preferences import Preferences
from gputui.tui.themes.palette import ANSI, LIGHT, OWN, Palette
from gputui.tui.themes.terminal import AUTO, has_256_colours, has_few_colours, wants_ascii


def themes() -> tuple[Theme, ...]:
    """Return the console's own themes."""
    return tuple(theme_of(name, palette, dark=palette is not LIGHT) for name, palette in OWN.items())


def theme_of(name: str, palette: Palette, *, dark: bool) -> Theme:
    """Return the theme from which Textual's own widgets and style sheets take their colours."""
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


DEFAULT, SIXTEEN = "gputui", "gputui-16"
SECTION = "look"
"""Section of the user's preferences."""


@dataclass(frozen=True)
class Appearance:
    """Theme and characters with which the console opens."""

    theme: str = DEFAULT
    ascii_only: bool = False
    is_shallow: bool = False
    """The terminal shows sixteen colours."""
    is_rounded: bool = False
    """The terminal shows 256 colours."""


AS_DESIGNED = Appearance()


def appearance_of(settings: ConsoleSettings, environ: Mapping[str, str]) -> Appearance:
    """Return the appearance that settings and terminal ask for; raises InputError where the settings name no theme."""
    known = (AUTO, *theme_names())
    if settings.theme not in known:
        raise InputError(f"{settings.theme!r} is no theme", where="console.theme", hint="known: " + ", ".join(known))
    shallow = has_few_colours(environ)
    theme = DEFAULT if settings.theme == AUTO else settings.theme
    return Appearance(
        _shown(theme, is_shallow=shallow), wants_ascii(settings.ascii, environ), shallow, has_256_colours(environ)
    )


def remembered_theme(look: Appearance, preferences: Preferences) -> str:
    """The theme chosen in the console the last time, where this terminal can show it; else that of the settings."""
    name = preferences.get(SECTION).get("theme")
    return _shown(name, is_shallow=look.is_shallow) if isinstance(name, str) and name in theme_names() else look.theme


def _shown(name: str, *, is_shallow: bool) -> str:
    """Return the theme, or that of sixteen colours where its own would be rounded to what nobody chose."""
    return SIXTEEN if is_shallow and not is_ansi(name) else name


def is_ansi(name: str) -> bool:
    """Return whether a theme is made of a terminal's sixteen colours."""
    return name == SIXTEEN or (name in BUILTIN_THEMES and BUILTIN_THEMES[name].ansi)


def theme_names() -> tuple[str, ...]:
    """Our own first, then Textual's."""
    return (*OWN, *sorted(BUILTIN_THEMES))


def own_themes() -> tuple[Theme, ...]:
    """Return the themes that Textual does not know."""
    return themes()
