"""The palette of any Textual theme: its own colours in our roles, made readable where they are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from textual.color import Color
from textual.theme import Theme

from gputui.tui.themes.colours import blended, contrast, readable
from gputui.tui.themes.palette import Palette
from gputui.tui.themes.palettes import ANSI, OWN

_LEAST = 4.5
"""Contrast of words on any of the grounds (WCAG's AA)."""
_APART = 1.06
"""Contrast of a raised or picked ground to the plain one, so that it is seen at all."""


def palette_of(theme: Theme) -> Palette:
    """Its colours in our roles."""
    if own := OWN.get(theme.name):
        return own
    if theme.ansi:
        return ANSI if theme.dark else _ON_DEFAULT
    return _derived(theme.name, tuple(sorted(theme.to_color_system().generate().items())))


_ON_DEFAULT = Palette(
    ground="default",
    raised="default",
    picked="blue",
    picked_faint="default",
    ink="default",
    quiet="default",
    faint="bright_black",
    accent="blue",
    good="green",
    warn="magenta",
    bad="red",
    other="cyan",
    history="blue",
    runs="default",
    overrun="default",
    planned="default",
    head="default",
    logs=("black", "red", "green", "yellow", "blue", "magenta", "cyan", "default") * 2,
    on_picked="bright_white",
)
"""The dark ones of sixteen colours, upon whatever light ground the terminal has."""


@lru_cache(32)
def _derived(name: str, variables: tuple[tuple[str, str], ...]) -> Palette:
    del name
    found = {key: _hex(value) for key, value in variables if key in _WANTED}
    ground, ink = found["background"], found["foreground"]
    raised = _apart(found["surface"], ground, ink)
    picked = blended(ground, found["primary"], 0.28)
    picked_faint = blended(ground, found["primary"], 0.14)
    grounds = (ground, raised, picked, picked_faint)
    ink = readable(ink, grounds, 1.2 * _LEAST)

    def word(colour: str) -> str:
        return readable(colour, grounds, _LEAST)

    good, warn, bad = word(found["success"]), word(found["warning"]), word(found["error"])
    logs = _logs(found, ink, ground, word)
    return Palette(
        ground=ground,
        raised=raised,
        picked=picked,
        picked_faint=picked_faint,
        ink=ink,
        quiet=word(blended(ink, ground, 0.35)),
        faint=blended(ink, ground, 0.7),
        accent=word(found["primary"]),
        good=good,
        warn=warn,
        bad=bad,
        other=word(found["secondary"] if found["secondary"] != found["primary"] else found["accent"]),
        history=blended(word(found["primary"]), ground, 0.35),
        runs=blended(ground, good, 0.08),
        overrun=blended(ground, bad, 0.08),
        planned=blended(ground, ink, 0.06),
        head=blended(ground, warn, 0.08),
        logs=logs,
    )


_WANTED = frozenset(
    {"background", "foreground", "surface", "primary", "secondary", "accent", "success", "warning", "error"}
)


def _hex(colour: str) -> str:
    return Color.parse(colour).hex6.lower()


def _apart(raised: str, ground: str, ink: str) -> str:
    """The raised ground, where the theme has one that can be seen."""
    return raised if contrast(raised, ground) >= _APART else blended(ground, ink, 0.06)


def _logs(found: dict[str, str], ink: str, ground: str, word: Callable[[str], str]) -> tuple[str, ...]:
    names = [found[key] for key in ("error", "success", "warning", "primary", "secondary", "accent")]
    plain = (blended(ink, ground, 0.5), *map(word, names), ink)
    bright = (blended(ink, ground, 0.35), *(word(blended(name, ink, 0.3)) for name in names), ink)
    return (*plain, *bright)
