"""Interactive log: searched, filtered, copied and saved."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from gputui.config import present_directory, typed_path
from gputui.domain.errors import InputError
from gputui.domain.job_spec import shown_id
from gputui.domain.text import plain, plural
from gputui.ports.backend import LogRequest
from gputui.tui.commands import GIVE_UP, bindings
from gputui.tui.keymap import keymap_of
from gputui.tui.progress import IsWanted, LatestWorker, LongTask, TaskCancelledError, TaskStarted
from gputui.tui.screens.dialogs import Confirm, Leavable, Prompt, ask
from gputui.tui.terminal import copy
from gputui.tui.widgets.line_table import RIGHT, MenuAsked
from gputui.tui.widgets.log_follower import LogFollower
from gputui.tui.widgets.log_model import copied_text
from gputui.tui.widgets.log_pattern import pattern_of
from gputui.tui.widgets.log_view import LogRead, LogView
from gputui.tui.widgets.status_bars import Hints


def save_log(
    follower: LogFollower,
    path: Path,
    *,
    overwrite: bool,
    is_wanted: Callable[[], bool],
    step: Callable[[int], object] = lambda count: None,
) -> int:
    """Write the whole output so far and return the number of lines. Blocks.

    Raises OSError and GputuiError; FileExistsError if the file exists and `overwrite` is false. `step` is called with
    the number of lines so far; if it raises, no file is left.
    """
    if not overwrite and path.exists():
        raise FileExistsError(17, "the file already exists", str(path))
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    stream = follower.opener.log(follower.job_id, LogRequest(follower.attempt))
    count = 0
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            for line in stream:
                file.write(line + b"\n")
                count += 1
                if count % 1000 == 0:
                    step(count)
                    if not is_wanted():
                        raise InterruptedError(4, "the console was closed")
        if overwrite:
            aside.replace(path)
        else:
            os.link(aside, path)  # fails if the name exists by now
        return count
    finally:
        stream.close()
        aside.unlink(missing_ok=True)


class LogSaver:
    """Asks where to save a pane's log, saves it in a thread, and asks before a file is overwritten."""

    def __init__(self, pane: LogView) -> None:
        self._pane = pane
        self._worker = LatestWorker(pane.post_message, lambda error: self._failed(str(error)))
        self._task = LongTask("", "lines")

    def close(self) -> None:
        self._worker.close()
        self._task.end()  # a task that never began does not end by itself

    def ask(self) -> None:
        follower, app = self._pane.follower, self._pane.app
        if follower is None:
            return
        name = shown_id(follower.job_id).replace(":", "-")
        suggested = f"job-{name}.log" if follower.attempt is None else f"job-{name}-attempt-{follower.attempt}.log"

        def answered(typed: str) -> None:
            try:
                self._save(follower, typed_path(typed or suggested, "file"), overwrite=False)
            except InputError as error:
                app.notify(str(error), severity="error")

        place = plain(str(present_directory() or "a directory that has been deleted"), 200)
        detail = f"As {suggested} unless you name another file, in {place}"
        ask(app, Prompt("Save the whole log", suggested, detail), answered)

    def _save(self, follower: LogFollower, path: Path, *, overwrite: bool) -> None:
        app, saving = self._pane.app, LongTask(f"Saving {path.name}", "lines")

        def work(is_wanted: IsWanted) -> LogRead:
            saving.begin()
            try:
                count = save_log(follower, path, overwrite=overwrite, is_wanted=is_wanted, step=saving.step)
            except FileExistsError:
                return LogRead(lambda: self._ask_to_overwrite(follower, path))
            except TaskCancelledError:
                return self._failed("Cancelled; no file was written.")
            finally:
                saving.end()
            return LogRead(lambda: app.notify(f"Saved {plural(count, 'line')} to {path}"))

        self._task.end()
        self._task = saving
        self._worker.ask(work)
        self._pane.post_message(TaskStarted(saving))

    def _failed(self, words: str) -> LogRead:
        return LogRead(lambda: self._pane.app.notify(words, title="Not saved", severity="error"))

    def _ask_to_overwrite(self, follower: LogFollower, path: Path) -> None:
        question = Confirm("Overwrite the file?", plain(str(path), 200))
        ask(self._pane.app, question, lambda _: self._save(follower, path, overwrite=True))


_LONGEST = 500
_MOST = 50
HISTORY: dict[str, list[str]] = {}
"""Earlier patterns, by prompt, for the lifetime of the console."""


class LogPrompt(Leavable[str | None], ModalScreen[str | None]):
    """Prompt that returns a regular expression: "" for none, None after Escape."""

    BINDINGS: ClassVar = [*bindings((GIVE_UP,)), ("up", "recall(-1)"), ("down", "recall(1)")]
    LEAVES: ClassVar = "give_up"
    DEFAULT_CSS = """
    LogPrompt {
        align: left bottom; background: $background 0%;
        #asked { height: 1; background: $surface; dock: bottom; }
        #sign { width: auto; padding: 0 0 0 1; color: $primary; text-style: bold; }
        #said { width: auto; padding: 0 1; color: $foreground 75%; }
        Input { border: none; height: 1; padding: 0 1; background: $surface; width: 1fr; }
    }
    """

    def __init__(self, word: str, before: str, typed: Callable[[str], None]) -> None:
        super().__init__()
        self._word = word
        self._before = before
        self._typed = typed
        self._said = HISTORY.setdefault(word, [])
        self._at = len(self._said)

    def compose(self) -> ComposeResult:
        with Horizontal(id="asked"):
            yield Static(self._word, id="sign", markup=False)
            yield Input(self._before, placeholder="regular expression", compact=True, max_length=_LONGEST)
            yield Hints(self._how, id="said")

    @property
    def _how(self) -> str:
        return f"Enter ok  {keymap_of(self).key('give_up')} cancel"

    @on(Input.Changed)
    def _show(self, event: Input.Changed) -> None:
        text = plain(event.value, _LONGEST)
        pattern = pattern_of(text)
        wrong = f"as plain text: {plain(pattern.fault, 50)}" if pattern and pattern.fault else self._how
        self.query_one("#said", Static).update(wrong)
        self._typed(text)

    @on(Input.Submitted)
    def _done(self, event: Input.Submitted) -> None:
        text = plain(event.value, _LONGEST)
        if text and text not in self._said[-1:]:
            self._said.append(text)
            del self._said[:-_MOST]
        self.dismiss(text)

    def action_recall(self, step: int) -> None:
        self._at = max(0, min(len(self._said), self._at + step))
        field = self.query_one(Input)
        field.value = self._said[self._at] if self._at < len(self._said) else ""
        field.cursor_position = len(field.value)

    def action_give_up(self) -> None:
        self._typed(self._before)
        self.dismiss(None)


_SHORTLY = 0.05


class LogPane(LogView):
    """Log with commands; a loader reads lines that are not in memory, and a saver writes files."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._saver = LogSaver(self)
        self._waits_for_error = False
        """True while lines are still arriving in which to search for an error."""
        self._selects = False
        """True while the mouse button is pressed on a line."""

    @property
    def is_loading(self) -> bool:
        return self._waits_for_error or self.loader.is_loading_earlier

    def follow(self, follower: LogFollower, name: str) -> None:
        self._waits_for_error = False
        super().follow(follower, name)

    def on_unmount(self) -> None:
        self._saver.close()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave a key to others if it has nothing to do here."""
        search, reading = self.reading.search, self.reading
        if action == "clear_log":
            return reading.selection.is_on or search.is_on
        if action == "found":
            return search.pattern is not None
        if action == "context":
            return search.narrowed is not None
        return super().check_action(action, parameters)

    # search

    def action_search(self) -> None:
        search, window = self.reading.search, self.reading.window
        stood = (window.top, window.part, window.follows, search.at)

        def typed(text: str) -> None:
            window.top, window.part, window.follows, search.at = stood
            self.reading.lines.drop_before_gap()
            search.look_for(pattern_of(text))
            self.loader.search(search.hits, search.pattern)
            self.search_further()

        self._ask("/", search.pattern.text if search.pattern else "", typed)

    def action_found(self, step: int) -> None:
        self.reading.search.go(step)
        self.search_further()

    def action_narrow(self) -> None:
        search = self.reading.search

        def typed(text: str) -> None:
            self.reading.lines.drop_before_gap()
            search.narrow(pattern_of(text))
            self.loader.search(self.reading.lines.filter, search.narrowed)
            self.search_further()

        self._ask("&", search.narrowed.text if search.narrowed else "", typed)

    def action_context(self, step: int) -> None:
        self.reading.search.widen(step)
        self.repaint()

    def action_error(self, step: int) -> None:
        """Go to the first error of the whole log, as far as it is kept; then to the next.

        It is searched once the lines have arrived, if the same log is still shown then.
        """
        if self.is_arriving:
            follower, self._waits_for_error = self.follower, True

            def again() -> None:
                if self.follower is follower:
                    self._waits_for_error = False
                    self.action_error(step)

            self.set_timer(_SHORTLY, again)
        elif not self.reading.is_whole and not self.reading.was_extended:
            self.loader.load_earlier(self.reading.lines.room, lambda: self.reading.search.go_to_error(step))
        else:
            self.reading.search.go_to_error(step)
            self.search_further()

    def action_clear_log(self) -> None:
        """End the selection, else the search, else the filter."""
        if self.reading.selection.is_on:
            self.reading.selection.drop()
        else:
            self.reading.search.clear()
        self.reading.painter.forget()
        self.repaint()

    def _ask(self, word: str, before: str, typed: Callable[[str], None]) -> None:
        def shown(text: str) -> None:
            typed(text)
            self.reading.painter.forget()
            self.repaint()

        self.app.push_screen(LogPrompt(word, before, shown))

    # appearance

    def action_toggle_wrap(self) -> None:
        painter = self.reading.painter
        painter.wraps, painter.left = not painter.wraps, 0
        self.reading.window.part = 0
        self.repaint()

    def action_toggle_stamps(self) -> None:
        painter = self.reading.painter
        painter.shows_stamps = not painter.shows_stamps
        painter.forget()
        self.repaint()

    def action_save_log(self) -> None:
        self._saver.ask()

    # selection

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button == 1 and (number := self.row_at(event.y)) is not None:
            self._selects = True
            self.capture_mouse()
            self.reading.selection.begin(number)
            self.repaint()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        number = self.row_at(event.y)
        if self._selects and number is not None and number != self.reading.selection.head:
            self.reading.window.follows = False  # or lines would move away under the pointer
            self.reading.selection.extend(number)
            self.repaint()

    def on_mouse_up(self) -> None:
        if self._selects:
            self._selects = False
            self.release_mouse()

    def on_mouse_release(self) -> None:
        self._selects = False

    async def on_click(self, event: events.Click) -> None:
        if event.button == RIGHT:
            self.post_message(MenuAsked(event.screen_offset))
        if event.y == 0 and event.button == 1 and not self.was_dragged:
            await self.run_action("screen.pin_log")

    def action_pick(self) -> None:
        """Start selecting lines at the current hit, or at the first visible line; again: clear the selection."""
        reading = self.reading
        if reading.selection.is_on:
            reading.selection.drop()
        elif numbers := reading.shown_numbers():
            reading.window.follows = False
            reading.selection.begin(reading.search.at if reading.search.at in numbers else numbers[0])
        self.repaint()

    def action_copy_lines(self) -> None:
        reading = self.reading
        numbers = reading.shown_numbers()
        text, count = copied_text(reading.lines, numbers)
        if not count:
            return
        left_out = len(numbers) - count
        more = f"; {plural(left_out, 'line')} did not fit" if left_out else ""
        copy(self.app, text, plural(count, "line") + more)
        reading.selection.drop()
        self.repaint()
