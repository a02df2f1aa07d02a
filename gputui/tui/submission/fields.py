"""The fields of the submit form: a line of text or a box to tick, and below each row what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.reactive import var
from textual.strip import Strip
from textual.suggester import Suggester
from textual.widgets import Static

from gputui.domain.text import fit
from gputui.request import pasted_line
from gputui.request.draft import YES
from gputui.request.pasted_line import join_lines
from gputui.tui.commands.jobs import MORE_FIELDS
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Span, fitted, segments
from gputui.tui.present.status import wrapped
from gputui.tui.present.style import BLUE, DIM, RAISED, RED
from gputui.tui.submission.form import FLAGS, HINTS, label
from gputui.tui.textual_internals import PasteInput

LABEL = 12
"""Cells for what a field is called."""
LEAST_ROOM = 74
"""Cells that it has on the smallest screen."""
_RAISED = Style(bgcolor=RAISED)


class TextField(PasteInput):
    """A line of text, which hands a pasted command on as a whole."""

    class LinePasted(Message):
        """A `docker run` or `gputui submit` line was pasted."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def pasted(self, event: events.Paste) -> bool:
        """Hand a command line on as a whole; join any other text over several lines into one."""
        if pasted_line.is_line(event.text):
            self.post_message(self.LinePasted(event.text))
            return True
        if len(event.text.strip().splitlines()) > 1:  # a command folded over lines is one line here
            event.text = " ".join(join_lines(event.text).splitlines())
        return False


class FlagField(Static, can_focus=True):
    """A box to tick; Enter submits as it does everywhere in the form."""

    BINDINGS: ClassVar = [("space,x", "tick", "tick"), ("enter", "screen.send", "submit")]
    value: var[bool] = var(False)

    class Changed(Message):
        """Message that the box was ticked or cleared."""

        def __init__(self, field: FlagField) -> None:
            super().__init__()
            self.field = field

    def __init__(self, words: str, *, id: str, classes: str | None) -> None:  # noqa: A002 - Textual's word
        super().__init__("", id=id, classes=classes, markup=False)
        self._words = words

    def on_mount(self) -> None:
        """Begin as it is."""
        self._draw()

    def watch_value(self) -> None:
        """Show it, and say so."""
        if self.is_attached:
            self._draw()
            self.post_message(self.Changed(self))

    def _draw(self) -> None:
        self.update(f"[{'x' if self.value else ' '}] {self._words}")

    def action_tick(self) -> None:
        """The other way round."""
        self.value = not self.value

    def on_click(self) -> None:
        """Tick or clear the box."""
        self.action_tick()


Field = TextField | FlagField


class FieldRow(Horizontal):
    """Row of one field or two, with lines below for errors or notes while there are any.

    It draws labels and lines itself: a widget for each would make the form slow to open.
    """

    DEFAULT_CSS = """
    FieldRow {
        height: 1;
        TextField, FlagField { width: 1fr; height: 1; margin: 0 0 0 12; background: $background; }
        .second { margin-left: 13; }
        TextField:focus, FlagField:focus { background: $background-lighten-2; }
        FlagField { color: $foreground 80%; }
    }
    """

    def __init__(self, names: tuple[str, ...], suggesters: Mapping[str, Suggester]) -> None:
        super().__init__()
        self.names = names
        self._suggesters = suggesters
        self.fields = {name: self._field(name, place) for place, name in enumerate(names)}
        self._wrong: dict[str, str] = {}
        self._known: dict[str, str] = {}
        self._changed: frozenset[str] = frozenset()
        self._notes: list[str] = []
        """Lines below the fields."""
        self._was_wrong = False

    def compose(self) -> ComposeResult:
        """The fields, which are there before it is on the screen."""
        yield from self.fields.values()

    def _field(self, name: str, place: int) -> Field:
        classes = "second" if place else None
        if name in FLAGS:
            return FlagField(HINTS[name], id=name, classes=classes)
        suggester = self._suggesters.get(name)
        return TextField(placeholder=HINTS[name], id=name, compact=True, suggester=suggester, classes=classes)

    def set_wrong(self, name: str, words: str) -> None:
        """Say what is wrong with a field; empty: nothing is."""
        self._wrong[name] = words
        self._show()

    def set_known(self, name: str, words: str) -> None:
        """Say what is worth knowing of it."""
        self._known[name] = words
        self._show()

    def set_changed(self, names: frozenset[str]) -> None:
        """Mark those of its fields that are among these, and no others."""
        changed = names.intersection(self.names)
        if changed != self._changed:
            self._changed = changed
            self.refresh()

    def show_only(self, names: frozenset[str]) -> None:
        """Hide its fields that are not among these; without any the row is hidden."""
        for name, field in self.fields.items():
            field.display = name in names
        self.display = not names.isdisjoint(self.names)

    @property
    def is_wrong(self) -> bool:
        """Return whether a field of the row has an error."""
        return any(self._wrong.values())

    def on_resize(self) -> None:
        """Wrap the lines anew."""
        self._show()

    def _show(self) -> None:
        lines = self._wrong if self.is_wrong else self._known
        named = len(self.names) > 1
        told = [f"{label(name)}: {words}" if named else words for name, words in lines.items() if words]
        room = (self.size.width or LEAST_ROOM) - LABEL
        notes = [part for words in told for part in wrapped(words, room)]
        if notes != self._notes or self._was_wrong != self.is_wrong:
            self._notes, self._was_wrong = notes, self.is_wrong
            self.styles.height = 1 + len(notes)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Labels, or what is below them."""
        spans: list[Span] = []
        if y == 0:
            for child, name in zip(self.children, self.names, strict=False):
                if not child.display:
                    continue
                at = child.region.x - self.region.x - LABEL
                spans += [
                    (" " * (at - sum(len(text) for text, _ in spans)), DIM),
                    (fit(label(name), LABEL), BLUE if name in self._changed else DIM),
                ]
        elif y <= len(self._notes):
            spans = [(" " * LABEL, DIM), (self._notes[y - 1], RED if self.is_wrong else DIM)]
        width = self.size.width
        return Strip(segments(fitted(tuple(spans), width), _RAISED)).adjust_cell_length(width, _RAISED)


class Fold(Static, can_focus=True):
    """Folds the rare fields open or away."""

    BINDINGS: ClassVar = [("space,enter", "screen.more", "more fields")]
    DEFAULT_CSS = """
    Fold { height: 1; width: 100%; color: $primary; }
    Fold:focus { background: $background-lighten-2; }
    """

    def __init__(self, count: int) -> None:
        super().__init__("", markup=False)
        self._count = count
        self._is_open = False

    def on_mount(self) -> None:
        """Say what its key would do: which that is only the console knows."""
        self.show_open(self._is_open)

    def show_open(self, is_open: bool) -> None:
        """Say what its key would do."""
        self._is_open = is_open
        if self.is_attached:
            key = keymap_of(self).told(MORE_FIELDS).first_key or "the command more_fields"
            self.update(f"▾ fewer fields ({key})" if is_open else f"▸ {self._count} more fields ({key})")

    async def on_click(self) -> None:
        """Fold the rare fields open or away."""
        await self.run_action("screen.more")


def text_in(field: Field) -> str:
    """Return the text of a field."""
    if isinstance(field, FlagField):
        return YES if field.value else ""
    return field.value


def put_in(field: Field, text: str) -> None:
    """Have it hold this."""
    if isinstance(field, FlagField):
        field.value = text == YES
    else:
        field.value = text
