"""Sends exactly the cells that changed.

Textual 8.2 sends a changed part of a widget's line from the line's start: a digit that changes at the right end of a
200-column row costs the whole row, about 700 bytes. Over SSH that is what an idle console costs, so it is cut here to
the part itself. This leans on `textual._compositor`; a test that counts bytes notices when that changes.
"""

from __future__ import annotations

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, Compositor


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

    def render_partial_update(self) -> ChopsUpdate | None:
        """The update, if anything is to be updated."""
        update = super().render_partial_update()
        return None if update is None else ExactUpdate(update.chops, update.spans, update.chop_ends)
