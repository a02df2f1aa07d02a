"""Saves a whole log to a file, byte for byte, in the background."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from textual.message import Message

from gputui.config.options import present_directory, typed_path
from gputui.domain.errors import InputError
from gputui.domain.job_spec import JobId
from gputui.domain.server_ids import shown_id
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.latest_worker import IsWanted, LatestWorker
from gputui.tui.log.follower import LogFollower
from gputui.tui.progress import LongTask, TaskCancelledError, TaskStarted
from gputui.tui.widgets.log_view import LogView


def suggested_name(job_id: JobId, attempt: int | None) -> str:
    """Return the default file name."""
    name = shown_id(job_id).replace(":", "-")
    return f"job-{name}.log" if attempt is None else f"job-{name}-attempt-{attempt}.log"


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
    stream = follower.opener.open(follower.job_id, follower.attempt, tail=None, follow=False)
    try:
        count = _write(aside, stream, is_wanted, step)
        if overwrite:
            aside.replace(path)
        else:
            os.link(aside, path)  # fails if the name exists by now
        return count
    finally:
        stream.close()
        aside.unlink(missing_ok=True)


def _write(path: Path, lines: Iterable[bytes], is_wanted: Callable[[], bool], step: Callable[[int], object]) -> int:
    count = 0
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
            if count % 1000 == 0:
                step(count)
                if not is_wanted():
                    raise InterruptedError(4, "the console was closed")
    return count


class LogSaved(Message, bubble=False):
    """Message that a log was saved, or could not be."""

    def __init__(self, words: str, *, is_done: bool, exists: Path | None = None) -> None:
        super().__init__()
        self.words = words
        self.is_done = is_done
        self.exists = exists
        """Path of an existing file that was not overwritten."""


class LogSaver:
    """Asks where to save a pane's log, saves it in a thread, and asks before a file is overwritten."""

    def __init__(self, pane: LogView) -> None:
        self._pane = pane
        self._worker = LatestWorker(pane.post_message, lambda error: LogSaved(str(error), is_done=False))
        self._saving: LogFollower | None = None
        self._task = LongTask("", "lines")

    def close(self) -> None:
        """Stop saving."""
        self._worker.close()
        self._task.end()  # a task that never began does not end by itself

    def ask(self) -> None:
        """Ask for a file name, and save the whole log there."""
        follower = self._pane.follower
        if follower is None:
            return
        from gputui.tui.screens.questions import Prompt

        suggested = suggested_name(follower.job_id, follower.attempt)

        def answered(typed: str | None) -> None:
            if typed is None:
                return
            try:
                self._save(follower, typed_path(typed or suggested, "file"), overwrite=False)
            except InputError as error:
                self._pane.app.notify(str(error), severity="error")

        place = plain(str(present_directory() or "a directory that has been deleted"), 200)
        detail = f"As {suggested} unless you name another file, in {place}"
        self._pane.app.push_screen(Prompt("Save the whole log", suggested, detail), answered)

    def _save(self, follower: LogFollower, path: Path, *, overwrite: bool) -> None:
        saving = LongTask(f"Saving {path.name}", "lines")

        def work(is_wanted: IsWanted) -> Message:
            saving.begin()
            try:
                count = save_log(follower, path, overwrite=overwrite, is_wanted=is_wanted, step=saving.step)
            except FileExistsError:
                return LogSaved("", is_done=False, exists=path)
            except TaskCancelledError:
                return LogSaved("Cancelled; no file was written.", is_done=False)
            finally:
                saving.end()
            return LogSaved(f"Saved {plural(count, 'line')} to {path}", is_done=True)

        self._saving = follower
        self._task.end()
        self._task = saving
        self._worker.ask(work)
        self._pane.post_message(TaskStarted(saving))

    def report(self, message: LogSaved) -> None:
        """Notify of the result; ask before a file is overwritten."""
        notify = self._pane.app.notify
        if message.exists is not None:
            self._ask_to_overwrite(self._saving, message.exists)
        elif message.is_done:
            notify(message.words)
        else:
            notify(message.words, title="Not saved", severity="error")

    def _ask_to_overwrite(self, follower: LogFollower | None, path: Path) -> None:
        from gputui.tui.screens.questions import Confirm

        def answered(yes: bool | None) -> None:
            if yes and follower is not None:
                self._save(follower, path, overwrite=True)

        self._pane.app.push_screen(Confirm("Overwrite the file?", plain(str(path), 200)), answered)
