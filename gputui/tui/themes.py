"""Chooses the theme, and applies it to the app and its terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from textual.app import App
from textual.filter import LineFilter, Monochrome, NoColor
from textual.theme import BUILTIN_THEMES, Theme

from gputui.domain.errors import InputError
from gputui.domain.settings import ConsoleSettings
from gputui.tui.palette import (
    ANSI,
    AUTO,
    LIGHT,
    OWN,
    Palette,
    ThemeFilter,
    has_256_colours,
    has_few_colours,
    palette_of,
    rounded,
    wants_ascii,
)
from gputui.tui.preferences import Preferences


def themes() -> tuple[Theme, ...]:
    return tuple(theme_of(name, palette, dark=palette is not LIGHT) for name, palette in OWN.items())


def theme_of(name: str, palette: Palette, *, dark: bool) -> Theme:
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
    return colour if colour.startswith("#") else f"ansi_{colour}"


DEFAULT, SIXTEEN = "gputui", "gputui-16"
SECTION = "look"


class Appearance(Struct, frozen=True):
    theme: str = DEFAULT
    ascii_only: bool = False
    is_shallow: bool = False
    """True if the terminal shows sixteen colours."""
    is_rounded: bool = False
    """True if the terminal shows 256 colours."""


AS_DESIGNED = Appearance()


def appearance_of(settings: ConsoleSettings, environ: Mapping[str, str]) -> Appearance:
    """Raise InputError for an unknown theme in the settings."""
    known = (AUTO, *theme_names())
    if settings.theme not in known:
        raise InputError(f"{settings.theme!r} is not a theme", where="console.theme", hint="known: " + ", ".join(known))
    shallow = has_few_colours(environ)
    theme = _shown(DEFAULT if settings.theme == AUTO else settings.theme, is_shallow=shallow)
    return Appearance(theme, wants_ascii(settings.ascii, environ), shallow, has_256_colours(environ))


def remembered_theme(look: Appearance, preferences: Preferences) -> str:
    name = preferences.get(SECTION).get("theme")
    return _shown(name, is_shallow=look.is_shallow) if isinstance(name, str) and name in theme_names() else look.theme


def _shown(name: str, *, is_shallow: bool) -> str:
    return SIXTEEN if is_shallow and not is_ansi(name) else name


def is_ansi(name: str) -> bool:
    return name == SIXTEEN or (name in BUILTIN_THEMES and BUILTIN_THEMES[name].ansi)


def theme_names() -> tuple[str, ...]:
    return (*OWN, *sorted(BUILTIN_THEMES))


class Theming:
    """The theme of one app. Everything that is drawn passes its filter."""

    def __init__(self, app: App[Any], appearance: Appearance, preferences: Preferences) -> None:
        self._app = app
        self._appearance = appearance
        self._preferences = preferences
        for theme in themes():
            app.register_theme(theme)

    def begin(self) -> None:
        self._app.theme = remembered_theme(self._appearance, self._preferences)
        self._filter = self._make_filter()

    def css_variables(self, variables: dict[str, str]) -> dict[str, str]:
        """Return the variables with the palette's colours: a theme's own may not be readable, least of all rounded."""
        if self._app.no_color or not (palette := self.palette()).ground.startswith("#"):
            return variables
        theme = self._app.current_theme
        readable = theme_of(theme.name, palette, dark=theme.dark).to_color_system().generate()
        self._app.theme_variables = {**variables, **readable, **theme.variables}
        return self._app.theme_variables

    def line_filters(self, filters: Sequence[LineFilter]) -> Sequence[LineFilter]:
        """Return the filters, with the theme's in place of Textual's ways to drop colours, which keep sequences."""
        others = [each for each in filters if not isinstance(each, Monochrome | NoColor)]
        return [self._filter, *others] if self._filter.enabled else others

    def try_on(self, name: str) -> None:
        self._app.theme = self._appearance.theme if name == AUTO else name

    def keep(self, name: str) -> None:
        self.try_on(name)
        self._preferences.put(SECTION, {} if name == AUTO else {"theme": name})

    @property
    def kept(self) -> str:
        name = self._preferences.get(SECTION).get("theme", AUTO)
        return name if isinstance(name, str) else AUTO

    def redraw(self) -> None:
        """Redraw everything, including parts that take their colours from roles and not from style sheets."""
        self._filter = self._make_filter()
        if self._app.is_running:
            for screen in self._app.screen_stack:
                for widget in screen.walk_children(with_self=True):
                    widget.refresh()

    def _make_filter(self) -> ThemeFilter:
        return ThemeFilter(self.palette(), colourless=self._app.no_color, ascii_only=self._appearance.ascii_only)

    def palette(self) -> Palette:
        theme = self._app.get_theme(DEFAULT) if self._app.no_color else self._app.current_theme
        assert theme is not None
        palette = palette_of(theme)
        return rounded(palette) if self._appearance.is_rounded and not self._app.no_color else palette
