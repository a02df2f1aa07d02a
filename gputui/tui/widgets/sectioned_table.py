"""Table whose rows are in sections: each scrolls on its own lines, so that none pushes another off the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeVar

from textual import events

from gputui.tui.present.cells import Cell
from gputui.tui.queue.sections import Extent, Section, View, visible
from gputui.tui.widgets.line_table import CursorMoved, LineTable

K = TypeVar("K")


class SectionedTable(LineTable[K]):
    """Rows in sections while `extent` is set; else one list, as any other table."""

    extent: Extent | None = None
    """Number of rows of each section."""
    view = View()
    """Visible lines; of the last extent and size."""

    def row_at(self, y: int) -> int | None:
        """Return the row on that line below the titles; None if there is none."""
        if self.extent is None:
            return super().row_at(y)
        return self.view.lines[y] if 0 <= y < len(self.view.lines) and self.view.lines[y] >= 0 else None

    @property
    def page(self) -> int:
        """Number of rows of the cursor's section that are visible together."""
        here = self.extent.section(self._row) if self.extent is not None else None
        return super().page if here is None else self.view.shares[here]

    @property
    def has_cursor_in_sight(self) -> bool:
        """Return whether the row of the cursor is visible."""
        return super().has_cursor_in_sight if self.extent is None else self._row in self.view.lines

    def show_rows(self, keys: Sequence[K], positions: Mapping[K, int], empty: tuple[Cell, ...] = ()) -> None:
        """Show these rows. The cursor stays on its key; each section stays with its visible rows."""
        if self.extent is None:
            super().show_rows(keys, positions, empty)
            return
        tops = (0, 0, 0) if self._is_rearranged else self._steady_tops(keys, positions)
        self._is_rearranged = False
        self.keys, self._positions, self._empty = keys, positions, empty
        moved = self._find_cursor()
        self._settle(tops)
        self.redraw()
        if moved:
            self.post_message(CursorMoved())

    def _steady_tops(self, keys: Sequence[K], positions: Mapping[K, int]) -> tuple[int, ...]:
        """Return the first row of each section with which most of its visible rows keep their places."""
        if keys is self.keys or self.extent is None:
            return self.view.tops
        votes: list[Counter[int]] = [Counter(), Counter(), Counter()]
        seen = [0, 0, 0]
        for at in self.view.lines:
            key = self.keys[at] if 0 <= at < len(self.keys) else None
            row = positions.get(key) if key is not None else None
            section = self.extent.section(row) if row is not None else None
            if row is not None and section is not None:
                votes[section][row - self.extent.starts[section] - seen[section]] += 1
                seen[section] += 1
        return tuple(
            max(0, vote.most_common(1)[0][0]) if vote and top else top
            for vote, top in zip(votes, self.view.tops, strict=True)
        )

    def _settle(self, tops: Sequence[int]) -> None:
        """Choose the visible lines."""
        if self.extent is not None:
            row = self._row if self._is_followed and self.keys else None
            self.view = visible(self.extent, self.height, row, tops, words=len(self.words()))

    def words(self) -> tuple[Cell, ...]:
        """Return the lines shown while no job runs or waits."""
        return ()

    def move_to(self, row: int) -> None:
        """Move the cursor to a row. A section that it leaves shows its first rows again."""
        if self.extent is None or not self.keys:
            super().move_to(row)
            return
        left, before = self._row, self.view.lines
        self._row = max(0, min(row, len(self.keys) - 1))
        self.cursor = self.keys[self._row]
        self.follow_cursor()
        here = self.extent.section(self._row)
        self._settle([top if section is here else 0 for section, top in zip(Section, self.view.tops, strict=True)])
        if before != self.view.lines:
            self.redraw()
            self._refresh_titles()
        else:
            for y, at in enumerate(before):
                if at in (left, self._row):
                    self._redraw_line(y)
        self.post_message(CursorMoved())

    def _scroll(self, step: int, event: events.MouseEvent) -> None:
        """Scroll the section under the pointer; the cursor stays."""
        if self.extent is None:
            super()._scroll(step, event)
            return
        event.stop()
        row = next((at for at in reversed(self.view.lines[: max(1, event.y - self.head + 1)]) if at >= 0), None)
        section = self.extent.section(row) if row is not None else None
        if section is None:
            return
        tops = list(self.view.tops)
        tops[section] += step
        self._is_followed = False
        self._settle(tops)
        self._is_followed = self.has_cursor_in_sight
        self._refresh_titles()
        self.redraw()

    def _bring_into_sight(self) -> None:
        if self.extent is None:
            super()._bring_into_sight()
        else:
            self._settle(self.view.tops)

    def _clamp(self) -> None:
        if self.extent is None:
            super()._clamp()
        else:
            self._settle(self.view.tops)
