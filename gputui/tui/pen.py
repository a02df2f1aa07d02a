"""Writes changed cells to a terminal in few bytes: over SSH they are the main cost of an idle console."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip

from gputui.domain.text import is_narrow


class _Look(NamedTuple):
    """Parameters of the sequence that sets a style: attributes, foreground and background."""

    attributes: str = ""
    ink: str = "39"
    ground: str = "49"


_RESET = "\x1b[0m"
_USUAL = _Look()
_SHORT = 16
"""Maximum cells of a run that may be written out of order, beside others with its colours."""


class Pen:
    """Collects runs of cells, and omits colours and positions that the terminal already has.

    Short runs, such as figures and the ends of bars, are written by colour: a cursor move costs less than a change of
    colours.
    """

    def __init__(self, system: ColorSystem | None) -> None:
        self._system = system
        self._short: dict[_Look, list[tuple[int, int, str]]] = {}
        """Short pieces as (x, y, text), by style."""
        self._written: list[str] = []
        self._look = _USUAL
        self._at = (-1, -1)

    def run(self, x: int, y: int, segments: Iterable[Segment]) -> None:
        """Write text in its styles, starting at a cell."""
        pieces = [(text, style or Style.null()) for text, style, control in segments if text and not control]
        if sum(cell_len(text) for text, _ in pieces) > _SHORT or any(style.link for _, style in pieces):
            for text, style in pieces:
                shown = text
                if style.link:
                    self._change(_USUAL)
                    shown = style.render(text, color_system=self._system)
                self._put(x, y, shown, _USUAL if style.link else _look_of(style, self._system), cell_len(text))
                x += cell_len(text)
            return
        for text, style in pieces:
            self._short.setdefault(_look_of(style, self._system), []).append((x, y, text))
            x += cell_len(text)

    def text(self) -> str:
        """Return the output, which ends with the terminal's default colours."""
        for look, pieces in self._short.items():
            for x, y, text in pieces:
                self._put(x, y, text, look)
        self._short = {}
        self._change(_USUAL)
        return "".join(self._written)

    def _put(self, x: int, y: int, text: str, look: _Look, cells: int | None = None) -> None:
        if (x, y) != self._at:
            self._written.append(f"\x1b[{x + 1}G" if y == self._at[1] else f"\x1b[{y + 1};{x + 1}H")
        self._change(look)
        self._written.append(text)
        is_plain = text.isascii() and cells is None
        self._at = (x + len(text) if is_plain else x + (cell_len(text) if cells is None else cells), y)

    def _change(self, look: _Look) -> None:
        before, self._look = self._look, look
        if look == before:
            return
        if look == _USUAL:
            self._written.append(_RESET)
        elif before.attributes and look.attributes != before.attributes:
            parts = (look.attributes, look.ink if look.ink != "39" else "", look.ground if look.ground != "49" else "")
            self._written.append(f"\x1b[{';'.join(['0', *filter(None, parts)])}m")
        else:
            pairs = zip(before, look, strict=True)
            self._written.append(f"\x1b[{';'.join(after for was, after in pairs if was != after)}m")


@lru_cache(4096)
def _look_of(style: Style, system: ColorSystem | None) -> _Look:
    if system is None:
        return _Look(_attributes(style))
    ink = style.color.downgrade(system).get_ansi_codes(foreground=True) if style.color else ("39",)
    ground = style.bgcolor.downgrade(system).get_ansi_codes(foreground=False) if style.bgcolor else ("49",)
    return _Look(_attributes(style), ";".join(ink), ";".join(ground))


def _attributes(style: Style) -> str:
    """Return the parameters of bold, reverse and the like; empty where there are none."""
    sequence, _, _ = style.without_color.render(".", color_system=ColorSystem.STANDARD).partition(".")
    return sequence.removeprefix("\x1b[").removesuffix("m")


def cut(strip: Strip, x: int, parts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, list[Segment]]]:
    """Yield parts of a strip that begins at `x`, from the left, each with its start, in one pass over its segments."""
    segments = [(segment, cell_len(segment.text)) for segment in strip if segment.text and not segment.control]
    place = 0
    for start, end in parts:
        piece: list[Segment] = []
        while place < len(segments) and x < end:
            segment, cells = segments[place]
            if x + cells > start:
                piece.append(_part(segment, cells, max(0, start - x), min(cells, end - x)))
            if x + cells > end:
                break  # the next part may begin in this segment too
            place, x = place + 1, x + cells
        yield start, piece


def _part(segment: Segment, cells: int, first: int, last: int) -> Segment:
    """Return the cells of a segment from `first` up to `last`; half of a wide character is a space."""
    if last - first == cells:
        return segment
    text, style, _ = segment
    if is_narrow(text):
        return Segment(text[first:last], style)
    return segment.split_cells(first)[1].split_cells(last - first)[0]


def covers(front: Iterable[Region], seen: Region) -> bool:
    return any(region.x <= seen.x and seen.right <= region.right for region in front)


def runs(rows: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of rows that follow one another; one row between two is cheaper drawn than left."""
    first = last = -1
    for row in rows:
        if first < 0:
            first = row
        elif row > last + 2:
            yield first, last
            first = row
        last = row
    if first >= 0:
        yield first, last
