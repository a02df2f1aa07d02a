"""The roles' colours, palettes derived from Textual's themes, and the line filter that draws in them.

Textual's theme variables get the palette's colours (`Theming.css_variables`) and do not replace it: cells are strips
with Rich styles, created in `tui/present` without an app; in 12 of Textual's 19 full-colour themes success, warning,
error or primary has less than 4.5:1 contrast on the background; and terminals with 16 or 256 colours, `NO_COLOR` and
ASCII need weight, reversal or other characters, which variables cannot express.
"""

from __future__ import annotations

import locale
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from operator import itemgetter

from msgspec import Struct
from msgspec.structs import replace
from rich.color import Color, ColorSystem
from rich.color_triplet import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as Background
from textual.color import Color as CssColor
from textual.filter import LineFilter
from textual.theme import Theme

from gputui.domain.text import JOINER, width
from gputui.tui.present import cells


class Palette(Struct, frozen=True):
    """Colours in Rich's notation: `#rrggbb`, or the name of one of a terminal's sixteen."""

    ground: str = cells.GROUND
    raised: str = cells.RAISED
    picked: str = cells.PICKED
    picked_faint: str = cells.PICKED_FAINT
    ink: str = cells.INK
    quiet: str = cells.QUIET
    faint: str = cells.FAINT
    accent: str = cells.ACCENT
    good: str = cells.GOOD
    warn: str = cells.WARN
    bad: str = cells.BAD
    other: str = cells.OTHER
    history: str = cells.HISTORY
    runs: str = cells.RUNS
    overrun: str = cells.OVERRUN
    planned: str = cells.PLANNED
    head: str = cells.HEAD
    calm: str = cells.CALM
    sick: str = cells.SICK
    logs: tuple[str, ...] = cells.LOG_NAMES + cells.LOG_BRIGHT
    """The sixteen colours that a job's output may use."""
    on_picked: str = ""
    """Colour of all text in the selected row; empty: each role's own."""

    def colours(self) -> Iterator[str]:
        for name in self.__struct_fields__:
            if name not in ("logs", "on_picked"):
                yield getattr(self, name)
        yield from self.logs


GROUNDS = ("ground", "raised", "picked", "picked_faint")
BARS = (("good", "runs"), ("bad", "overrun"), ("ink", "planned"), ("warn", "head"), ("ink", "sick"))
"""Roles of text on the bars of a timeline, and of their grounds."""
DARK = Palette()
_TABLE = """
role          light    contrast  16              default
ground        #fbfbf9  #000000   black           default
raised        #eceff2  #12161b   black           default
picked        #cfe2f7  #0b2a4a   cyan            blue
picked_faint  #e3ebf3  #14202e   black           default
ink           #1d242c  #ffffff   white           default
quiet         #515c68  #c3ccd6   white           default
faint         #b9c2cb  #6a7683   bright_black    bright_black
accent        #1b4594  #8cc8ff   bright_cyan     blue
good          #1e7043  #a4f7b6   bright_green    green
warn          #8a5300  #ffe95a   bright_yellow   magenta
bad           #8a1206  #ff9b86   bright_red      red
other         #5d1f7d  #dc9dff   bright_magenta  cyan
history       #7fa6d6  #6aa5de   cyan            blue
runs          #e0f2e5  #06210f   black           default
overrun       #fbe3de  #2e0b06   black           default
planned       #e6ebf0  #161c23   black           default
head          #f9ecd2  #2a2204   black           default
calm          #4f9468  #5fae72   green           green
sick          #f3b3a6  #7d1206   red             red
"""
"""Colours of the other palettes, by role."""
_ROLES, *_COLUMNS = zip(*map(str.split, _TABLE.strip().splitlines()), strict=True)
_NAMED = {name: dict(zip(_ROLES[1:], colours, strict=True)) for name, *colours in _COLUMNS}
LIGHT = Palette(
    **_NAMED["light"],
    logs=(
        *("#1d242c", "#a3180a", "#1e7043", "#8a5300", "#1b4594", "#5d1f7d", "#0f6673", "#515c68"),
        *("#6b7682", "#c02617", "#2a8250", "#966000", "#2c63bd", "#7a35a0", "#1a7c8b", "#3a444f"),
    ),
)
CONTRAST = Palette(
    **_NAMED["contrast"],
    logs=(
        *("#9aa6b3", "#ff9b86", "#a4f7b6", "#ffe95a", "#8cc8ff", "#dc9dff", "#8cf0f0", "#f0f3f6"),
        *("#b8c2cd", "#ffb3a3", "#c3fbcf", "#fff096", "#b3dbff", "#e8c0ff", "#b5f6f6", "#fdfdfd"),
    ),
)
ANSI = Palette(
    **_NAMED["16"],
    logs=(
        *("bright_black", "bright_red", "green", "yellow", "cyan", "magenta", "cyan", "white"),
        *("bright_black", "bright_red", "bright_green", "bright_yellow"),
        *("bright_cyan", "bright_magenta", "bright_cyan", "bright_white"),
    ),
    on_picked="black",
)
"""Sixteen colours on a black terminal; of blue and red, only readable ones."""
_ON_DEFAULT = Palette(
    **_NAMED["default"],
    logs=("black", "red", "green", "yellow", "blue", "magenta", "cyan", "default") * 2,
    on_picked="bright_white",
)
"""The dark ones of sixteen colours, for the light default ground of a terminal."""
OWN = {"gputui": DARK, "gputui-light": LIGHT, "gputui-contrast": CONTRAST, "gputui-16": ANSI}
"""The console's own palettes by the name of their theme."""
BLACK, WHITE = "#000000", "#ffffff"


def linear(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue, each 0 to 1, as linear light (sRGB, IEC 61966-2-1)."""
    values = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)
    return red, green, blue


@lru_cache(1024)
def luminance(colour: str) -> float:
    """Return the luminance, from 0 for black to 1 for white."""
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio, from 1 for equal colours to 21 for black on white."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def blended(colour: str, other: str, share: float) -> str:
    parts = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def readable(colour: str, grounds: Iterable[str], least: float) -> str:
    behind = tuple(grounds)
    white, black = (min(contrast(one, ground) for ground in behind) for one in (WHITE, BLACK))
    towards = WHITE if white >= black else BLACK
    for step in range(21):
        tried = blended(colour, towards, step / 20)
        if min(contrast(tried, ground) for ground in behind) >= least:
            return tried
    return towards


_LEAST = 4.5
"""Minimum contrast of text on any ground (WCAG's AA)."""
_APART = 1.06
"""Minimum contrast of a raised or selected ground to the plain one, so that it is visible."""


def palette_of(theme: Theme) -> Palette:
    if own := OWN.get(theme.name):
        return own
    if theme.ansi:
        return ANSI if theme.dark else _ON_DEFAULT
    return _derived(theme.name, tuple(sorted(theme.to_color_system().generate().items())))


@lru_cache(32)
def _derived(name: str, variables: tuple[tuple[str, str], ...]) -> Palette:
    found = {key: CssColor.parse(value).hex6.lower() for key, value in variables if key in _WANTED}
    ground, ink = found["background"], found["foreground"]
    raised = found["surface"]
    if contrast(raised, ground) < _APART:  # the theme has no visible one
        raised = blended(ground, ink, 0.06)
    picked = blended(ground, found["primary"], 0.28)
    picked_faint = blended(ground, found["primary"], 0.14)
    grounds = (ground, raised, picked, picked_faint)
    ink = readable(ink, grounds, 1.2 * _LEAST)

    def word(colour: str) -> str:
        return readable(colour, grounds, _LEAST)

    good, warn, bad = word(found["success"]), word(found["warning"]), word(found["error"])
    named = [found[key] for key in ("error", "success", "warning", "primary", "secondary", "accent")]
    plain = (blended(ink, ground, 0.5), *map(word, named), ink)
    bright = (blended(ink, ground, 0.35), *(word(blended(name, ink, 0.3)) for name in named), ink)
    reds = (blended(ground, bad, share / 20) for share in range(12, 0, -1))
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
        calm=blended(good, ground, 0.4),
        sick=next((red for red in reds if contrast(ink, red) >= _LEAST), ground),
        logs=(*plain, *bright),
    )


_WANTED = frozenset(
    {"background", "foreground", "surface", "primary", "secondary", "accent", "success", "warning", "error"}
)


_LEVELS = (0, 95, 135, 175, 215, 255)
_CUBE = [(red, green, blue) for red in _LEVELS for green in _LEVELS for blue in _LEVELS]
_GREYS = [(8 + 10 * step,) * 3 for step in range(24)]
_WORDS = ("bad", "warn", "good", "other", "accent", "ink", "quiet", "history", "calm", "faint")
"""Roles of text and drawings; those that must be distinct come first."""
_ENOUGH = 7.0
"""Contrast (WCAG's AAA) that is always sufficient."""


@cache
def colours() -> dict[str, ColorTriplet]:
    """Return the colours that Rich rounds to themselves; the first sixteen differ between users."""
    every = (ColorTriplet(*each) for each in (*_CUBE, *_GREYS))
    return {colour.hex: colour for colour in every if colour == rounded_by_rich(colour)}


def rounded_by_rich(colour: ColorTriplet) -> ColorTriplet:
    return Color.from_triplet(colour).downgrade(ColorSystem.EIGHT_BIT).get_truecolor()


@lru_cache(32)
def rounded(palette: Palette) -> Palette:
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
    """Return the most similar colour that is as readable as before beside each of `beside`, old and new.

    Similar is what is near in perception, approximately: red and blue are weighted by how red both are.
    """
    needed = [(now, min(_ENOUGH, contrast(colour, before))) for before, now in beside]
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    distances = [
        (2 + (red_ + red) / 512) * (red_ - red) ** 2
        + 4 * (green_ - green) ** 2
        + (3 - (red_ + red) / 512) * (blue_ - blue) ** 2
        for red_, green_, blue_ in colours().values()
    ]  # written out: the console rounds some 9,000 times before its first frame
    used = set(but)
    nearest = sorted(zip(distances, colours(), strict=True), key=itemgetter(0))
    free = [one for _, one in nearest if one not in used]
    able = (one for one in free if all(contrast(one, now) >= least for now, least in needed))
    return next(able, free[0])


_PAIRS = (
    ("▁▂▃▄▅▆▇█", "_.:-=+*#"),  # eighths of a cell, from the bottom
    ("▏▎▍▌▋▊▉▐", "||||####"),
    ("░▒▓▔▀▙▛▜▟", ":%#######"),
    ("━╸╺═╍╌≈─│", "=--#~.!-|"),
    ("┣┫├┤╞╡", "[](){}"),  # beginnings and ends of timeline bars
    ("▸▶▾◂▲▼△▽←→↑↓↩⇒↳↵", ">>v<^v^v<>^v<>`<"),
    ("●○◐◑◉•·■□◆✓✔✗✘✕×‖⚠★☆", "*ooo@*.#o*vvxxxx=!**"),
    ("▰▱", "#-"),
    ("…–—−‐‑°±µμ", "~----- +uu"),
    ("“”„‘’«»≤≥≠", '"""\'\'<><>!'),
    ("\u00a0\u2007\u2009\u202f�ßøØæ", "    ?soOa"),
)
_CURSOR = {"▌": ">", "▌ ": "> "}
"""Marks of the cursor's row, each a text of its own; within a longer text the same character ends a bar."""
_SINGLE = {shown: plain for many, plains in _PAIRS for shown, plain in zip(many, plains, strict=True)}


def ascii_of(text: str) -> str:
    """Return the text in ASCII, with the same width in cells."""
    return text if text.isascii() else _CURSOR.get(text) or _translated(text)


@lru_cache(4096)
def _translated(text: str) -> str:
    found: list[str] = []
    joined = False
    for character in text:
        if not joined:
            found.append(_of(character))
        joined = character == JOINER
    return "".join(found)


def _of(character: str) -> str:
    """Return what replaces a character: lines of boxes, braille by its highest dot, letters without diacritics."""
    if character.isascii():
        return character
    cells, code = width(character), ord(character)
    if (known := _SINGLE.get(character)) is not None and cells == 1:
        return known
    if 0x2500 <= code < 0x2580:
        words = unicodedata.name(character)
        is_across, is_upright = "HORIZONTAL" in words, "VERTICAL" in words
        shown = "-" if is_across and not is_upright else "|" if is_upright and not is_across else "+"
    elif 0x2800 <= code < 0x2900:
        heights = ((0x09, "#"), (0x12, "="), (0x24, "-"), (0xC0, "."))
        shown = next((drawn for mask, drawn in heights if (code - 0x2800) & mask), " ")
    elif 0x2580 <= code < 0x25A0:
        shown = "#"
    else:
        parts = unicodedata.normalize("NFKD", character)
        shown = next((part for part in parts if part.isascii() and part.isprintable()), "?")
    return shown.ljust(cells, "?")[:cells]


_PICKED, _PICKED_FAINT = Color.parse(DARK.picked), Color.parse(DARK.picked_faint)
_SICK = Color.parse(DARK.sick)
_NO_STYLE = Style.null()
_LOUD = 3.0
"""Contrast from which a background has a meaning, and is reversed if there are no colours."""


def exchange(palette: Palette, *, colourless: bool = False) -> Callable[[Style], Style]:
    """Return the function that replaces styles; each style is computed once."""
    return lru_cache(4096)(_bare(palette) if colourless else _coloured(palette))


def _coloured(palette: Palette) -> Callable[[Style], Style]:
    pairs = zip(DARK.colours(), palette.colours(), strict=True)
    shown: dict[Color | None, Color] = {Color.parse(role): Color.parse(colour) for role, colour in pairs}
    marks: dict[Color | None, Style] = {}
    if palette.on_picked:
        marks[_PICKED] = Style(color=palette.on_picked)
    if palette.picked_faint == palette.ground:
        marks[_PICKED_FAINT] = Style(underline=True)
    if palette.raised == palette.ground:
        marks[Color.parse(DARK.raised)] = Style(bold=True)
    has_own_ground = not palette.ground.startswith("#") and palette.ground != "default"
    ink, ground = Color.parse(palette.ink), Color.parse(palette.ground)

    def styled(style: Style) -> Style:
        found = style + Style.from_color(shown.get(style.color), shown.get(style.bgcolor))
        found += marks.get(style.bgcolor, _NO_STYLE)
        if not has_own_ground:
            return found
        # the palette's own two of the sixteen colours take the place of the terminal's defaults
        return found + Style.from_color(
            ink if found.color is None or found.color.is_default else None,
            ground if found.bgcolor is None or found.bgcolor.is_default else None,
        )

    return styled


def _bare(palette: Palette) -> Callable[[Style], Style]:
    behind = palette.ground if palette.ground.startswith("#") else "#000000"
    weights: dict[Color | None, Style] = {
        Color.parse(DARK.bad): Style(bold=True),
        Color.parse(DARK.accent): Style(bold=True),
        Color.parse(DARK.faint): Style(dim=True),
    }

    def styled(style: Style) -> Style:
        bare = style.without_color + weights.get(style.color, _NO_STYLE)
        if style.meta:
            bare += Style.from_meta(style.meta)
        ground = style.bgcolor
        if ground == _PICKED_FAINT:
            return bare + Style(underline=True)
        triplet = ground.triplet if ground is not None else None
        if ground in (_PICKED, _SICK) or (triplet is not None and contrast(triplet.hex, behind) >= _LOUD):
            return bare + Style(reverse=True)
        return bare + _NO_STYLE

    return styled


class ThemeFilter(LineFilter):
    def __init__(self, palette: Palette = DARK, *, colourless: bool = False, ascii_only: bool = False) -> None:
        super().__init__(enabled=colourless or ascii_only or palette != DARK)
        self._ascii = ascii_only
        self._styled = exchange(palette, colourless=colourless)

    def apply(self, segments: list[Segment], background: Background) -> list[Segment]:
        styled = self._styled
        return [
            Segment(ascii_of(text) if self._ascii else text, styled(style or _NO_STYLE), control)
            for text, style, control in segments
        ]


AUTO = "auto"
_DEEP_TERMS = ("256color", "kitty", "direct", "truecolor")
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""Values that Python puts into LC_CTYPE if the user's own locale is not installed (PEP 538)."""


def _reported(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the colour system that is set, empty if none is, and what the terminal's name says of its colours."""
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return "truecolor", ""
    forced = environ.get("TEXTUAL_COLOR_SYSTEM", "").strip().lower()
    return "" if forced == "auto" else forced, environ.get("TERM", "").strip().lower().rpartition("-")[2]


def has_few_colours(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal has sixteen colours or does not report more, in Rich's judgement."""
    forced, name = _reported(environ)
    return forced in ("standard", "windows") if forced else name not in _DEEP_TERMS


def has_256_colours(environ: Mapping[str, str]) -> bool:
    """Return whether the terminal shows exactly 256 colours, in Rich's judgement; usual under tmux."""
    forced, name = _reported(environ)
    return forced == "256" if forced else name in ("256color", "kitty")


def wants_ascii(setting: str, environ: Mapping[str, str]) -> bool:
    """Return whether to draw only ASCII: for locales without Unicode, and on the kernel's own console."""
    if setting != AUTO:
        return setting == "always"
    if environ.get("TERM", "") in ("linux", "vt100", "vt102", "vt220", "dumb"):
        return True
    keys = (
        ("LC_ALL", "LANG")
        if environ.get("LC_CTYPE") in _COERCED and environ.get("LANG")
        else ("LC_ALL", "LC_CTYPE", "LANG")
    )
    name = next((environ[key] for key in keys if environ.get(key)), "")
    if name in ("", "C", "POSIX"):  # says nothing about the terminal: Python assumes UTF-8 too
        return False
    _, dot, charset = name.partition(".")
    charset = charset.partition("@")[0] if dot else locale.getencoding()
    return charset.lower().replace("-", "") != "utf8"
