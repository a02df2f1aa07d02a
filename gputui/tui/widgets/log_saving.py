"""A log that can be saved to a file, while the console goes on."""

from __future__ import annotations

from pathlib import Path

from textual.message import Message

from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.log.follower import LogFollower
from gputui.tui.newest import IsWanted, Newest
from gputui.tui.widgets.log_view import LogView
from gputui.tui.work import GivenUpError, Work, WorkBegun


class LogSaved(Message, bubble=False):
    """How saving went."""

    def __init__(self, words: str, *, is_done: bool, exists: Path | None = None) -> None:
        super().__init__()
        self.words = words
        self.is_done = is_done
        self.exists = exists
        """The file is there already, and was left alone."""


class SavingView(LogView):
    """Asks where to save, and before anything is overwritten."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id)
        self._saves = Newest(self.post_message, lambda error: LogSaved(str(error), is_done=False))
        self._saving: LogFollower | None = None
        self._work = Work("", "lines")

    def on_unmount(self) -> None:
        """Leave no thread behind."""
        super().on_unmount()
        self._saves.close()
        self._work.end()  # what never had its turn does not end by itself

    def action_save_log(self) -> None:
        """Ask where, and save the whole log there."""
        follower = self.follower
        if follower is None:
            return
        from gputui.tui.log.save import suggested_name
        from gputui.tui.screens.prompt import Prompt

        suggested = suggested_name(follower.job_id, follower.attempt)

        def answered(typed: str | None) -> None:
            if typed is not None:
                self._save(follower, Path(typed or suggested).expanduser().absolute(), overwrite=False)

        detail = f"As {suggested} unless you name another file, in {plain(str(Path.cwd()), 200)}"
        self.app.push_screen(Prompt("Save the whole log", suggested, detail), answered)

    def _save(self, follower: LogFollower, path: Path, *, overwrite: bool) -> None:
        saving = Work(f"Saving {path.name}", "lines")

        def work(is_wanted: IsWanted) -> Message:
            from gputui.tui.log.save import save_log

            saving.begin()
            try:
                count = save_log(follower, path, overwrite=overwrite, is_wanted=is_wanted, step=saving.step)
            except FileExistsError:
                return LogSaved("", is_done=False, exists=path)
            except GivenUpError:
                return LogSaved("Given up: there is no such file.", is_done=False)
            finally:
                saving.end()
            return LogSaved(f"Saved {plural(count, 'line')} to {path}", is_done=True)

        self._saving = follower
        self._work.end()
        self._work = saving
        self._saves.ask(work)
        self.post_message(WorkBegun(saving))

    def on_log_saved(self, message: LogSaved) -> None:
        """Say how it went; ask before a file is overwritten."""
        if message.exists is not None:
            self._ask_to_overwrite(self._saving, message.exists)
        elif message.is_done:
            self.app.notify(plain(message.words, 300), markup=False, timeout=5)
        else:
            self.app.notify(plain(message.words, 400), title="Not saved", severity="error", markup=False, timeout=10)

    def _ask_to_overwrite(self, follower: LogFollower | None, path: Path) -> None:
        from gputui.tui.screens.confirm import Confirm

        def answered(yes: bool | None) -> None:
            if yes and follower is not None:
                self._save(follower, path, overwrite=True)

        self.app.push_screen(Confirm("Overwrite the file?", plain(str(path), 200)), answered)
