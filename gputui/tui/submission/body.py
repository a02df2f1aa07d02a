"""Fields of the submit form, the rare ones folded away, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from gputui.request import further_options
from gputui.request.draft import Draft
from gputui.tui.commands.command import Command
from gputui.tui.commands.jobs import MORE_FIELDS
from gputui.tui.submission.fields import Field, FieldRow, FlagField, Fold, put_in, text_in
from gputui.tui.submission.form import MORE, USUAL, is_folded, place_of

AROUND = 7
"""Rows of the form that are no fields."""


class FormBody(VerticalScroll, can_focus=False):
    """Rows of fields, as many as there is room for."""

    DEFAULT_CSS = """
    FormBody { height: auto; scrollbar-size-vertical: 1; }
    FormBody #more { height: auto; }
    """

    class Unfolded(Message):
        """The rare fields are shown now, or are no more."""

    def __init__(self, suggesters: Mapping[str, Suggester]) -> None:
        super().__init__()
        self._fields: dict[str, Field] = {}
        self._rows: dict[str, FieldRow] = {}
        self._kept: dict[str, str] = {}
        """Reasons why fields cannot be changed; the rare fields are made later."""
        self._usual = [FieldRow(names, suggesters) for names in USUAL]
        self._fold = Fold(len([name for row in MORE for name in row]))
        self._more = Vertical(id="more")
        self._adopt(self._usual)

    def compose(self) -> ComposeResult:
        """The usual fields; the others are made when they are first wanted."""
        yield from self._usual
        yield self._fold
        yield self._more

    def _adopt(self, rows: Iterable[FieldRow]) -> None:
        for row in rows:
            self._fields |= row.fields
            self._rows |= dict.fromkeys(row.names, row)

    def on_mount(self) -> None:
        """Leave room for what is above and below."""
        self.keep_within(self.app.size.height)

    def keep_within(self, rows: int) -> None:
        """Take no more of so many rows than leaves room for what is above and below."""
        self.styles.max_height = max(3, rows - AROUND)

    @property
    def is_open(self) -> bool:
        """Return whether the rare fields are shown."""
        return bool(self._more.children) and self._more.display

    def unfold(self, is_open: bool = True) -> None:
        """Show the rare fields, or fold them away with what they hold."""
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
        """The command as it is called now: what shows more fields hides them next."""
        return replace(command, title="fewer") if command == MORE_FIELDS and self.is_open else command

    def draft(self) -> dict[str, str]:
        """Return the texts of the fields."""
        return further_options.of_form({name: text_in(field) for name, field in self._fields.items()})

    def put(self, draft: Draft) -> None:
        """Hold this instead, and let nobody hear of it."""
        self.unfold(not is_folded(draft))
        draft = {further_options.FIELD: further_options.folded(draft), **draft}
        with self.prevent(Input.Changed, FlagField.Changed):
            for name, field in self._fields.items():
                put_in(field, draft.get(name, ""))

    def go_to(self, name: str) -> None:
        """Give that field the focus."""
        if any(name in row for row in MORE):
            self.unfold()
        self.call_after_refresh(self._fields[name].focus)

    def set_known(self, name: str, words: str) -> None:
        """Say what is worth knowing of a field."""
        self._rows[name].set_known(name, words)

    def set_wrong(self, found: Mapping[str, str], typed_in: str | None = None) -> None:
        """Say what is wrong, in that field alone or in each for None, and no more what has been put right."""
        for name, row in self._rows.items():
            if typed_in is None or name == typed_in or name not in found:
                row.set_wrong(name, found.get(name, ""))

    def set_changed(self, names: Iterable[str]) -> None:
        """Mark these as changed, and no others."""
        changed = frozenset(map(place_of, names))
        for row in self._rows.values():
            row.set_changed(changed)

    def keep_as_is(self, reasons: Mapping[str, str]) -> None:
        """Disable these fields, and say why."""
        self._kept = dict(reasons)
        self._keep(self._fields)

    def show_only(self, names: Iterable[str]) -> None:
        """Hide all fields but these, the rare ones too."""
        self._fold.display = False
        self.unfold()
        for row in self._rows.values():
            row.show_only(frozenset(names))

    def _keep(self, names: Iterable[str]) -> None:
        for name in [each for each in names if each in self._kept]:
            self._fields[name].disabled = True
            self.set_known(name, self._kept[name])
