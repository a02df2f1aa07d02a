"""A draft in the user's own editor, as a job file."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from gputui.domain.errors import GputuiError
from gputui.request import toml
from gputui.request.draft import Draft
from gputui.request.submitter import Submitter

_USUAL = ("editor", "nano", "vim", "vi")
_KEYS = "# Keys are the options of `gputui submit`, with underscores.\n"
Screen: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Leaves the terminal to somebody else for a while."""


class Editor:
    """Remembers a file with mistakes, so that the next try goes on with it."""

    def __init__(self, head: str, screen: Screen = nullcontext) -> None:
        self._head = "".join(f"# {line}\n" for line in head.splitlines()) + _KEYS
        self._screen = screen
        self._path: Path | None = None

    def edit(self, draft: Draft, by: Submitter) -> dict[str, str] | None:
        """The draft as it was saved; None when nothing was changed. Raises GputuiError, and keeps the file then."""
        path, before = self._begin(draft)
        self._run(path, by.environ)
        if path.read_bytes() == before:
            self._end(path)
            return None
        edited = toml.read(path, by)
        self._end(path)
        return edited

    def _begin(self, draft: Draft) -> tuple[Path, bytes | None]:
        """The file, and what was in it; nothing counts as unchanged in one that had mistakes."""
        if self._path is not None and self._path.exists():
            return self._path, None
        directory = Path(tempfile.mkdtemp(prefix="gputui-"))  # readable by its owner alone
        self._path = directory / "job.toml"
        self._path.write_text(self._head + toml.written(draft, with_others=True), encoding="utf-8")
        return self._path, self._path.read_bytes()

    def _run(self, path: Path, environ: Mapping[str, str]) -> None:
        words = command(environ)
        try:
            with self._screen(), _deaf_to_interrupts():
                code = subprocess.run([*words, os.fspath(path)], check=False).returncode
        except OSError as error:
            raise GputuiError(f"cannot be run: {error.strerror}", where=words[0], hint="set EDITOR") from error
        if code:
            raise GputuiError(f"ended with {code}: all is as it was", where=words[0], hint=f"the file is {path}")

    def _end(self, path: Path) -> None:
        self._path = None
        shutil.rmtree(path.parent, ignore_errors=True)


def command(environ: Mapping[str, str]) -> list[str]:
    """The editor that the environment names, or one that is there; raises GputuiError."""
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
    """Ctrl-C is for the editor alone, which the terminal sends it to as well. A handler is not inherited."""

    def nothing(number: int, frame: FrameType | None) -> None:
        del number, frame

    before = signal.signal(signal.SIGINT, nothing)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
