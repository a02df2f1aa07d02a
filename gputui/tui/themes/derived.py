"""The palette of any Textual theme: its own colours in our roles, made readable where they are not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from operator import itemgetter

from msgspec.structs import replace
from rich.color import Color, ColorSystem
from rich.color_triplet import ColorTriplet
from textual.color import Color as CssColor
from textual.theme import Theme

from gputui.tui.themes.palette import ANSI, BARS, GROUNDS, OWN, Palette

BLACK, WHITE = "#000000", "#ffffff"


def linear(colour: str) -> tuple[float, float, float]:
    """Return red, green and blue, each 0 to 1, as linear light (sRGB, IEC 61966-2-1)."""
    red, green, blue = (_light(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return red, green, blue


def _light(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


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
    """Return the blend at that share of the way from one colour to the other."""
    parts = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def readable(colour: str, grounds: Iterable[str], least: float) -> str:
    """Return the colour, lightened or darkened until it is readable on each of these grounds."""
    behind = tuple(grounds)
    towards = WHITE if min(contrast(WHITE, ground) for ground in behind) >= _least_of_black(behind) else BLACK
    for step in range(21):
        tried = blended(colour, towards, step / 20)
        if min(contrast(tried, ground) for ground in behind) >= least:
            return tried
    return towards


def _least_of_black(grounds: tuple[str, ...]) -> float:
    return min(contrast(BLACK, ground) for ground in grounds)


_LEAST = 4.5
"""Minimum contrast of text on any ground (WCAG's AA)."""
_APART = 1.06
"""Minimum contrast of a raised or selected ground to the plain one, so that it is visible."""


def palette_of(theme: Theme) -> Palette:
    """Return a theme's colours in gputui's roles."""
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
    calm="green",
    sick="red",
    logs=("black", "red", "green", "yellow", "blue", "magenta", "cyan", "default") * 2,
    on_picked="bright_white",
)
"""The dark ones of sixteen colours, for the light default ground of a terminal."""


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
        calm=blended(good, ground, 0.4),
        sick=_alarming(ground, bad, ink),
        logs=logs,
    )


_WANTED = frozenset(
    {"background", "foreground", "surface", "primary", "secondary", "accent", "success", "warning", "error"}
)


def _hex(colour: str) -> str:
    return CssColor.parse(colour).hex6.lower()


def _apart(raised: str, ground: str, ink: str) -> str:
    """Return the raised ground, if the theme has a visible one."""
    return raised if contrast(raised, ground) >= _APART else blended(ground, ink, 0.06)


def _alarming(ground: str, bad: str, ink: str) -> str:
    """Return a ground as red as possible with readable text."""
    shares = (share / 20 for share in range(12, 0, -1))
    return next((red for share in shares if contrast(ink, red := blended(ground, bad, share)) >= _LEAST), ground)


def _logs(found: dict[str, str], ink: str, ground: str, word: Callable[[str], str]) -> tuple[str, ...]:
    names = [found[key] for key in ("error", "success", "warning", "primary", "secondary", "accent")]
    plain = (blended(ink, ground, 0.5), *map(word, names), ink)
    bright = (blended(ink, ground, 0.35), *(word(blended(name, ink, 0.3)) for name in names), ink)
    return (*plain, *bright)


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
    return {colour.hex: colour for colour in every if colour == _rounded_by_rich(colour)}


def as_shown(colour: str) -> str:
    """Return the colour that Rich shows instead."""
    return _rounded_by_rich(_parts(colour)).hex


def _rounded_by_rich(colour: ColorTriplet) -> ColorTriplet:
    return Color.from_triplet(colour).downgrade(ColorSystem.EIGHT_BIT).get_truecolor()


@lru_cache(32)
def rounded(palette: Palette) -> Palette:
    """Return the palette in such colours; a sixteen-colour palette is unchanged."""
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
    """Return the most similar colour that is as readable as before beside each of `beside`, old and new."""
    needed = [(now, min(_ENOUGH, contrast(colour, before))) for before, now in beside]
    taken = set(but)
    free = [one for one in _by_distance(*_parts(colour)) if one not in taken]
    able = (one for one in free if all(contrast(one, now) >= least for now, least in needed))
    return next(able, free[0])


def _by_distance(red: int, green: int, blue: int) -> list[str]:
    """Return the colours by approximate perceived distance: red and blue are weighted by how red both are."""
    distances = [
        (2 + (red_ + red) / 512) * (red_ - red) ** 2
        + 4 * (green_ - green) ** 2
        + (3 - (red_ + red) / 512) * (blue_ - blue) ** 2
        for red_, green_, blue_ in colours().values()
    ]  # written out: the console rounds some 9,000 times before its first frame
    return [word for _, word in sorted(zip(distances, colours(), strict=True), key=itemgetter(0))]


def _parts(colour: str) -> ColorTriplet:
    return ColorTriplet(*(int(colour[at : at + 2], 16) for at in (1, 3, 5)))
