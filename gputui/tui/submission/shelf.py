"""What the form can be filled from: earlier submissions, templates, the user's own editor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from gputui.domain.errors import GputuiError
from gputui.domain.units import listed
from gputui.request.draft import Draft
from gputui.request.editor import Editor
from gputui.tui.desk import Desk
from gputui.tui.screens.choose import SAVE, Choose
from gputui.tui.screens.prompt import Prompt
from gputui.tui.submission import templates
from gputui.tui.submission.history import Past, lines_of, past

if TYPE_CHECKING:
    from gputui.tui.screens.submit import Submit

_HEAD = "This job fills in the form when you save and leave; nothing is written before you say so there."


class Shelf:
    """Fills one form."""

    def __init__(self, screen: Submit, desk: Desk) -> None:
        self._screen = screen
        self._desk = desk
        self._editor = Editor(_HEAD, self._suspended)
        self._place = -1
        """Which of the earlier submissions is shown; -1: what was typed."""
        self._typed: Draft = {}

    def step(self, step: int) -> None:
        """Show the one before, or the one after; after the latest comes what was typed."""
        entries = past(self._desk.remembered)
        place = max(-1, min(len(entries) - 1, self._place + step))
        if place == self._place:
            self._screen.say("there is none before" if step > 0 else "these are the latest")
            return
        if self._place < 0:
            self._typed = self._screen.draft()
        self._place = place
        if place < 0:
            self._screen.fill(self._typed, is_clean=False)
        else:
            self._recall(entries[place], f"{place + 1} of {len(entries)} submissions. ")

    def choose_recent(self) -> None:
        """Ask which."""
        entries = past(self._desk.remembered)

        def chosen(place: int | None) -> None:
            if place is not None:
                self._recall(entries[place], "")

        lines = lines_of([entry.draft for entry in entries])
        self._screen.app.push_screen(Choose("Last submissions", lines, none="Nothing was submitted here yet."), chosen)

    def _recall(self, entry: Past, said: str) -> None:
        env = f"Values of {listed(entry.env)} are not kept: type them again." if entry.env else ""
        self._screen.fill(entry.draft, said + env)

    def choose_template(self) -> None:
        """Have them listed, and ask which."""
        directory = self._desk.forms.templates
        if directory is None:
            self._screen.say("there are no templates here")
            return
        self._in_worker(lambda: self._list(directory))

    def _list(self, directory: Path) -> Callable[[], None]:
        names = templates.names(directory)
        return lambda: self._ask(directory, names)

    def _ask(self, directory: Path, names: tuple[str, ...]) -> None:
        def chosen(place: int | None) -> None:
            if place == SAVE:
                self._save(directory)
            elif place is not None:
                name = names[place]
                self._in_worker(lambda: self._load(directory, name))

        none = f"There are none yet: they are job files in {directory}."
        self._screen.app.push_screen(Choose("Templates", names, none=none, saves="save the form as a template"), chosen)

    def _load(self, directory: Path, name: str) -> Callable[[], None]:
        draft = templates.load(directory, name, self._screen.submitter)
        return lambda: self._screen.fill(draft, f"From the template {name}.")

    def _save(self, directory: Path) -> None:
        draft = self._screen.draft()

        def named(name: str | None) -> None:
            if name:
                self._in_worker(lambda: self._write(directory, name, draft))

        detail = "Values of variables that look like secrets are not written."
        self._screen.app.push_screen(Prompt("Save the form as a template", "Name", detail), named)

    def _write(self, directory: Path, name: str, draft: Draft) -> Callable[[], None]:
        path = templates.save(directory, name, draft)
        return lambda: self._screen.say(f"Saved as {path}.")

    def _in_worker(self, work: Callable[[], Callable[[], None]]) -> None:
        """Do what touches the disk elsewhere, and what follows from it here."""

        def run() -> None:
            try:
                done = work()
            except GputuiError as error:
                told = str(error)
                done = lambda: self._screen.say(told, is_bad=True)  # noqa: E731
            self._screen.app.call_from_thread(done)

        self._screen.run_worker(run, thread=True, group="shelf")

    @contextmanager
    def _suspended(self) -> Iterator[None]:
        try:
            with self._screen.app.suspend():
                yield
        except SuspendNotSupported as error:
            raise GputuiError("no editor can be opened on this screen", where="EDITOR") from error

    def edit(self) -> None:
        """Have the form's job edited, and hold what comes back."""
        screen = self._screen
        try:
            edited = self._editor.edit(screen.draft(), screen.submitter)
        except (GputuiError, OSError) as error:
            screen.say(str(error), is_bad=True)
            return
        screen.app.refresh(layout=True)
        if edited is not None:
            screen.fill(edited, is_clean=False)
