"""How the main screen is divided among its panes: which are shown, and how many rows each has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

PANES = ("gpus", "queue", "log")
GRIDS = ("auto", "cards", "rows", "compact")
"""How GPUs may be drawn; `auto` takes what fits."""
LEAST = 3
"""Rows of a pane that is shown: a title and two of what it is for."""
_QUEUE = 6 / 11


@dataclass(frozen=True)
class Layout:
    """What an operator made of the screen: shares, so that they hold on a terminal of another size too."""

    gpus: float | None = None
    """Share of all rows that the GPUs have; None: as many as they need."""
    queue: float = _QUEUE
    """Share of the rest that the queue has; the log has what is left."""
    hidden: frozenset[str] = frozenset()
    grid: str = "auto"

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Layout:
        """As it was remembered; whatever makes no sense is as if it had not been."""
        hidden, grid = values.get("hidden"), values.get("grid")
        names = frozenset(str(name) for name in hidden) & set(PANES) if isinstance(hidden, list) else frozenset()
        return cls(
            _share(values.get("gpus")),
            _share(values.get("queue")) or _QUEUE,
            names if len(names) < len(PANES) else frozenset(),
            grid if isinstance(grid, str) and grid in GRIDS else "auto",
        )

    def values(self) -> dict[str, object]:
        """What is remembered of it."""
        return {"gpus": self.gpus, "queue": self.queue, "hidden": sorted(self.hidden), "grid": self.grid}

    @property
    def shown(self) -> tuple[str, ...]:
        """The panes that are there, from the top."""
        return tuple(pane for pane in PANES if pane not in self.hidden)

    def without(self, pane: str) -> Layout:
        """With that pane hidden; the last one stays."""
        return self if self.shown == (pane,) else replace(self, hidden=self.hidden | {pane})

    def with_all(self) -> Layout:
        """With every pane, each as high as at first; GPUs are drawn as before."""
        return Layout(grid=self.grid)

    def with_next_grid(self) -> Layout:
        """With the GPUs drawn in the next of the ways there are."""
        return replace(self, grid=GRIDS[(GRIDS.index(self.grid) + 1) % len(GRIDS)], gpus=None)

    def most_for_gpus(self, room: int) -> int:
        """Rows that the GPUs may have, of `room`: half where nobody chose, all but what the others need else."""
        others = len(self.shown) - 1
        if not others:
            return room
        return max(LEAST, room // 2 if self.gpus is None else room - LEAST * others)

    def rows_for_gpus(self, room: int) -> int | None:
        """Rows that the GPUs were given; None: as many as they need."""
        if self.shown == ("gpus",):
            return room
        return None if self.gpus is None else min(self.most_for_gpus(room), max(LEAST, round(self.gpus * room)))

    def grown(self, pane: str, step: int, heights: Mapping[str, int]) -> Layout:
        """With that pane so many rows higher than it is, as far as the others have rows to spare."""
        rest = sum(heights[name] for name in self.shown if name != "gpus")
        if pane == "gpus":
            return self._with_gpus(heights["gpus"] + step, heights)
        if "queue" in self.shown and "log" in self.shown:
            queue = heights["queue"] + (step if pane == "queue" else -step)
            kept = max(LEAST, min(rest - LEAST, queue)) + 0.5  # in the middle of a row: what is cut off is no row
            return replace(self, queue=kept / rest) if rest > 2 * LEAST else self
        return self._with_gpus(heights["gpus"] - step, heights) if "gpus" in self.shown else self

    def _with_gpus(self, rows: int, heights: Mapping[str, int]) -> Layout:
        room = sum(heights[name] for name in self.shown)
        if len(self.shown) == 1 or not LEAST <= rows <= room - LEAST * (len(self.shown) - 1):
            return self
        return replace(self, gpus=rows / room)


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1 else None
