"""A draft in the user's own editor, as a job file."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gputui.domain.errors import GputuiError
from gputui.request import job_file
from gputui.request.draft import Draft
from gputui.request.submitter import Submitter

_USUAL = ("editor", "nano", "vim", "vi")
_KEYS = "# Keys are the options of `gputui submit`, with underscores.\n"


class Editor:
    """Edits drafts; keeps a file with mistakes, so that the next try continues with it."""

    def __init__(self, head: str) -> None:
        self._head = "".join(f"# {line}\n" for line in head.splitlines()) + _KEYS
        self._path: Path | None = None
        self._before: bytes | None = None
        """Content of the file as the editor got it; None if it had mistakes: then nothing counts as unchanged."""

    def edit(self, draft: Draft, by: Submitter) -> dict[str, str] | None:
        """Return the draft as saved; None if nothing was changed. Raises GputuiError, and keeps the file then.

        Blocks until the editor ends.
        """
        words = self.begin(draft, by)
        try:
            with _deaf_to_interrupts():
                code = subprocess.run(words, check=False).returncode
        except OSError as error:
            raise self.cannot_run(words, error) from error
        return self.end(words, code, by)

    def begin(self, draft: Draft, by: Submitter) -> tuple[str, ...]:
        """Write the draft to a file; return the command that edits it. Raises GputuiError if there is no editor."""
        words = command(by.environ)
        if self._path is None or not self._path.exists():
            directory = Path(tempfile.mkdtemp(prefix="gputui-"))  # only readable by its owner
            self._path = directory / "job.toml"
            self._path.write_text(self._head + job_file.draft_as_toml(draft, with_others=True), encoding="utf-8")
            self._before = self._path.read_bytes()
        return *words, os.fspath(self._path)

    def end(self, words: Sequence[str], code: int, by: Submitter) -> dict[str, str] | None:
        """Return the draft as that command saved it, given its exit code; like `edit`."""
        path, before = Path(words[-1]), self._before
        if code:
            raise GputuiError(f"ended with {code}: nothing was changed", where=words[0], hint=f"the file is {path}")
        if path.read_bytes() == before:
            self._forget(path)
            return None
        self._before = None
        edited = job_file.read_draft(path, by)
        self._forget(path)
        return edited

    @staticmethod
    def cannot_run(words: Sequence[str], error: OSError) -> GputuiError:
        """Return the error of an editor that could not be started."""
        return GputuiError(f"cannot be run: {error.strerror}", where=words[0], hint="set EDITOR")

    def _forget(self, path: Path) -> None:
        self._path = None
        shutil.rmtree(path.parent, ignore_errors=True)


def command(environ: Mapping[str, str]) -> list[str]:
    """Return the editor of the environment, or an installed one; raises GputuiError."""
    for name in ("VISUAL", "EDITOR"):
        if words := _words(environ.get(name, ""), name):
            return words
    found = next((path for name in _USUAL if (path := shutil.which(name))), None)
    if found is None:
        raise GputuiError("there is no editor", where="EDITOR", hint="set EDITOR in your environment")
    return [found]


def _words(text: str, name: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise GputuiError("a quotation is not closed", where=name) from error


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, which the terminal also sends to the editor. A handler is not inherited."""

    def nothing(number: int, frame: FrameType | None) -> None:
        del number, frame

    before = signal.signal(signal.SIGINT, nothing)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
