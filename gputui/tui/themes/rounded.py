"""A palette in the 256 colours of a terminal that has no more, as tmux and screen as a rule.

Rich rounds each colour by itself, channel by channel: grounds turn to teal or to each other, and words on them can no
longer be read. Here every role is given one of those colours, words so that they stay as readable as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, lru_cache

from rich.color import Color, ColorSystem

from gputui.tui.themes.colours import contrast
from gputui.tui.themes.palette import BARS, GROUNDS, Palette

_LEVELS = (0, 95, 135, 175, 215, 255)
_CUBE = [(red, green, blue) for red in _LEVELS for green in _LEVELS for blue in _LEVELS]
_GREYS = [(8 + 10 * step,) * 3 for step in range(24)]
_WORDS = ("bad", "warn", "good", "other", "accent", "ink", "quiet", "history", "faint")
"""What is written and drawn, first what must be told apart."""
_ENOUGH = 7.0
"""Contrast (WCAG's AAA) beyond which none is asked for."""


@cache
def colours() -> tuple[str, ...]:
    """Those that Rich rounds to themselves; the first sixteen are left out, as every user has others."""
    written = (f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in (*_CUBE, *_GREYS))
    return tuple(colour for colour in written if as_shown(colour) == colour)


def as_shown(colour: str) -> str:
    """What Rich makes of a colour there."""
    return Color.parse(colour).downgrade(ColorSystem.EIGHT_BIT).get_truecolor().hex


@lru_cache(32)
def rounded(palette: Palette) -> Palette:
    """The palette in such colours; one that is made of the terminal's sixteen as it is."""
    if not palette.ground.startswith("#"):
        return palette
    grounds: dict[str, str] = {}
    for role in GROUNDS:
        grounds[role] = _nearest(getattr(palette, role), (), but=grounds.values())
    behind = tuple((getattr(palette, role), ground) for role, ground in grounds.items())
    roles: dict[str, str] = {}
    for role in _WORDS:
        roles[role] = _nearest(getattr(palette, role), behind, but=roles.values())
    bars = {bar: _nearest(getattr(palette, bar), ((getattr(palette, word), roles[word]),)) for word, bar in BARS}
    plain = behind[:1]
    logs = tuple(_nearest(colour, plain) for colour in palette.logs)
    return replace(palette, **grounds, **roles, **bars, logs=logs)


def _nearest(colour: str, beside: Iterable[tuple[str, str]], but: Iterable[str] = ()) -> str:
    """The most alike of those that are read with each of `beside`, as it was and as it is now, as well as before."""
    needed = [(now, min(_ENOUGH, contrast(colour, before))) for before, now in beside]
    taken = set(but)
    free = [one for one in colours() if one not in taken]
    able = [one for one in free if all(contrast(one, now) >= least for now, least in needed)]
    return min(able or free, key=lambda one: _distance(one, colour))


def _distance(one: str, other: str) -> float:
    """How much two colours differ to the eye, roughly: their distance with red and blue weighed by how red they are."""
    red, green, blue = _parts(one)
    red_, green_, blue_ = _parts(other)
    redness = (red + red_) / 512
    return (2 + redness) * (red - red_) ** 2 + 4 * (green - green_) ** 2 + (3 - redness) * (blue - blue_) ** 2


@lru_cache(1024)
def _parts(colour: str) -> tuple[int, int, int]:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue
