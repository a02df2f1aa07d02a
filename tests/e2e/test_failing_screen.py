"""A console whose screen fails, in a real terminal: scheduling continues regardless of the screen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench._measure import Terminal as RawTerminal
from gputui.engine.leadership import current_leader
from tests import leftovers
from tests.e2e.terminal import Terminal
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
BEGINS_AND_ENDS = [(f"\x1b[?{mode}h".encode(), f"\x1b[?{mode}l".encode()) for mode in (1049, 1000, 1003, 1004, 2004)]
BEGINS_AND_ENDS += [(b"\x1b[?25l", b"\x1b[?25h"), (b"\x1b[?7l", b"\x1b[?7h")]
_SIZE = ("COLUMNS", "LINES")
KITTY_KEYS, USUAL_KEYS = b"\x1b[>25u", b"\x1b[<u"


class Place:
    """A machine of one simulated GPU, its console, and jobs that wait for each other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / "state"
        self.environ = {
            "GPUTUI_STATE": str(self.state),
            "GPUTUI_PROBE": "sim:1",
            "GPUTUI_RUNTIME": "process",
            "GPUTUI_CONFIG": "/dev/null",
            "XDG_STATE_HOME": str(path / "home"),
            "PYTHONPATH": str(ROOT),
        }

    @property
    def whole_environ(self) -> dict[str, str]:
        """Environment of the tests without the terminal's size, which pytest's workers have set."""
        return {**{name: word for name, word in os.environ.items() if name not in _SIZE}, **self.environ}

    @property
    def log(self) -> str:
        return (self.state / "gputui.log").read_text()

    def console(self, where: str) -> list[str]:
        return [sys.executable, "-m", "tests.e2e.faulty", where]

    def submit(self, script: str) -> None:
        command = [sys.executable, "-m", "gputui", "submit", "--host", "--gpus", "1", "--", "sh", "-c", script]
        subprocess.run(command, env=self.whole_environ, check=True, capture_output=True, timeout=60)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def leader(self) -> int:
        """Return the pid of the leader; 0 without one."""
        found = current_leader(self.state)
        return found.pid if found else 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    leftovers.end(place.state)


@pytest.mark.tmux
def test_a_failed_screen_reopens_and_the_same_scheduler_starts_waiting_jobs(place: Place) -> None:
    place.submit(f"touch {place.path}/first; until [ -e {place.path}/go ]; do sleep 0.1; done")
    place.submit(f"touch {place.path}/second")
    with Terminal(place.console("key"), place.environ, 120, 36) as terminal:
        terminal.until("scheduling", "1 run", "1 wait")
        until(lambda: place.has("first"), "the first job does not start")
        scheduler = place.leader()
        terminal.press("?")
        terminal.until("The screen failed and was opened again: KeyError: 'no", "1 run", "1 wait", "q quit")
        assert not place.has("second")
        (place.path / "go").touch()
        terminal.until("0 wait")
        until(lambda: place.has("second"), "the second job does not start")
        assert place.leader() == scheduler
        assert place.log.count("scheduling in") == 1
        assert "Traceback (most recent call last)" in place.log
        assert "KeyError: 'no" in place.log
        terminal.press("!")  # what was told is kept
        terminal.until("while this console was open", "KeyError: 'no", str(place.state))
        terminal.leave("while this console was open")
        terminal.press("q")
        terminal.until("stop scheduling")
        terminal.press("s")
        shown = terminal.until("EXIT 0")
        assert "1/1 free" not in shown
        assert "KeyError" not in shown, "a traceback of long ago is on the terminal"
        assert terminal.modes == "cursor wrap"


@contextmanager
def opened_again(place: Place) -> Iterator[tuple[Terminal, int]]:
    """A console that schedules, whose screen has failed once, and its process."""
    with Terminal(place.console("key"), place.environ, 120, 36) as terminal:
        terminal.until("scheduling", "1/1 free")
        terminal.press("?")
        terminal.until("was opened again")
        yield terminal, place.leader()


@pytest.mark.tmux
def test_a_console_terminated_after_a_fault_hands_over(place: Place) -> None:
    with opened_again(place) as (terminal, console):
        os.kill(console, signal.SIGTERM)
        terminal.until(f"EXIT {128 + signal.SIGTERM}")
        until(lambda: place.leader() not in (0, console), "nobody took over")


@pytest.mark.tmux
def test_a_terminal_that_closes_after_a_fault_hands_over(place: Place) -> None:
    with opened_again(place) as (terminal, console):
        terminal.close()
        until(lambda: place.leader() not in (0, console), "nobody took over")


@pytest.mark.tmux
def test_a_failed_screen_reopens_only_after_the_shell_ends(place: Place) -> None:
    place.submit(f"until [ -e {place.path}/go ]; do sleep 0.1; done")
    with Terminal(place.console("away"), {**place.environ, "SHELL": "/bin/sh"}, 120, 36) as terminal:
        terminal.until("scheduling", "running    50 sh", "Nothing written yet")  # the status counts starting ones too
        terminal.press("x")
        terminal.until("brings the console back")
        until(lambda: "KeyError" in place.log, "nothing fails")
        terminal.press("sleep 2; echo $((40+2))-still", "Enter")  # time enough to open a screen
        shown = terminal.until("42-still")
        assert "1/1 free" not in shown, "the screen draws over the shell"
        terminal.press("exit", "Enter")
        terminal.until("The screen failed and was opened again", "1 run", "q quit")
        assert place.log.count("Traceback") == 1
        terminal.press("q")
        terminal.until("stop scheduling")
        terminal.press("s")
        terminal.until("EXIT 0")
        assert terminal.modes == "cursor wrap"


@pytest.mark.parametrize(
    "where",
    [
        "starting",
        "making",
        pytest.param("reading", marks=pytest.mark.long),
        pytest.param("opening", marks=pytest.mark.long),
    ],
)
def test_console_ends_after_repeated_failures_and_jobs_still_start(place: Place, where: str) -> None:
    place.submit(f"touch {place.path}/first")
    with RawTerminal(place.console(where), place.whole_environ) as terminal:
        before = termios.tcgetattr(terminal.master)
        status = ended(terminal)
        assert os.waitstatus_to_exitcode(status) == 1
        assert termios.tcgetattr(terminal.master) == before
    output = bytes(terminal.output)
    assert_left_as_it_was(output)
    assert output.count(b"\x1b[?1049h") == (0 if where == "making" else 4)
    words = output[max(0, output.rfind(b"\x1b[?1049l")) :].decode()
    assert words.count("Traceback (most recent call last)") == 1
    assert r"KeyError: 'no \x1b[31msuch thing'" in words
    assert "gputui: error: the screen failed 4 times within a minute" in words
    assert "jobs start as before, by a background scheduler" in words
    until(lambda: place.leader() not in (0, terminal.pid), "nobody took over")
    place.submit(f"touch {place.path}/second")
    until(lambda: place.has("first") and place.has("second"), "jobs do not start")
    told = "the screen cannot be created" if where == "making" else "the screen failed"
    assert place.log.count(f": {told}\nTraceback") == 4


def assert_left_as_it_was(output: bytes) -> None:
    """Check that each mode of the terminal that was begun is ended."""
    for begins, ends in BEGINS_AND_ENDS:
        assert output.rfind(begins) <= output.rfind(ends), f"{begins!r} is left as it is"
    assert output.count(KITTY_KEYS) == output.count(USUAL_KEYS)


def ended(terminal: RawTerminal) -> int:
    """Return the exit status of the console, once it has ended and all its output is read."""
    deadline = time.monotonic() + PATIENCE
    while True:
        pid, status = os.waitpid(terminal.pid, os.WNOHANG)
        if pid:
            break
        assert time.monotonic() < deadline, "it does not end"
        terminal.read(0.05)
    while terminal.read(0.2):
        pass
    terminal.is_over = True
    return status
