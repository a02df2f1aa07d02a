"""A terminal that accepts no output, as over a broken link: jobs still start, and its end is noticed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from threading import enumerate as threads

import pytest

from gputui.tui.textual_internals import SHORT, NonblockingWriter
from tests import leftovers

SIZE = (24, 80)
PATIENCE = 60.0


class Line:
    """A console on a terminal of its own, whose output is read only when the test wants to."""

    def __init__(self, state: Path) -> None:
        self._environ = {
            **os.environ,
            "GPUTUI_STATE": str(state),
            "GPUTUI_CONFIG": "/dev/null",
            "GPUTUI_PROBE": "sim:8",
            "GPUTUI_RUNTIME": "process",
            "GPUTUI_SCHEDULER_HAND_OVER": "never",
            "XDG_STATE_HOME": str(state / "home"),
            "TERM": "xterm-256color",
        }
        self.pid, self._master = pty.fork()
        if self.pid == 0:  # what a fork of this process may do: become another program
            os.execve(sys.executable, [sys.executable, "-m", "gputui"], self._environ)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", *SIZE, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def read_until(self, *wanted: str) -> None:
        """Read output until all of these texts have arrived."""
        seen, deadline = "", time.monotonic() + PATIENCE
        while not all(words in seen for words in wanted):
            assert time.monotonic() < deadline, f"no {wanted} in {seen[-3000:]!r}"
            if select.select([self._master], [], [], 0.1)[0]:
                seen += os.read(self._master, 65536).decode(errors="replace")

    def freeze(self) -> None:
        """Redraw the whole screen until the terminal accepts no more output, and then a few more times."""
        deadline = time.monotonic() + PATIENCE
        while self._takes_more():
            assert time.monotonic() < deadline, "the line takes whatever is drawn"
            self._draw()
        for _ in range(10):
            self._draw()

    def _draw(self) -> None:
        os.write(self._master, b"z")
        time.sleep(0.02)

    def _takes_more(self) -> bool:
        slave = os.open(f"/proc/{self.pid}/fd/1", os.O_WRONLY | os.O_NOCTTY)
        try:
            return bool(select.select([], [slave], [], 0)[1])
        finally:
            os.close(slave)

    def submit(self, *command: str) -> None:
        done = [sys.executable, "-m", "gputui", "submit", "--host", "--", *command]
        subprocess.run(done, env=self._environ, check=True, capture_output=True, timeout=60)

    def close(self) -> None:
        """Close the terminal, as a broken link does."""
        with contextlib.suppress(OSError):
            os.close(self._master)

    def ended(self) -> int:
        """Return the exit status of the console, once it has ended."""
        deadline = time.monotonic() + PATIENCE
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, "the console outlives its terminal"
            time.sleep(0.05)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    try:
        yield line
    finally:
        line.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(line.pid, signal.SIGKILL)
            os.waitpid(line.pid, 0)
        leftovers.end(tmp_path)


def test_jobs_start_while_the_terminal_is_blocked(line: Line, tmp_path: Path) -> None:
    line.read_until("sched", "H100")
    line.freeze()
    line.submit("touch", str(tmp_path / "ran"))
    deadline = time.monotonic() + PATIENCE
    while not (tmp_path / "ran").exists():
        assert time.monotonic() < deadline, "nothing is scheduled while the terminal stands still"
        time.sleep(0.05)
    line.read_until("touch", "sched", "ID", "quit")  # and then the whole picture stands there again
    line.freeze()
    line.close()
    assert line.ended() == 128 + signal.SIGHUP


def test_a_lost_terminal_is_reported_once_and_blocks_no_caller() -> None:
    reader, end = os.pipe()
    os.close(reader)
    lost: list[str] = []
    with open(end, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        writer = NonblockingWriter(file, lambda: lost.append("lost"))
        writer.start()
        for _ in range(1000):
            writer.write("x" * 10_000)
        writer.stop()
        assert lost == ["lost"]
        assert writer not in threads()
        with contextlib.suppress(OSError):
            file.close()


def test_a_blocked_terminal_drops_frames_but_not_modes() -> None:
    reader, end = os.pipe()
    with open(end, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        writer = NonblockingWriter(file, lambda: None)
        taken = 0
        while writer.takes("x" * 1000):
            writer.write("x" * 1000)
            taken += 1
        assert 1 < taken < 100
        assert writer.takes("x" * SHORT)
        writer.start()
        writer.stop()
    os.close(reader)
