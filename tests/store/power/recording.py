"""Changes that a program makes below a directory, and its output, recorded in order by a preloaded library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.compiled import compiled
from tests.needs import ROOT

SOURCE = Path(__file__).parent / "recorder.c"


class Change(NamedTuple):
    """Recorded change; `name` and `to` are relative to the recorded directory."""

    what: str
    pid: int
    inode: int
    number: int
    """Offset of a write, or length of a truncated file."""
    name: str
    to: str
    data: bytes


class Recording:
    """Recording of what programs change below `root`."""

    def __init__(self, root: Path, log: Path) -> None:
        self.root = root.resolve()
        self._log = log

    @property
    def environ(self) -> Mapping[str, str]:
        """Variables with which a program and its children are recorded."""
        own = {
            "LD_PRELOAD": str(compiled(SOURCE, "recorder.so")),
            "RECORD_ROOT": str(self.root),
            "RECORD_LOG": str(self._log),
        }
        return {**os.environ, "PYTHONPATH": str(ROOT), **own}

    def run(self, *words: object, kill_at: int | None = None) -> bytes:
        """Run a Python program; return its output. With `kill_at` it is killed before that change, if it gets there."""
        kill = {} if kill_at is None else {"RECORD_KILL": str(kill_at)}
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(command, env={**self.environ, **kill}, capture_output=True, timeout=120, check=False)
        assert done.returncode in ({0, -9} if kill else {0}), done.stderr.decode()
        return done.stdout

    def changes(self) -> Iterator[Change]:
        """Yield the changes so far."""
        with self._log.open("rb") as file:
            while head := file.readline():
                what, *numbers = head.decode().split()
                pid, inode, number, *lengths = map(int, numbers)
                name, to, data = map(file.read, lengths)
                assert what != "unknown", f"the recorder does not understand {name!r} of {to!r}"
                yield Change(what, pid, inode, number, self._relative(name), self._relative(to), data)

    def _relative(self, path: bytes) -> str:
        return os.path.relpath(os.fsdecode(path), self.root) if path else ""
