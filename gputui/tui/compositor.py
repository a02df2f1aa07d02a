"""Draws the lines that changed alone, and sends exactly the cells that changed.

Textual 8.2 sends a changed part of a widget's line from the line's start: a digit that changes at the right end of a
200-column row costs the whole row, about 700 bytes. Over SSH that is what an idle console costs, so it is cut here to
the part itself. And for one changed line it goes through all lines of all widgets, which is half of what a cursor key
costs. This leans on `textual._compositor`; tests that count bytes and lines notice when that changes.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, Compositor
from textual.geometry import Region
from textual.strip import Strip


class ExactUpdate(ChopsUpdate):
    """A partial update cut at both ends."""

    def render_segments(self, console: Console) -> str:
        """What is written to the terminal."""
        written: list[str] = []
        for y, x1, x2 in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is None or x >= x2 or end <= x1:
                    continue
                start = max(x, x1)
                part = strip if start == x and end <= x2 else strip.crop(start - x, min(end, x2) - x)
                written += (Control.move_to(start, y).segment.text, part.render(console))
        return "".join(written)


class ExactCompositor(Compositor):
    """A compositor whose partial updates are exact."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[int] | None = None
        """Rows of the screen that are to be drawn, from the top; None for all."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """The update, if anything is to be updated."""
        self._changed = sorted({row for region in self._dirty_regions for row in region.line_range})
        try:
            update = super().render_partial_update()
        finally:
            self._changed = None
        return None if update is None else ExactUpdate(update.chops, update.spans, update.chop_ends)

    def _get_renders(self, crop: Region | None = None) -> Iterable[tuple[Region, Region, list[Strip]]]:
        """Each widget's region, the part of it that is drawn, and its lines there."""
        if self._changed is None:
            yield from super()._get_renders(crop)
            return
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            rows = [row for row in self._changed if seen.y <= row < seen.bottom]
            if rows and seen.width:
                part = Region(seen.x, rows[0], seen.width, rows[-1] - rows[0] + 1)
                yield region, part, widget.render_lines(part.translate(-region.offset))
