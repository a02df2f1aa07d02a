"""Panes of the main screen: their sizes and visibility, and the keys and drags that change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from textual.screen import Screen
from textual.widget import Widget

from gputui.tui.services import Services
from gputui.tui.widgets.gpu_grid import GridRoom

PANES = ("gpus", "queue", "log")
GRIDS = ("auto", "cards", "rows", "compact")
"""Layouts of GPUs; `auto` uses one that fits."""
LOG_PLACES = ("auto", "below", "beside")
"""Places of the log; `auto` is beside the queue on wide screens."""
BESIDE_FROM, BESIDE_BY_ITSELF = 160, 250
"""Columns from which the log may be beside the queue, and from which it is by default."""
_NARROWEST = 40
"""Minimum columns of either of the two."""
_BESIDE = 0.6
LEAST = 3
"""Minimum rows of a visible pane: a title and two of its content."""
_IDLE = 6
"""Rows of an empty queue: tabs, titles, and words."""
_LEAST_LOG = 4
"""Rows of a log pane without a log: a title, words, and the two commands that submit a job."""
_TALL = 56
"""Rows from which GPUs get those that an empty queue leaves: graphs cost the terminal more the higher they are."""
_QUEUE = 7 / 11
_SECTION = "layout"
"""Section of the preferences."""
_PARTS = 10_000
"""Fractions in which queue and log share rows; if no row is left, Textual rounds each fraction up to at least one."""


class PaneLayout(Struct, frozen=True):
    """Sizes of the panes as shares of the rows, so that they also hold in a terminal of another size."""

    gpus: float | None = None
    """Share of all rows for the GPUs; None: as many rows as they need."""
    queue: float = _QUEUE
    """Share of the other rows for the queue; the log has the rest."""
    hidden: frozenset[str] = frozenset()
    grid: str = "auto"
    log: str = "auto"
    """Place of the log."""
    beside: float = _BESIDE
    """Share of the columns for the queue if the log is beside it."""

    @classmethod
    def of(cls, values: Mapping[str, object], log_place: str = "auto") -> PaneLayout:
        """Return the layout from the preferences; invalid values are ignored."""
        hidden, grid, log = values.get("hidden"), values.get("grid"), values.get("log")
        names = frozenset(str(name) for name in hidden) & set(PANES) if isinstance(hidden, list) else frozenset()
        return cls(
            _share(values.get("gpus")),
            _share(values.get("queue")) or _QUEUE,
            names if len(names) < len(PANES) else frozenset(),
            grid if isinstance(grid, str) and grid in GRIDS else "auto",
            log if isinstance(log, str) and log in LOG_PLACES else log_place,
            _share(values.get("beside")) or _BESIDE,
        )

    def values(self) -> dict[str, object]:
        sizes: dict[str, object] = {"gpus": self.gpus, "queue": self.queue, "beside": self.beside}
        return {**sizes, "hidden": sorted(self.hidden), "grid": self.grid, "log": self.log}

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(pane for pane in PANES if pane not in self.hidden)

    def without(self, pane: str) -> PaneLayout:
        """Return the layout with the pane hidden; the last pane stays."""
        return self if self.shown == (pane,) else replace(self, hidden=self.hidden | {pane})

    def is_beside(self, width: int) -> bool:
        if width < BESIDE_FROM or not {"queue", "log"} <= set(self.shown):
            return False
        return self.log == "beside" or (self.log == "auto" and width >= BESIDE_BY_ITSELF)

    def widened(self, columns: int, width: int) -> PaneLayout:
        """Return the layout with the queue wider by `columns`, as far as the log beside it can spare them."""
        kept = max(_NARROWEST, min(width - _NARROWEST, round(self.beside * width) + columns))
        return replace(self, beside=kept / width)

    def with_next_grid(self) -> PaneLayout:
        return replace(self, grid=GRIDS[(GRIDS.index(self.grid) + 1) % len(GRIDS)], gpus=None)

    def most_for_gpus(self, room: int, *, is_beside: bool = False, is_idle: bool = False) -> int:
        """Return how many of `room` rows the GPUs may have: half unless resized, else all that the others can spare.

        With queue and log side by side the GPUs get more rows, and on a tall screen beside an empty queue.
        """
        others = len(self.shown) - 1
        if not others:
            return room
        usual = room * 3 // 5 if is_beside else room // 2
        if is_idle and room >= _TALL:
            usual = max(usual, room - _IDLE - (0 if is_beside else LEAST))
        return max(LEAST, usual if self.gpus is None else room - LEAST * others)

    def rows_for_gpus(self, room: int) -> int | None:
        """Return the fixed number of rows of the GPUs; None: as many as they need."""
        if self.shown == ("gpus",):
            return room
        return None if self.gpus is None else min(self.most_for_gpus(room), max(LEAST, round(self.gpus * room)))

    def grown(self, pane: str, step: int, heights: Mapping[str, int]) -> PaneLayout:
        """Return the layout with the pane `step` rows higher, as far as the others have rows to spare."""
        rest = sum(heights[name] for name in self.shown if name != "gpus")  # of panes one below the other
        if pane == "gpus":
            return self._with_gpus(heights["gpus"] + step, heights)
        if "queue" in self.shown and "log" in self.shown:
            queue = heights["queue"] + (step if pane == "queue" else -step)
            kept = max(LEAST, min(rest - LEAST, queue)) + 0.5  # in the middle of a row: what is cut off is no row
            return replace(self, queue=kept / rest) if rest > 2 * LEAST else self
        return self._with_gpus(heights["gpus"] - step, heights) if "gpus" in self.shown else self

    def _with_gpus(self, rows: int, heights: Mapping[str, int]) -> PaneLayout:
        room = sum(heights[name] for name in self.shown)
        if len(self.shown) == 1 or not LEAST <= rows <= room - LEAST * (len(self.shown) - 1):
            return self
        return replace(self, gpus=rows / room)


class Panes:
    """Resizes, hides and zooms the panes of a screen, and remembers their layout between runs."""

    def __init__(self, screen: Screen[Any], services: Services, redraw: Callable[[], None]) -> None:
        self._screen = screen
        self._preferences = services.preferences
        self._pace = services.pace
        self._redraw = redraw
        self.layout = PaneLayout.of(self._preferences.get(_SECTION), services.settings.console.log_place)
        self._lent: tuple[int, int] | None = None
        """Rows of queue and log while the queue has some of a log pane without a log."""

    def pane(self, name: str) -> Widget:
        return self._screen.query_one(f"#{name}")

    def _box(self, name: str) -> Widget:
        """Return the widget that has the size of the pane: the queue shares its own with the filter line."""
        return self.pane("list" if name == "queue" else name)

    @property
    def is_beside(self) -> bool:
        return self._screen.has_class("-beside")

    @property
    def focused(self) -> str | None:
        return pane_of(self._screen.focused)

    @property
    def is_zoomed(self) -> bool:
        return self._screen.has_class("-zoomed")

    def lay_out(self) -> None:
        """Give each pane its rows; the GPU grid sets its own height when it is drawn."""
        for name in PANES:
            box = self._box(name)
            box.add_class("pane", update=False)  # it is styled with its screen, which is about to be shown
            box.set_class(name in self.layout.hidden, "-hidden")
        is_beside = self.layout.is_beside(self._screen.size.width)
        self._screen.set_class(is_beside, "-beside")
        queue = round(_PARTS * (self.layout.beside if is_beside else self.layout.queue))
        if self._lent and not is_beside:
            queue = round(_PARTS * (self._lent[0] + 0.5) / sum(self._lent))
        for name, parts in (("queue", queue), ("log", _PARTS - queue)):
            styles = self._box(name).styles
            styles.width, styles.height = (f"{parts}fr", "1fr") if is_beside else ("1fr", f"{parts}fr")

    def room_for_gpus(self, room: int, *, is_idle: bool) -> GridRoom:
        width = self._screen.size.width
        fixed = room if self.is_zoomed else self.layout.rows_for_gpus(room)
        most = self.layout.most_for_gpus(room, is_beside=self.layout.is_beside(width), is_idle=is_idle)
        return GridRoom(width, most, fixed, self._pace.grid(self.layout.grid))

    def settle(self, rows: int, wanted: int = 0) -> None:
        """Put the log beside the queue, or show only one of them, depending on the size of the screen.

        `rows` are for both: rows below the screen's edge are invisible. `wanted` are those that an empty queue's words
        need; the log has none to show then, and lends what it can unless the user has sized the panes.
        """
        usual, queue = round(_QUEUE * rows), min(wanted, rows - _LEAST_LOG)
        lent = (queue, rows - queue) if queue > usual and self.layout.queue == _QUEUE else None
        if self.layout.is_beside(self._screen.size.width) != self.is_beside or lent != self._lent:
            self._lent = lent
            self.lay_out()
        both = {"queue", "log"} <= set(self.layout.shown)
        least = LEAST if self.is_beside else 2 * LEAST
        self._screen.set_class(both and rows < least and not self.is_zoomed, "-low")

    def focus(self, name: str) -> None:
        """Focus a pane; if two do not fit together, show that one."""
        if self._screen.has_class("-low") and name != "gpus":
            self._screen.set_class(name == "log", "-reading")
        self.pane(name).focus()

    def show(self, name: str) -> None:
        """Focus a pane that may be hidden, or covered by a zoomed one."""
        if name in self.layout.hidden:
            self._become(replace(self.layout, hidden=self.layout.hidden - {name}))
        if self.is_zoomed and self.focused != name:
            self.action_zoom()
        self.focus(name)

    def action_pane(self, step: int) -> None:
        """Focus the next pane; a zoom moves along."""
        shown = self.layout.shown
        here = shown.index(self.focused) if self.focused in shown else 0
        name = shown[(here + step) % len(shown)]
        self.focus(name)
        if self.is_zoomed:
            self._screen.call_after_refresh(self._redraw)

    def action_grow(self, step: int) -> None:
        pane = self.focused
        if pane is None or self.is_zoomed:
            return
        if self.is_beside and pane != "gpus":
            self.widen(2 * step if pane == "queue" else -2 * step)
        else:
            self._become(self.layout.grown(pane, step, self._heights()))

    def widen(self, columns: int) -> None:
        self._become(self.layout.widened(columns, self._screen.size.width))

    def action_log_place(self) -> None:
        width = self._screen.size.width
        if width < BESIDE_FROM:
            words = f"The log fits beside the queue from {BESIDE_FROM} columns; this screen has {width}."
            self._screen.notify(words)
            return
        self._become(replace(self.layout, log="below" if self.layout.is_beside(width) else "beside"))

    def drag_edge(self, name: str | None, rows: int) -> None:
        shown = self.layout.shown
        if self.is_beside:
            name = "queue"  # both have the same upper edge
        if name in shown[1:] and not self.is_zoomed:
            above = shown[shown.index(name) - 1]
            self._become(self.layout.grown(above, rows, self._heights()))

    def action_hide(self) -> None:
        if (pane := self.focused) is not None and len(self.layout.shown) > 1:
            self._screen.remove_class("-zoomed")
            following = PANES[PANES.index(pane) + 1 :] + PANES
            self._become(self.layout.without(pane))
            self.pane(next(name for name in following if name in self.layout.shown)).focus()

    def action_all_panes(self) -> None:
        self._screen.remove_class("-zoomed")
        self._become(PaneLayout(grid=self.layout.grid, log=self.layout.log))

    def action_grid(self) -> None:
        self._become(self.layout.with_next_grid())
        self._screen.notify(f"GPU layout: {self.layout.grid}")

    def action_zoom(self) -> None:
        self._screen.toggle_class("-zoomed")
        self._redraw()

    def _heights(self) -> dict[str, int]:
        """Return the rows of each pane; a log beside the queue needs none of its own."""
        found = {name: self.pane(name).size.height for name in self.layout.shown}
        return {**found, "log": 0} if self.is_beside else found

    def _become(self, layout: PaneLayout) -> None:
        if layout != self.layout:
            self.layout = layout
            self._preferences.put(_SECTION, layout.values())
            self.lay_out()
            self._redraw()


def pane_of(widget: Widget | None) -> str | None:
    nodes = widget.ancestors_with_self if widget is not None else ()
    return next((node.id for node in nodes if node.id in PANES), None)


def _share(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1 else None
