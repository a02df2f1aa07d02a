"""An app that wears a theme: its own or any of Textual's, in as many colours and characters as the terminal has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from textual.filter import LineFilter, Monochrome, NoColor

from gputui.tui.remembered import Remembered
from gputui.tui.theme import AS_DESIGNED, DEFAULT, SECTION, Wish, own_themes, remembered_theme
from gputui.tui.themes.derived import palette_of
from gputui.tui.themes.designed import theme_of
from gputui.tui.themes.look import Look
from gputui.tui.themes.palette import Palette
from gputui.tui.themes.rounded import rounded
from gputui.tui.themes.terminal import AUTO
from gputui.tui.turns import InTurnApp

T = TypeVar("T")


class DressedApp(InTurnApp[T]):
    """Everything drawn goes through its look."""

    _look: Look | None = None
    _wish = AS_DESIGNED

    def dress(self, wish: Wish, remembered: Remembered) -> None:
        """Look as was wished for, or as was chosen here before."""
        self._wish, self._kept = wish, remembered
        for theme in own_themes():
            self.register_theme(theme)
        self.theme = remembered_theme(wish, remembered)
        self._look = self._made()

    def get_css_variables(self) -> dict[str, str]:
        """The palette's colours for style sheets too: a theme's own may not be readable, least of all when rounded."""
        variables, theme = super().get_css_variables(), self.current_theme
        if self._look is None or self.no_color:  # asked for first before it is dressed, with a theme nobody sees
            return variables
        if (palette := self._palette()).ground.startswith("#"):
            readable = theme_of(theme.name, palette, dark=theme.dark).to_color_system().generate()
            self.theme_variables = variables = {**variables, **readable, **theme.variables}
        return variables

    def get_line_filters(self) -> Sequence[LineFilter]:
        """The look in place of Textual's own ways to leave colours out, which leave their sequences in."""
        others = [each for each in super().get_line_filters() if not isinstance(each, Monochrome | NoColor)]
        return [self._look, *others] if self._look is not None and self._look.enabled else others

    def try_on(self, name: str) -> None:
        """Another theme, at once; `auto`: what settings and terminal ask for."""
        self.theme = self._wish.theme if name == AUTO else name

    def keep_theme(self, name: str) -> None:
        """That theme from now on, and in every console of this person."""
        self.try_on(name)
        self._kept.put(SECTION, {} if name == AUTO else {"theme": name})

    @property
    def kept_theme(self) -> str:
        """What was chosen here; `auto` where nothing was."""
        name = self._kept.get(SECTION).get("theme", AUTO)
        return name if isinstance(name, str) else AUTO

    def watch_theme(self) -> None:
        """Draw everything anew, also what is drawn from roles and not from style sheets."""
        if self._look is None:
            return
        self._look = self._made()
        if self.is_running:
            for screen in self.screen_stack:
                for widget in screen.walk_children(with_self=True):
                    widget.refresh()

    def _made(self) -> Look:
        return Look(self._palette(), colourless=self.no_color, ascii_only=self._wish.ascii_only)

    def _palette(self) -> Palette:
        theme = self.get_theme(DEFAULT) if self.no_color else self.current_theme
        assert theme is not None
        palette = palette_of(theme)
        return rounded(palette) if self._wish.is_rounded and not self.no_color else palette

    def action_themes(self) -> None:
        """Choose a theme, seeing each."""
        from gputui.tui.screens.themes import Themes

        self.push_screen(Themes(self.kept_theme))
