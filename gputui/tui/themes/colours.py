"""Arithmetic of colours written `#rrggbb`: contrast as WCAG 2.2 defines it, and blends.

Relative luminance and contrast ratio are those of the W3C's Web Content Accessibility Guidelines 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

BLACK, WHITE = "#000000", "#ffffff"


def linear(colour: str) -> tuple[float, float, float]:
    """Red, green and blue, each 0 to 1, as amounts of light (sRGB, IEC 61966-2-1)."""
    red, green, blue = (_light(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return red, green, blue


def _light(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else float(((value + 0.055) / 1.055) ** 2.4)


@lru_cache(1024)
def luminance(colour: str) -> float:
    """0 of black to 1 of white."""
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """1 of two alike to 21 of black on white."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def blended(colour: str, other: str, share: float) -> str:
    """That share of the way from one to the other."""
    parts = [(int(colour[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


def readable(colour: str, grounds: Iterable[str], least: float) -> str:
    """The colour, made as much lighter or darker as it takes to be read upon each of these."""
    behind = tuple(grounds)
    towards = WHITE if min(contrast(WHITE, ground) for ground in behind) >= _least_of_black(behind) else BLACK
    for step in range(21):
        tried = blended(colour, towards, step / 20)
        if min(contrast(tried, ground) for ground in behind) >= least:
            return tried
    return towards


def _least_of_black(grounds: tuple[str, ...]) -> float:
    return min(contrast(BLACK, ground) for ground in grounds)
