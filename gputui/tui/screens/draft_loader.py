"""Loads drafts into the job form: earlier submissions, templates, and the user's own editor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from textual.app import App, SuspendNotSupported

from gputui.domain.errors import GputuiError
from gputui.domain.units import listed
from gputui.request.draft import Draft
from gputui.request.editor import Editor
from gputui.request.submitter import Submitter
from gputui.tui.screens.questions import SAVE, Choose, Prompt
from gputui.tui.services import Services
from gputui.tui.submission.drafts import (
    RecentSubmission,
    describe_drafts,
    load_template,
    recent_submissions,
    save_template,
    template_names,
)
from gputui.tui.suspend import loan_of

_HEAD = "This job fills in the form when you save and leave; nothing is written before you say so there."


class DraftForm(Protocol):
    """Form into which drafts are loaded."""

    @property
    def app(self) -> App[object]:
        """The app that shows the form."""

    @property
    def submitter(self) -> Submitter:
        """User and directory for reading job files."""

    def draft(self) -> dict[str, str]:
        """Return the texts of the fields."""

    def fill(self, draft: Draft, said: str = "", *, is_clean: bool = True) -> None:
        """Set another draft; `is_clean`: closing the form does not lose it."""

    def say(self, words: str, *, is_bad: bool = False) -> None:
        """Show a sentence below the fields until the next key."""

    def run_worker(self, work: Callable[[], None], *, group: str, thread: bool) -> object:
        """Run a function on a thread."""


class DraftLoader:
    """Fills a form from stored drafts."""

    def __init__(self, screen: DraftForm, services: Services) -> None:
        self._screen = screen
        self._services = services
        self._editor = Editor(_HEAD)
        self._is_editing = False
        self._place = -1
        """Index of the displayed earlier submission; -1: the user's own input."""
        self._typed: Draft = {}

    def step(self, step: int) -> None:
        """Show the previous or next submission; after the latest comes the user's own input."""
        entries = recent_submissions(self._services.preferences)
        place = max(-1, min(len(entries) - 1, self._place + step))
        if place == self._place:
            self._screen.say("no earlier submission" if step > 0 else "these are the latest")
            return
        if self._place < 0:
            self._typed = self._screen.draft()
        self._place = place
        if place < 0:
            self._screen.fill(self._typed, is_clean=False)
        else:
            self._recall(entries[place], f"{place + 1} of {len(entries)} submissions. ")

    def choose_recent(self) -> None:
        """Ask which of the last submissions to fill in."""
        entries = recent_submissions(self._services.preferences)

        def chosen(place: int | None) -> None:
            if place is not None:
                self._recall(entries[place], "")

        lines = describe_drafts([entry.draft for entry in entries])
        self._screen.app.push_screen(Choose("Last submissions", lines, none="Nothing was submitted here yet."), chosen)

    def _recall(self, entry: RecentSubmission, said: str) -> None:
        env = f"Values of {listed(entry.env)} are not kept: type them again." if entry.env else ""
        self._screen.fill(entry.draft, said + env)

    def choose_template(self) -> None:
        """List the templates, and ask which one to use."""
        directory = self._services.forms.templates
        if directory is None:
            self._screen.say("there are no templates here")
            return
        self._in_worker(lambda: self._list(directory))

    def _list(self, directory: Path) -> Callable[[], None]:
        found = template_names(directory)
        return lambda: self._ask(directory, found)

    def _ask(self, directory: Path, template_names: tuple[str, ...]) -> None:
        def chosen(place: int | None) -> None:
            if place == SAVE:
                self._save(directory)
            elif place is not None:
                name = template_names[place]
                self._in_worker(lambda: self._load(directory, name))

        none = f"No templates yet: they are job files in {directory}."
        self._screen.app.push_screen(
            Choose("Templates", template_names, none=none, saves="save the form as a template"), chosen
        )

    def _load(self, directory: Path, name: str) -> Callable[[], None]:
        draft = load_template(directory, name, self._screen.submitter)
        return lambda: self._screen.fill(draft, f"From the template {name}.")

    def _save(self, directory: Path) -> None:
        draft = self._screen.draft()

        def named(name: str | None) -> None:
            if name:
                self._in_worker(lambda: self._write(directory, name, draft))

        detail = "Values of variables that look like secrets are not written."
        self._screen.app.push_screen(Prompt("Save the form as a template", "Name", detail), named)

    def _write(self, directory: Path, name: str, draft: Draft) -> Callable[[], None]:
        path = save_template(directory, name, draft)
        return lambda: self._screen.say(f"Saved as {path}.")

    def _in_worker(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run disk access on a worker thread, and continue with its result here."""

        def run() -> None:
            try:
                done = work()
            except GputuiError as error:
                told = str(error)
                done = lambda: self._screen.say(told, is_bad=True)  # noqa: E731
            self._screen.app.call_from_thread(done)

        self._screen.run_worker(run, thread=True, group="shelf")

    async def edit(self) -> None:
        """Edit the form's job in the editor, and load the result. The console handles signals meanwhile."""
        if self._is_editing:
            return
        self._is_editing = True
        screen = self._screen
        try:
            edited = await self._edited()
        except (GputuiError, OSError) as error:
            screen.say(str(error), is_bad=True)
        else:
            if edited is not None:
                screen.fill(edited, is_clean=False)
        finally:
            self._is_editing = False

    async def _edited(self) -> dict[str, str] | None:
        """Return the form's job as saved; None if nothing was changed. Raises GputuiError or OSError."""
        screen, app = self._screen, self._screen.app
        if (terminal := loan_of(app)) is None:
            raise GputuiError("no editor can be opened here", where="EDITOR")
        words = self._editor.begin(screen.draft(), screen.submitter)
        try:
            code = await terminal.run(words, "the form continues when the editor closes")
        except SuspendNotSupported as error:
            raise GputuiError("no editor can be opened on this screen", where="EDITOR") from error
        except OSError as error:
            raise self._editor.cannot_run(words, error) from error
        return self._editor.end(words, code, screen.submitter)
