"""Processes left by a test in its state directory: schedulers, consoles, and host jobs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gputui.runtime.cgroups import MOUNT

_PATIENCE = 60.0


def of_directory(state: Path) -> list[int]:
    """Return the pids of living processes that work on that state directory, and of its host jobs."""
    return [pid for pid, _ in _found(state)]


def end(state: Path) -> None:
    """End these processes repeatedly until none is left, because an ending console may start a scheduler.

    Then remove the control groups of the host jobs, which nobody does once their state directory is gone.
    """
    deadline = time.monotonic() + _PATIENCE
    while found := list(_found(state)):
        assert time.monotonic() < deadline, f"these do not end: {found}"
        for pid, words in found:
            _kill(pid, words)
        time.sleep(0.02)
    for attempt in state.rglob("attempts/gputui-*"):
        for group in (*MOUNT.glob(f"gputui/{attempt.name}"), *MOUNT.glob(f"*/gputui/{attempt.name}")):
            with suppress(OSError):  # a killed process may leave it a moment later
                group.rmdir()


def _kill(pid: int, words: bytes) -> None:
    """Kill exactly that process; its pid may belong to another one by now."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _words(pid) == words:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _found(state: Path) -> Iterator[tuple[int, bytes]]:
    attempts = [path.name.split("-") for path in state.rglob("attempts/gputui-*")]
    marks = {f"GPUTUI_STATE={state}", str(state), *(f"GPUTUI_ATTEMPT={':'.join(each[1:])}" for each in attempts)}
    for entry in Path("/proc").glob("[0-9]*"):
        words = _words(int(entry.name))
        if entry.name != str(os.getpid()) and any(_is_marked(word, marks, state) for word in words.split(b"\0")):
            yield int(entry.name), words


def _words(pid: int) -> bytes:
    """Return arguments and environment of a process; empty if it has ended."""
    with suppress(OSError):
        place = Path(f"/proc/{pid}")
        return (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
    return b""


def _is_marked(word: bytes, marks: set[str], state: Path) -> bool:
    return word.startswith(os.fsencode(f"{state}/")) or os.fsdecode(word) in marks
