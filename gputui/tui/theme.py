"""Which theme is worn, and with which characters: by the settings, the terminal, and what was chosen in the console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from textual.theme import BUILTIN_THEMES, Theme

from gputui.domain.errors import InputError
from gputui.domain.settings import ConsoleSettings
from gputui.tui.remembered import Remembered
from gputui.tui.themes.designed import themes
from gputui.tui.themes.palettes import OWN
from gputui.tui.themes.terminal import AUTO, has_256_colours, has_few_colours, wants_ascii

DEFAULT, SIXTEEN = "gputui", "gputui-16"
SECTION = "look"
"""Of what a person's console remembers."""


@dataclass(frozen=True)
class Wish:
    """How the console is to look when it opens."""

    theme: str = DEFAULT
    ascii_only: bool = False
    is_shallow: bool = False
    """The terminal shows sixteen colours."""
    is_rounded: bool = False
    """The terminal shows 256 colours."""


AS_DESIGNED = Wish()


def wish_of(settings: ConsoleSettings, environ: Mapping[str, str]) -> Wish:
    """What settings and terminal ask for; raises InputError where the settings name no theme."""
    known = (AUTO, *theme_names())
    if settings.theme not in known:
        raise InputError(f"{settings.theme!r} is no theme", where="console.theme", hint="known: " + ", ".join(known))
    shallow = has_few_colours(environ)
    theme = DEFAULT if settings.theme == AUTO else settings.theme
    return Wish(
        _shown(theme, is_shallow=shallow), wants_ascii(settings.ascii, environ), shallow, has_256_colours(environ)
    )


def remembered_theme(wish: Wish, remembered: Remembered) -> str:
    """The theme chosen in the console the last time, where this terminal can show it; else the wish's."""
    name = remembered.get(SECTION).get("theme")
    return _shown(name, is_shallow=wish.is_shallow) if isinstance(name, str) and name in theme_names() else wish.theme


def _shown(name: str, *, is_shallow: bool) -> str:
    """That theme, or the one of sixteen colours where its own would be rounded to what nobody chose."""
    return SIXTEEN if is_shallow and not is_ansi(name) else name


def is_ansi(name: str) -> bool:
    """Whether a theme is made of a terminal's sixteen colours."""
    return name == SIXTEEN or (name in BUILTIN_THEMES and BUILTIN_THEMES[name].ansi)


def theme_names() -> tuple[str, ...]:
    """Our own first, then Textual's."""
    return (*OWN, *sorted(BUILTIN_THEMES))


def own_themes() -> tuple[Theme, ...]:
    """Those that Textual does not know."""
    return themes()
