"""Fields of the submit form: a text field or a check box, with errors below each row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from msgspec.structs import replace
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.message import Message
from textual.reactive import var
from textual.strip import Strip
from textual.suggester import Suggester
from textual.widgets import Input, Static

from gputui.domain.snapshot import Snapshot
from gputui.domain.text import fit, plain
from gputui.ports.backend import Backend
from gputui.request import draft as drafts
from gputui.request import pasted_line
from gputui.request.draft import YES, Draft
from gputui.request.pasted_line import join_lines
from gputui.tui.commands.command import Command
from gputui.tui.commands.table import MORE_FIELDS
from gputui.tui.keymap import keymap_of
from gputui.tui.present.cells import Span, fitted, segments
from gputui.tui.present.status import wrapped
from gputui.tui.present.style import BLUE, DIM, RAISED, RED
from gputui.tui.submission.form import FLAGS, HINTS, MORE, USUAL, field_name, is_folded, label
from gputui.tui.textual_internals import PasteInput

SHOWN = 4


@dataclass(eq=False)
class ImagesFound(Message, bubble=False):
    """Message with the engine's images."""

    names: Sequence[str]


class Images(Suggester):
    """Suggests the images of jobs in the queue, the latest first, then the engine's own."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        used = (job.spec.image for job in reversed(snapshot.jobs) if job.spec.image)
        self._names = dict.fromkeys(used)

    def add(self, names: Iterable[str]) -> None:
        self._names |= dict.fromkeys(name for name in names if plain(name) == name)

    def matching(self, typed: str) -> list[str]:
        """Return the names that begin with the text; of names within a registry, the last part may."""
        begin = [name for name in self._names if name.startswith(typed)]
        return begin + [name for name in self._names if name not in begin and f"/{typed}" in name]

    async def get_suggestion(self, value: str) -> str | None:
        return next((name for name in self._names if name.startswith(value) and name != value), None)

    def words(self, typed: str) -> str:
        found = [name for name in self.matching(typed) if name != typed] if typed.strip() else []
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        return ("→ takes the first of: " if found else "") + ", ".join(found[:SHOWN]) + more


def ask_engine(backend: Backend, server: str, tell: Callable[[Message], object]) -> None:
    """Ask the engine for images on a daemon thread, since it may take seconds."""

    def ask() -> None:
        tell(ImagesFound(tuple(backend.images(server))))

    threading.Thread(target=ask, name="gputui-images", daemon=True).start()


LABEL = 13
"""Cells of a field's label, with at least one blank after it."""
LEAST_ROOM = 74
"""Cells of a field on the smallest screen."""
_RAISED = Style(bgcolor=RAISED)


class TextField(PasteInput):
    """Text field that passes on a pasted command line as a whole."""

    @dataclass(eq=False)
    class LinePasted(Message):
        """Message that a `docker run` or `gputui submit` line was pasted."""

        text: str

    def pasted(self, event: events.Paste) -> bool:
        """Pass on a pasted command line as a whole; join the lines of any other text."""
        if pasted_line.is_line(event.text):
            self.post_message(self.LinePasted(event.text))
            return True
        if len(event.text.strip().splitlines()) > 1:  # a command continued over several lines becomes one line here
            event.text = " ".join(join_lines(event.text).splitlines())
        return False


class FlagField(Static, can_focus=True):
    """Check box; Enter submits, as everywhere in the form."""

    BINDINGS: ClassVar = [("space,x", "tick", "tick"), ("enter", "screen.send", "submit")]
    value: var[bool] = var(False)

    @dataclass(eq=False)
    class Changed(Message):
        """Message that the box was ticked or cleared."""

        field: FlagField

    def __init__(self, words: str, *, id: str, classes: str | None) -> None:  # noqa: A002 - Textual's word
        super().__init__("", id=id, classes=classes, markup=False)
        self._words = words

    def on_mount(self) -> None:
        self._draw()

    def watch_value(self) -> None:
        if self.is_attached:
            self._draw()
            self.post_message(self.Changed(self))

    def _draw(self) -> None:
        self.update(f"[{'x' if self.value else ' '}] {self._words}")

    def action_tick(self) -> None:
        self.value = not self.value

    def on_click(self) -> None:
        self.action_tick()


Field = TextField | FlagField


class FieldRow(Horizontal):
    """Row of one field or two, with lines below for errors or notes while there are any.

    It draws labels and lines itself: a widget for each would make the form slow to open.
    """

    DEFAULT_CSS = """
    FieldRow {
        height: 1;
        TextField, FlagField { width: 1fr; height: 1; margin: 0 0 0 13; background: $background; }
        .second { margin-left: 14; }
        TextField:focus, FlagField:focus { background: $background-lighten-2; }
        FlagField { color: $foreground 80%; }
    }
    """

    def __init__(
        self, names: tuple[str, ...], suggesters: Mapping[str, Suggester], hints: Mapping[str, str] = HINTS
    ) -> None:
        super().__init__()
        self._hints = hints
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
        yield from self.fields.values()

    def _field(self, name: str, place: int) -> Field:
        classes = "second" if place else None
        if name in FLAGS:
            return FlagField(self._hints[name], id=name, classes=classes)
        suggester = self._suggesters.get(name)
        return TextField(placeholder=self._hints[name], id=name, compact=True, suggester=suggester, classes=classes)

    def set_wrong(self, name: str, words: str) -> None:
        """Set the error of a field; empty: none."""
        self._wrong[name] = words
        self._show()

    def set_known(self, name: str, words: str) -> None:
        self._known[name] = words
        self._show()

    def set_changed(self, names: frozenset[str]) -> None:
        """Mark exactly those of its fields that are in `names`."""
        changed = names.intersection(self.names)
        if changed != self._changed:
            self._changed = changed
            self.refresh()

    def show_only(self, names: frozenset[str]) -> None:
        """Hide its fields that are not in `names`; if none is left, hide the row."""
        for name, field in self.fields.items():
            field.display = name in names
        self.display = not names.isdisjoint(self.names)

    @property
    def is_wrong(self) -> bool:
        return any(self._wrong.values())

    def on_resize(self) -> None:
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
    """Shows or hides the less common fields."""

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
        """Show the command's key, which only the console knows."""
        self.show_open(self._is_open)

    def set_count(self, count: int) -> None:
        self._count = count
        self.show_open(self._is_open)

    def show_open(self, is_open: bool) -> None:
        self._is_open = is_open
        if self.is_attached:
            key = keymap_of(self).told(MORE_FIELDS).first_key or "the command more_fields"
            self.update(f"▾ fewer fields ({key})" if is_open else f"▸ {self._count} more fields ({key})")

    async def on_click(self) -> None:
        await self.run_action("screen.more")


AROUND = 7
"""Rows of the form other than fields."""


class FormBody(VerticalScroll, can_focus=False):
    """Rows of fields, as many as there is room for."""

    DEFAULT_CSS = """
    FormBody { height: auto; scrollbar-size-vertical: 1; }
    FormBody #more { height: auto; }
    """

    class Unfolded(Message):
        """Message that the less common fields are shown, or hidden."""

    def __init__(self, suggesters: Mapping[str, Suggester], hints: Mapping[str, str] = HINTS) -> None:
        super().__init__()
        self._fields: dict[str, Field] = {}
        self._rows: dict[str, FieldRow] = {}
        self._kept: dict[str, str] = {}
        """Reasons why fields cannot be changed; folded fields are created later."""
        self._absent: frozenset[str] = frozenset()
        """Fields of what the cluster lacks."""
        self._usual = [FieldRow(names, suggesters, hints) for names in USUAL]
        self._fold = Fold(len([name for row in MORE for name in row]))
        self._more = Vertical(id="more")
        self._adopt(self._usual)

    def compose(self) -> ComposeResult:
        """Yield the usual fields; the others are created when they are first shown."""
        yield from self._usual
        yield self._fold
        yield self._more

    def _adopt(self, rows: Iterable[FieldRow]) -> None:
        for row in rows:
            self._fields |= row.fields
            self._rows |= dict.fromkeys(row.names, row)
            row.show_only(frozenset(row.names) - self._absent)

    def leave_out(self, names: Iterable[str]) -> None:
        """Hide these fields of what the cluster lacks, and show the others."""
        self._absent = frozenset(names)
        self._fold.set_count(len([name for row in MORE for name in row if name not in self._absent]))
        for row in self._rows.values():
            row.show_only(frozenset(row.names) - self._absent)

    def on_mount(self) -> None:
        self.keep_within(self.app.size.height - 1)

    def keep_within(self, rows: int) -> None:
        self.styles.max_height = max(3, rows - AROUND)

    @property
    def is_open(self) -> bool:
        return bool(self._more.children) and self._more.display

    def unfold(self, is_open: bool = True) -> None:
        """Show the less common fields, or hide them with their values."""
        if is_open and not self._more.children:
            rows = [FieldRow(names, {}) for names in MORE]
            self._adopt(rows)
            self._more.mount(*rows)
            self.call_after_refresh(self._keep, [name for row in rows for name in row.names])
        is_open = is_open or not self._fold.display
        self._more.display = is_open
        self._fold.show_open(is_open)
        self.post_message(self.Unfolded())

    def told(self, command: Command) -> Command:
        """Return the command with its present name: `more fields` becomes `fewer fields`."""
        return replace(command, title="fewer") if command == MORE_FIELDS and self.is_open else command

    def draft(self) -> dict[str, str]:
        fields = self._fields.items()
        flags = {name: YES if field.value else "" for name, field in fields if isinstance(field, FlagField)}
        return drafts.of_form({name: flags.get(name, str(field.value)) for name, field in fields})

    def put(self, draft: Draft) -> None:
        """Set the texts without sending messages."""
        self.unfold(not is_folded(draft))
        draft = {drafts.FURTHER: drafts.further_text(draft), **draft}
        with self.prevent(Input.Changed, FlagField.Changed):
            for name, field in self._fields.items():
                text = draft.get(name, "")
                if isinstance(field, FlagField):
                    field.value = text == YES
                else:
                    field.value = text

    def go_to(self, name: str) -> None:
        """Give that field the focus at once: keys that were typed meanwhile come next."""
        if any(name in row for row in MORE):
            self.unfold()
        field = self._fields[name]
        self.screen.set_focus(field, scroll_visible=False)
        self.call_after_refresh(field.scroll_visible, animate=False)  # where it is, the layout says

    def set_known(self, name: str, words: str) -> None:
        self._rows[name].set_known(name, words)

    def set_wrong(self, found: Mapping[str, str], typed_in: str | None = None) -> None:
        """Show errors in one field, or in all for None, and remove those that have been corrected."""
        for name, row in self._rows.items():
            if typed_in is None or name == typed_in or name not in found:
                row.set_wrong(name, found.get(name, ""))

    def set_changed(self, names: Iterable[str]) -> None:
        changed = frozenset(map(field_name, names))
        for row in self._rows.values():
            row.set_changed(changed)

    def keep_as_is(self, reasons: Mapping[str, str]) -> None:
        self._kept = dict(reasons)
        self._keep(self._fields)

    def show_only(self, names: Iterable[str]) -> None:
        """Hide all fields except these, including the folded ones."""
        self._fold.display = False
        self.unfold()
        for row in self._rows.values():
            row.show_only(frozenset(names))

    def _keep(self, names: Iterable[str]) -> None:
        for name in [each for each in names if each in self._kept]:
            self._fields[name].disabled = True
            self.set_known(name, self._kept[name])
