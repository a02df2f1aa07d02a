"""A screen of panes, which are resized, hidden and zoomed by key, and found as they were left."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.widget import Widget

from gputui.domain.snapshot import EMPTY, Snapshot
from gputui.tui.commands import PANE_COMMANDS, bindings
from gputui.tui.desk import Desk
from gputui.tui.layout import LEAST, PANES, Layout
from gputui.tui.screens.job_screen import JobScreen
from gputui.tui.widgets.grip import GripMoved

_SECTION = "layout"
_PARTS = 10_000
"""In which the rows of queue and log are shared out. Where none is left Textual takes each part for one or more."""


class PaneScreen(JobScreen):
    """Three panes, one above the other."""

    BINDINGS: ClassVar = bindings(PANE_COMMANDS)
    DEFAULT_CSS = """
    PaneScreen #queue, PaneScreen #log { min-height: 3; max-height: 100vh; }
    PaneScreen .pane.-hidden { display: none; }
    PaneScreen.-low #log, PaneScreen.-low.-reading #queue { display: none; }
    PaneScreen.-low.-reading #log { display: block; }
    PaneScreen.-zoomed .pane { display: none; }
    PaneScreen.-zoomed .pane:focus { display: block; }
    """

    def __init__(self, desk: Desk, snapshot: Snapshot = EMPTY) -> None:
        super().__init__(desk, snapshot)
        self._layout = Layout.of(desk.remembered.get(_SECTION))

    @property
    def layout_now(self) -> Layout:
        """How the panes are laid out."""
        return self._layout

    def pane(self, name: str) -> Widget:
        """The pane of that name."""
        return self.query_one(f"#{name}")

    @property
    def focused_pane(self) -> str | None:
        """The pane that the keys go to."""
        return self.focused.id if self.focused and self.focused.id in PANES else None

    @property
    def is_zoomed(self) -> bool:
        """Whether one pane has it all."""
        return self.has_class("-zoomed")

    def lay_panes(self) -> None:
        """Give each pane its rows; the GPUs take theirs as they are shown."""
        for name in PANES:
            pane = self.pane(name)
            pane.add_class("pane")
            pane.set_class(name in self._layout.hidden, "-hidden")
        queue = round(_PARTS * self._layout.queue)
        self.pane("queue").styles.height = f"{queue}fr"
        self.pane("log").styles.height = f"{_PARTS - queue}fr"

    def mind_the_room(self, rows: int) -> None:
        """Show queue or log alone where these rows are too few for both: what is below the screen nobody sees."""
        both = {"queue", "log"} <= set(self._layout.shown)
        self.set_class(both and rows < 2 * LEAST and not self.is_zoomed, "-low")

    def refresh_panes(self) -> None:
        """Draw them, as they are laid out now."""
        raise NotImplementedError

    def _become(self, layout: Layout) -> None:
        if layout != self._layout:
            self._layout = layout
            self._desk.remembered.put(_SECTION, layout.values())
            self.lay_panes()
            self.refresh_panes()

    def action_grow(self, step: int) -> None:
        """Give the focused pane rows of the others, or they get some of its."""
        if (pane := self.focused_pane) is not None and not self.is_zoomed:
            heights = {name: self.pane(name).size.height for name in self._layout.shown}
            self._become(self._layout.grown(pane, step, heights))

    @on(GripMoved)
    def _grip_moved(self, message: GripMoved) -> None:
        """Give the pane above the one whose edge is dragged as many rows, or take them."""
        shown = self._layout.shown
        if message.pane.id in shown[1:] and not self.is_zoomed:
            above = shown[shown.index(message.pane.id) - 1]
            heights = {name: self.pane(name).size.height for name in shown}
            self._become(self._layout.grown(above, message.rows, heights))

    def action_hide(self) -> None:
        """Take the focused pane off the screen, and go to the next one."""
        if (pane := self.focused_pane) is not None and len(self._layout.shown) > 1:
            self.remove_class("-zoomed")
            following = PANES[PANES.index(pane) + 1 :] + PANES
            self._become(self._layout.without(pane))
            self.pane(next(name for name in following if name in self._layout.shown)).focus()

    def action_all_panes(self) -> None:
        """Show every pane, as high as at first."""
        self.remove_class("-zoomed")
        self._become(self._layout.with_all())

    def action_grid(self) -> None:
        """Draw GPUs in the next way: what fits, cards, rows, many to a line."""
        self._become(self._layout.with_next_grid())
        self.notify(f"GPUs: {_GRID_WORDS[self._layout.grid]}", timeout=2)

    def turn_to(self, pane: Widget) -> None:
        """Send the keys there; of two that have no room together that one is shown."""
        if not self.has_class("-low") or pane.id == "gpus":
            pane.focus()
            return
        self.set_class(pane.id == "log", "-reading")
        self.call_after_refresh(pane.focus)

    def action_zoom(self) -> None:
        """Give the focused pane all the room, or take it back."""
        self.toggle_class("-zoomed")
        self.refresh_panes()

    def action_pane(self, step: int) -> None:
        """Go to the next pane."""
        shown = self._layout.shown
        here = shown.index(self.focused_pane) if self.focused_pane in shown else 0
        pane = self.pane(shown[(here + step) % len(shown)])
        if not self.is_zoomed:
            self.turn_to(pane)
            return
        self.remove_class("-zoomed")

        def zoom() -> None:
            pane.focus()
            self.add_class("-zoomed")
            self.call_after_refresh(self.refresh_panes)

        self.call_after_refresh(zoom)


_GRID_WORDS = {"auto": "as fits", "cards": "cards", "rows": "one to a line", "compact": "several to a line"}
