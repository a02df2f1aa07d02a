"""Lets the lines that a widget drew go with it.

Textual 8.2 remembers two colours by the very object that holds a widget's lines, for the last 1024 widgets there were:
every screen that was closed left all its lines behind, tens of megabytes after some hours. The colours are all that
matters there. This leans on `textual._styles_cache`; a test notices when that changes.
"""

from __future__ import annotations

from functools import lru_cache

from textual._styles_cache import StylesCache
from textual.color import Color
from textual.style import Style


@lru_cache(1024)
def _inner_outer(base_background: Color, background: Color) -> tuple[Style, Style]:
    """The background within a widget's border, and that around it."""
    return Style(background=base_background + background), Style(background=base_background)


class OwnStylesCache(StylesCache):
    """A widget's lines, which nothing but the widget holds."""

    def __init__(self) -> None:
        super().__init__()
        self.get_inner_outer = _inner_outer
