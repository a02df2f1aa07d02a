"""Applies themes to the console: its own or any of Textual's, in as many colours and characters as the terminal has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from textual.app import App
from textual.filter import LineFilter, Monochrome, NoColor

from gputui.tui.preferences import Preferences
from gputui.tui.themes.derived import palette_of, rounded
from gputui.tui.themes.look import ThemeFilter
from gputui.tui.themes.palette import Palette
from gputui.tui.themes.selection import DEFAULT, SECTION, Appearance, own_themes, remembered_theme, theme_of
from gputui.tui.themes.terminal import AUTO


class Theming:
    """The theme of one app. Everything that is drawn goes through its filter."""

    def __init__(self, app: App[Any], appearance: Appearance, preferences: Preferences) -> None:
        self._app = app
        self._appearance = appearance
        self._preferences = preferences
        for theme in own_themes():
            app.register_theme(theme)

    def begin(self) -> None:
        """Apply the theme that was asked for, or chosen in the console before."""
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
        """Apply another theme at once; `auto`: the one that settings and terminal ask for."""
        self._app.theme = self._appearance.theme if name == AUTO else name

    def keep(self, name: str) -> None:
        """Apply a theme, and remember it for every console of this user."""
        self.try_on(name)
        self._preferences.put(SECTION, {} if name == AUTO else {"theme": name})

    @property
    def kept(self) -> str:
        """The name of the remembered theme; `auto` where there is none."""
        name = self._preferences.get(SECTION).get("theme", AUTO)
        return name if isinstance(name, str) else AUTO

    def redraw(self) -> None:
        """Draw everything anew, also what takes its colours from roles and not from style sheets."""
        self._filter = self._make_filter()
        if self._app.is_running:
            for screen in self._app.screen_stack:
                for widget in screen.walk_children(with_self=True):
                    widget.refresh()

    def _make_filter(self) -> ThemeFilter:
        return ThemeFilter(self.palette(), colourless=self._app.no_color, ascii_only=self._appearance.ascii_only)

    def palette(self) -> Palette:
        """Return the colours of the roles in the theme applied."""
        theme = self._app.get_theme(DEFAULT) if self._app.no_color else self._app.current_theme
        assert theme is not None
        palette = palette_of(theme)
        return rounded(palette) if self._appearance.is_rounded and not self._app.no_color else palette
