"""A form that a whole command line can be pasted into."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from textual import events, on

from gputui.domain.errors import InputError
from gputui.request import line
from gputui.request.draft import Draft
from gputui.tui.screens.dialog import Dialog
from gputui.tui.submission.fields import TextField
from gputui.tui.submission.form import Origin, left_out

EMPTY: Draft = MappingProxyType({})


class TakesLines(Dialog[None]):
    """Takes a `docker run` line apart into its fields."""

    LEAVES: ClassVar = "give_up"
    _origin: Origin
    _hidden: dict[str, str]
    """Values of the environment that are not shown."""
    _beneath: Draft = EMPTY
    """What stays as it is where a line says nothing of it."""

    @abstractmethod
    def fill(self, draft: Draft, said: str = "", *, judge: bool = True, is_clean: bool = True) -> None:
        """Hold this instead."""

    @abstractmethod
    def say(self, words: str, *, is_bad: bool = False) -> None:
        """Tell something below the fields."""

    @on(TextField.LinePasted)
    def _line_pasted(self, event: TextField.LinePasted) -> None:
        self.fill_line(event.text)

    def on_paste(self, event: events.Paste) -> None:
        """A line pasted while no text field has the focus."""
        if line.is_line(event.text):
            event.stop()
            self.fill_line(event.text)

    def fill_line(self, text: str) -> None:
        """Fill it in from a command line, and name what of that a job cannot have."""
        try:
            read = line.read(text, Path(self._origin.directory), self._origin.environ)
        except InputError as error:
            self.say(f"Not filled in: {error}", is_bad=True)
            return
        if not self._beneath:
            self._hidden = {}
        self.fill({**self._beneath, **read.draft}, left_out(read.dropped), is_clean=False)
