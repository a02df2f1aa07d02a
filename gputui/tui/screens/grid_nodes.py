"""Nodes of a cluster in the grid of the main screen: opened, closed and sorted by the queue's keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from textual.screen import Screen

from gputui.tui.screens.job_screen import Predicate
from gputui.tui.widgets.gpu_grid import GpuGrid


class GridNodes:
    """Carries out keys of the queue on nodes while the grid has the focus; each method returns whether it did."""

    def __init__(self, screen: Screen[Any], grid: GpuGrid, redraw: Callable[[], None]) -> None:
        self._screen = screen
        self._grid = grid
        self._redraw = redraw

    @property
    def has_focus(self) -> bool:
        """Return whether the focus is on GPUs that are grouped by node."""
        return self._grid.has_focus_within and self._grid.has_nodes

    @property
    def chosen(self) -> str | None:
        """Name of the node whose line is selected while the grid has the focus."""
        return self._grid.node if self.has_focus and self._grid.is_on_node else None

    def conditions(self, of_queue: Mapping[str, Predicate]) -> dict[str, Predicate]:
        """Return the conditions of the queue's actions that nodes have too."""
        return {name: self._or_here(of_queue[name]) for name in ("fold", "fold_all", "sort")}

    def _or_here(self, may: Predicate) -> Predicate:
        return lambda argument: self.has_focus or may(argument)

    def sort(self) -> bool:
        """Show the idlest nodes first, or nodes in their own order."""
        if not self.has_focus:
            return False
        order = "the idlest first" if self._grid.sort() else "in the order of the cluster"
        self._redraw()
        self._grid.move_to(0)
        self._screen.notify(f"Nodes: {order}")
        return True

    def fold(self) -> bool:
        """Open the node of the selected line, or close it."""
        is_done = self._changed(self._grid.fold)
        if is_done:
            self._grid.show_whole_node()
        return is_done

    def fold_all(self) -> bool:
        """Open all nodes, or close them."""
        return self._changed(self._grid.fold_all)

    def _changed(self, change: Callable[[], None]) -> bool:
        if self.has_focus:
            change()
            self._redraw()
            return True
        return False
