"""The line in which a filter is typed, and what is wrong with it."""

from __future__ import annotations

import re
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.suggester import Suggester
from textual.widgets import Input, Static

from gputui.domain.errors import InputError
from gputui.domain.filter import FIELDS
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.queue.filter_history import FilterHistory

_LAST_WORD = re.compile(r"(?:^|\s)[-!]?([a-z]+)$")


class FieldNames(Suggester):
    """Completes the name of a field: Right takes it."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        """What is typed, with the field it begins whole."""
        match = _LAST_WORD.search(value)
        if match is None or len(match[1]) < 2:
            return None
        name = next((field for field in FIELDS if field.startswith(match[1])), None)
        if name is None:
            return None
        operator = re.sub(r"^[a-z]+", "", FIELDS[name].example)[:1]
        return value[: match.start(1)] + name + operator


class FilterLine(Vertical):
    """Not there while there is nothing in it."""

    DEFAULT_CSS = """
    FilterLine { height: auto; display: none; background: $surface; }
    FilterLine.-open { display: block; }
    FilterLine Horizontal { height: 1; }
    FilterLine #sign { width: auto; padding: 0 0 0 1; color: $primary; text-style: bold; }
    FilterLine #said { width: auto; padding: 0 1; color: $foreground 75%; }
    FilterLine Input { height: 1; width: 1fr; border: none; padding: 0 1; background: $surface; }
    FilterLine #fault { height: 1; padding: 0 1; color: $warning; display: none; }
    FilterLine #fault.-shown { display: block; }
    """
    BINDINGS: ClassVar = []

    def __init__(self) -> None:
        super().__init__()
        self._past: list[str] = []
        self._place = 0
        self._said = ""

    def compose(self) -> ComposeResult:
        """The field, and the fault."""
        hint = "bob state:pd gpus>=4 name~bert -is:held  ↑ earlier"
        with Horizontal():
            yield Static("/", id="sign", markup=False)
            yield Input(id="filter", placeholder=hint, compact=True, suggester=FieldNames())
            yield Static("", id="said", markup=False)
        yield Static("", id="fault", markup=False)

    @property
    def is_open(self) -> bool:
        """Whether it is there."""
        return self.has_class("-open")

    @property
    def is_typed(self) -> bool:
        """Whether keys go to it."""
        return any(line.has_focus for line in self.query(Input))  # none yet while the console opens

    def open(self, history: FilterHistory) -> None:
        """Type there."""
        self._past = list(history.texts)
        self._place = len(self._past)
        self.add_class("-open")
        self.query_one(Input).focus()

    def close(self) -> None:
        """It stays while it has something in it."""
        self.set_class(bool(self.query_one(Input).value), "-open")

    def count(self, shown: int, of: int, *, is_typed: bool) -> None:
        """Say how many match, and what keys do."""
        matches = f"{shown} of {plural(of, 'job')}   " if self.query_one(Input).value else ""
        said = matches + ("Enter keep  Esc show all" if is_typed else "Esc shows all")
        if said != self._said:
            self._said = said
            self.query_one("#said", Static).update(said)

    def tell(self, fault: InputError | None) -> None:
        """Why what is typed is no filter."""
        words = ""
        if fault is not None:
            hint = f": {fault.hint}" if fault.hint else ""
            words = plain(f"! {fault.what}{hint}", 300)
        line = self.query_one("#fault", Static)
        line.update(words)
        line.set_class(bool(words), "-shown")

    def on_key(self, event: events.Key) -> None:
        """Up and down go through what was typed before."""
        if event.key in {"up", "down"} and self._past:
            event.stop()
            event.prevent_default()
            self._place = max(0, min(len(self._past), self._place + (-1 if event.key == "up" else 1)))
            field = self.query_one(Input)
            field.value = [*self._past, ""][self._place]
            field.cursor_position = len(field.value)
