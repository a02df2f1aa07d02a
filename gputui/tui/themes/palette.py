"""A palette: the colour of each role, in one theme."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from gputui.tui.present import style


class Palette(Struct, frozen=True):
    """Colours in Rich's notation: `#rrggbb`, or the name of one of a terminal's sixteen."""

    ground: str = style.GROUND
    raised: str = style.RAISED
    picked: str = style.PICKED
    picked_faint: str = style.PICKED_FAINT
    ink: str = style.INK
    quiet: str = style.QUIET
    faint: str = style.FAINT
    accent: str = style.ACCENT
    good: str = style.GOOD
    warn: str = style.WARN
    bad: str = style.BAD
    other: str = style.OTHER
    history: str = style.HISTORY
    runs: str = style.RUNS
    overrun: str = style.OVERRUN
    planned: str = style.PLANNED
    head: str = style.HEAD
    calm: str = style.CALM
    sick: str = style.SICK
    logs: tuple[str, ...] = style.LOG_NAMES + style.LOG_BRIGHT
    """The sixteen colours that a job's output may use."""
    on_picked: str = ""
    """Colour of all text in the selected row; empty: each role's own."""

    def colours(self) -> Iterator[str]:
        """Return the colours of all roles, always in the same order."""
        for name in self.__struct_fields__:
            if name not in ("logs", "on_picked"):
                yield getattr(self, name)
        yield from self.logs


TEXTS = ("ink", "quiet", "accent", "good", "warn", "bad", "other")
"""Roles of text."""
GROUNDS = ("ground", "raised", "picked", "picked_faint")
"""Roles of grounds."""
BARS = (("good", "runs"), ("bad", "overrun"), ("ink", "planned"), ("warn", "head"), ("ink", "sick"))
"""Roles of text on the bars of a timeline, and of their grounds."""
TOLD_APART = (
    ("good", "warn"),
    ("good", "bad"),
    ("warn", "bad"),
    ("other", "good"),
    ("other", "warn"),
    ("other", "bad"),
    ("accent", "bad"),
    ("accent", "warn"),
    ("quiet", "good"),
    ("quiet", "warn"),
    ("quiet", "bad"),
    ("ink", "good"),
    ("ink", "warn"),
    ("ink", "bad"),
)
"""Pairs that represent different states: running and failed, running and foreign, completed and failed."""
DARK = Palette()
"""The roles with their default colours."""


LIGHT = Palette(
    ground="#fbfbf9",
    raised="#eceff2",
    picked="#cfe2f7",
    picked_faint="#e3ebf3",
    ink="#1d242c",
    quiet="#515c68",
    faint="#b9c2cb",
    accent="#1b4594",
    good="#1e7043",
    warn="#8a5300",
    bad="#8a1206",
    other="#5d1f7d",
    history="#7fa6d6",
    runs="#e0f2e5",
    overrun="#fbe3de",
    planned="#e6ebf0",
    head="#f9ecd2",
    calm="#4f9468",
    sick="#f3b3a6",
    logs=(
        *("#1d242c", "#a3180a", "#1e7043", "#8a5300", "#1b4594", "#5d1f7d", "#0f6673", "#515c68"),
        *("#6b7682", "#c02617", "#2a8250", "#966000", "#2c63bd", "#7a35a0", "#1a7c8b", "#3a444f"),
    ),
)
CONTRAST = Palette(
    ground="#000000",
    raised="#12161b",
    picked="#0b2a4a",
    picked_faint="#14202e",
    ink="#ffffff",
    quiet="#c3ccd6",
    faint="#6a7683",
    accent="#8cc8ff",
    good="#a4f7b6",
    warn="#ffe95a",
    bad="#ff9b86",
    other="#dc9dff",
    history="#6aa5de",
    runs="#06210f",
    overrun="#2e0b06",
    planned="#161c23",
    head="#2a2204",
    calm="#5fae72",
    sick="#7d1206",
    logs=(
        *("#9aa6b3", "#ff9b86", "#a4f7b6", "#ffe95a", "#8cc8ff", "#dc9dff", "#8cf0f0", "#f0f3f6"),
        *("#b8c2cd", "#ffb3a3", "#c3fbcf", "#fff096", "#b3dbff", "#e8c0ff", "#b5f6f6", "#fdfdfd"),
    ),
)
ANSI = Palette(
    ground="black",
    raised="black",
    picked="cyan",
    picked_faint="black",
    ink="white",
    quiet="white",
    faint="bright_black",
    accent="bright_cyan",
    good="bright_green",
    warn="bright_yellow",
    bad="bright_red",
    other="bright_magenta",
    history="cyan",
    runs="black",
    overrun="black",
    planned="black",
    head="black",
    calm="green",
    sick="red",
    logs=(
        *("bright_black", "bright_red", "green", "yellow", "cyan", "magenta", "cyan", "white"),
        *("bright_black", "bright_red", "bright_green", "bright_yellow"),
        *("bright_cyan", "bright_magenta", "bright_cyan", "bright_white"),
    ),
    on_picked="black",
)
"""Sixteen colours on a black terminal; of blue and red, only readable ones."""
OWN = {"gputui": DARK, "gputui-light": LIGHT, "gputui-contrast": CONTRAST, "gputui-16": ANSI}
"""The console's own palettes by the name of their theme."""
