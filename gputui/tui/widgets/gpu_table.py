"""Table of GPUs: one row each, below a line for its node where there are several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.style import Style
from textual.strip import Strip

from gputui.domain.gpu_names import index_of
from gputui.tui.commands.command import bindings
from gputui.tui.commands.table import GRID_COMMANDS
from gputui.tui.present.cells import Cell, Column, PlacedColumn, cell, segments
from gputui.tui.present.gpu import gpu_cells, node_line, node_titles, sick_words
from gputui.tui.present.gpu_rows import GPU_COLUMNS, GpuNode, GpuPicture, node_rows
from gputui.tui.present.graphs import span_words
from gputui.tui.present.style import BLUE, DIM, RAISED, STRONG
from gputui.tui.widgets.line_table import LineTable

_RAISED = Style(bgcolor=RAISED)


class NodeFolds:
    """Which nodes of a cluster are open, and their order."""

    def __init__(self) -> None:
        self.rows: Mapping[str, GpuNode] = {}
        """The nodes by the keys of their lines, in the order shown; empty if there is only one."""
        self.by_idleness = False
        """True if the idlest nodes come first."""
        self._are_open = False
        """True if nodes are open that the user has neither opened nor closed."""
        self._chosen: dict[str, bool] = {}

    def show(self, picture: GpuPicture, room: int) -> None:
        """Take the nodes of a picture; they are open if all lines fit into that many."""
        nodes = node_rows(picture)
        ordered = sorted(nodes, key=lambda node: node.idleness) if self.by_idleness else nodes
        self.rows = {node.key: node for node in ordered}
        self._are_open = len(nodes) + len(picture.rows) <= room

    @property
    def keys(self) -> list[str]:
        """Keys of the visible lines: nodes, each followed by its GPUs if it is open."""
        return [
            key for node in self.rows.values() for key in (node.key, *(node.uuids if self.is_open(node.key) else ()))
        ]

    @property
    def are_closed(self) -> bool:
        return bool(self.rows) and not any(map(self.is_open, self.rows))

    def is_open(self, key: str) -> bool:
        return self._chosen.get(key, self._are_open)

    def node_of(self, key: str | None) -> str | None:
        """Return the key of the node of a line: the node itself, or a GPU in it."""
        if key in self.rows:
            return key
        return next((node.key for node in self.rows.values() if key in set(node.uuids)), None)

    def uuids(self, key: str | None) -> tuple[str, ...]:
        """Return the UUIDs of the visible GPUs of a node."""
        node = self.rows.get(key) if key is not None else None
        return tuple(node.uuids) if node is not None and self.is_open(node.key) else ()

    def toggle(self, key: str) -> None:
        self._chosen[key] = not self.is_open(key)

    def toggle_all(self) -> None:
        """Open all nodes, or close them if any is open."""
        self._chosen = dict.fromkeys(self.rows, self.are_closed)


class GpuTable(LineTable[str]):
    """Table of GPUs by UUID; those of several nodes are grouped under a line for each node."""

    BINDINGS: ClassVar = bindings(GRID_COMMANDS)
    COLUMNS: ClassVar = GPU_COLUMNS
    noun = "GPU"

    def __init__(self, *, id: str) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._picture = GpuPicture()
        self._columns = self._picture.columns(("fan",))
        self.folds = NodeFolds()

    def columns(self) -> tuple[Column, ...]:
        """Return the columns for which any GPU has a reading."""
        return self._columns

    def show(self, picture: GpuPicture, positions: Mapping[str, int], empty: tuple[Cell, ...]) -> None:
        """Show the GPUs, or a text if there is none."""
        titled = self._titled()
        self._picture, columns = picture, picture.columns(picture.unread())
        if self._titled() != titled:
            self._refresh_titles()
        if columns != self._columns:
            self._columns = columns
            self.keys = [key for key in self.keys if key in positions]  # drawn before the new ones are shown
            self.lay_out()
        self.show_rows(tuple(positions), positions, empty)

    def title_of(self, placed: PlacedColumn) -> str:
        """Return the title of a column; the history's shows how far back it goes."""
        title = self._picture.title_of(placed)
        return f"{title} {span_words(placed.width, self._span())}" if placed.column.key == "history" else title

    def _titled(self) -> tuple[int, str, int]:
        return self._span(), self._picture.model, len(self._picture.rows)

    def _span(self) -> int:
        """Return the seconds that graphs show; 0: live."""
        return next((row.look.seconds for row in self._picture.rows.values()), 0)

    def cell_of(self, key: str, column: str, room: int) -> Cell:
        """Return the content of a cell; below its node, a GPU is named by its index alone."""
        row = self._picture.rows[key]
        return cell(index_of(row.view), DIM) if column == "index" else gpu_cells(row, column, room)

    def whole_line(self, key: str) -> Cell | None:
        """Return the line of a node, or why a GPU is lost or sick, in place of missing readings."""
        if (node := self.folds.rows.get(key)) is not None:
            return node_line(node, tuple(self.folds.rows.values()), is_open=self.folds.is_open(key))
        return sick_words(self._picture.rows[key], self.size.width, has_model=not self._picture.model)

    def redraw(self) -> None:
        """Update the visible rows; does nothing while the cards are shown instead."""
        if self.display:
            super().redraw()

    def action_beside(self, step: int) -> None:
        self.move_to(self._row + step)

    def _titles(self) -> Strip:
        if self.keys and self.folds.are_closed:
            style = STRONG + BLUE if self.has_focus else DIM
            spans = [("▌" if self.has_focus else " ", BLUE), *node_titles(tuple(self.folds.rows.values()), style)]
            strip = Strip(segments(spans, _RAISED)).adjust_cell_length(self.size.width, _RAISED)
            return self._with_position(strip)
        if self.keys:
            return super()._titles()
        words = segments([(" GPU", BLUE if self.has_focus else DIM)], _RAISED)
        return Strip(words).adjust_cell_length(self.size.width, _RAISED)
