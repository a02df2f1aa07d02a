"""Input line for a filter of the queue, with its errors and its history."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct
from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.suggester import Suggester
from textual.widgets import Input, Static

from gputui.domain.errors import InputError
from gputui.domain.filter import FIELDS
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.widgets.status_bars import Hints

MOST = 50


class FilterHistory(Struct, frozen=True):
    """Earlier filters, each once, the latest last."""

    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, object]) -> FilterHistory:
        found = values.get("texts")
        texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
        return cls(tuple(texts[-MOST:]))

    def values(self) -> dict[str, object]:
        return {"texts": list(self.texts)}

    def with_one(self, text: str) -> FilterHistory:
        if not text.strip():
            return self
        return FilterHistory((*(kept for kept in self.texts if kept != text), text)[-MOST:])


_HINT = "bob state:pd gpus>=4 name~bert -is:held  ↑ earlier"
_EXAMPLES = {name: field.example for name, field in FIELDS.items()}
_LAST_WORD = re.compile(r"(?:^|\s)[-!]?([a-z]+)$")


class FieldNames(Suggester):
    """Completes names of fields; Right accepts."""

    def __init__(self, fields: Mapping[str, str] = _EXAMPLES) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._fields = fields
        """Example of each field, by name."""

    async def get_suggestion(self, value: str) -> str | None:
        match = _LAST_WORD.search(value)
        if match is None or len(match[1]) < 2:
            return None
        name = next((field for field in self._fields if field.startswith(match[1])), None)
        if name is None:
            return None
        operator = re.sub(r"^[a-z]+", "", self._fields[name])[:1]
        return value[: match.start(1)] + name + operator


class FilterLine(Vertical):
    """Input line for a filter; hidden while it is empty."""

    DEFAULT_CSS = """
    FilterLine { height: auto; display: none; background: $surface; }
    FilterLine.-open { display: block; }
    FilterLine Horizontal { height: 1; }
    FilterLine #sign { width: auto; padding: 0 0 0 1; color: $primary; text-style: bold; }
    FilterLine #matches { width: auto; padding: 0 2 0 1; color: $foreground 75%; }
    FilterLine #said { width: auto; padding: 0 1; color: $foreground 75%; }
    FilterLine Input { height: 1; width: 1fr; border: none; padding: 0 1; background: $surface; }
    FilterLine #fault { height: 1; padding: 0 1; color: $warning; display: none; }
    FilterLine #fault.-shown { display: block; }
    """
    BINDINGS: ClassVar = []

    def __init__(self, hint: str = _HINT, fields: Mapping[str, str] = _EXAMPLES, noun: str = "job") -> None:
        super().__init__()
        self._field = Input(id="filter", placeholder=hint, compact=True, suggester=FieldNames(fields))
        self._noun = noun
        self._past: list[str] = []
        self._place = 0
        self._said = ("", "")

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Static("/", id="sign", markup=False)
            yield self._field
            yield Static("", id="matches", markup=False)
            yield Hints("", id="said")
        yield Static("", id="fault", markup=False)

    @property
    def is_open(self) -> bool:
        return self.has_class("-open")

    @property
    def is_typed(self) -> bool:
        return self._field.has_focus

    def open(self, history: FilterHistory) -> None:
        self._past = list(history.texts)
        self._place = len(self._past)
        self.add_class("-open")
        self._field.focus()

    def close(self) -> None:
        """Leave the line; it stays visible while it has text."""
        self.set_class(bool(self._field.value), "-open")

    def count(self, shown: int, of: int, *, is_typed: bool) -> None:
        matches = f"{shown} of {plural(of, self._noun)}" if self._field.value else ""
        said = "Enter keep  Esc show all" if is_typed else "Esc shows all"
        if (matches, said) != self._said:
            self._said = matches, said
            line = self.query_one("#matches", Static)
            line.update(matches)
            line.display = bool(matches)
            self.query_one("#said", Static).update(said)

    def show_fault(self, fault: InputError | None) -> None:
        words = ""
        if fault is not None:
            hint = f": {fault.hint}" if fault.hint else ""
            words = plain(f"! {fault.what}{hint}", 300)
        line = self.query_one("#fault", Static)
        line.update(words)
        line.set_class(bool(words), "-shown")

    def on_key(self, event: events.Key) -> None:
        if event.key in {"up", "down"} and self._past:
            event.stop()
            event.prevent_default()
            self._place = max(0, min(len(self._past), self._place + (-1 if event.key == "up" else 1)))
            field = self._field
            field.value = [*self._past, ""][self._place]
            field.cursor_position = len(field.value)
