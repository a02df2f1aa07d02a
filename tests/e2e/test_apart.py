"""Screen and scheduler of a console are separate: a blocked screen delays no start or end."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.engine.leadership import current_leader
from tests import leftovers
from tests.e2e.terminal import Terminal
from tests.machine_load import stretched
from tests.waiting import until

PATIENCE = 60.0
CONSOLE = [sys.executable, "-m", "gputui"]
ASLEEP = """
import os, sys, time
from gputui.tui.app import Gputui
wake, asleep = sys.argv.pop(), sys.argv.pop()
def sleep(self):
    open(asleep, "w").close()
    while not os.path.exists(wake):
        time.sleep(0.05)
    raise KeyError("overslept")
Gputui.action_help = sleep
from gputui.__main__ import main
main()
"""
"""Program of a console whose screen, asked for help, sleeps until it is woken and then fails."""


class Place:
    """A state directory, and commands on it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        editor = path / "editor"
        wait = f"until [ -e {path}/close ]; do sleep 0.05; done"
        editor.write_text(f"#!/bin/sh\ntrap 'touch {path}/hung-up; exit' HUP\ntouch {path}/open\n{wait}\n")
        editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
        self.environ = {
            "GPUTUI_STATE": str(path / "state"),
            "GPUTUI_PROBE": "sim:1",
            "GPUTUI_RUNTIME": "process",
            "GPUTUI_CONFIG": "/dev/null",
            "GPUTUI_SCHEDULER_HAND_OVER": "never",
            "XDG_STATE_HOME": str(path / "home"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "EDITOR": str(editor),
        }

    def run(self, *words: str) -> str:
        command = [sys.executable, "-m", "gputui", *words]
        done = subprocess.run(command, env={**os.environ, **self.environ}, capture_output=True, check=True, timeout=60)
        return done.stdout.decode()

    def script(self, text: str, *options: str) -> None:
        self.run("submit", "--host", "--gpus", "1", *options, "--", "sh", "-c", text)

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def began(self, name: str) -> float:
        return (self.path / name).stat().st_mtime


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    yield Place(tmp_path)
    (tmp_path / "close").touch()
    leftovers.end(tmp_path / "state")


@pytest.mark.tmux
def test_an_open_editor_delays_neither_a_time_limit_nor_the_next_start(place: Place) -> None:
    with Terminal(CONSOLE, place.environ, 120, 40) as terminal:
        terminal.until("scheduling", "1/1 free")
        terminal.press("s")
        terminal.until("Submit a job")
        terminal.press("C-o")
        until(lambda: place.has("open"), "the editor does not open")
        place.script(f"touch {place.path}/first; sleep 60", "--time-limit", "2s")
        place.script(f"touch {place.path}/second; sleep 60")
        until(lambda: place.has("second"), "the next job does not start while the editor is open")
        assert place.began("second") - place.began("first") < stretched(12)
        assert "TIMEOUT" in place.run("queue", "--all", "--json")
        place.run("cancel", "2")
        until(lambda: "CANCELLED" in place.run("queue", "--all", "--json"), "nothing is cancelled")
        assert not place.has("close")
        (place.path / "close").touch()
        terminal.until("Submit a job")


@pytest.mark.tmux
def test_a_console_whose_editor_is_open_ends_on_sigterm_and_the_editor_with_it(place: Place) -> None:
    with Terminal(CONSOLE, place.environ, 120, 40) as terminal:
        terminal.until("scheduling", "1/1 free")
        terminal.press("s")
        terminal.until("Submit a job")
        terminal.press("C-o")
        until(lambda: place.has("open"), "the editor does not open")
        found = current_leader(place.path / "state")
        assert found is not None
        os.kill(found.pid, signal.SIGTERM)
        terminal.until(f"EXIT {128 + signal.SIGTERM}")
        until(lambda: place.has("hung-up"), "the editor is not told that its terminal goes")
        assert "other" not in terminal.modes
    assert current_leader(place.path / "state") is None


@pytest.mark.tmux
def test_a_screen_that_sleeps_and_fails_delays_no_start(place: Place) -> None:
    asleep, wake = place.path / "asleep", place.path / "close"
    with Terminal([sys.executable, "-c", ASLEEP, str(asleep), str(wake)], place.environ, 120, 40) as terminal:
        terminal.until("scheduling", "1/1 free")
        terminal.press("?")
        until(asleep.exists, "the screen is not asked for help")
        for name in ("first", "second", "third"):
            place.script(f"touch {place.path}/{name}")
        until(lambda: place.has("third"), "jobs do not start while the screen sleeps")
        wake.touch()
        terminal.until("was opened again", "overslept")


FAULTY = """
import os, sys
from gputui.engine.tick.scheduler import Scheduler
tick, faulty = Scheduler.tick, sys.argv.pop()
def fail(self, *words):
    if os.path.exists(faulty):
        raise KeyError("no such gpu")
    return tick(self, *words)
Scheduler.tick = fail
from gputui.__main__ import main
main()
"""
"""Program whose ticks fail as long as a file exists. The process that follows it works."""


@pytest.mark.long
@pytest.mark.tmux
def test_a_console_whose_scheduler_fails_repeatedly_hands_over_and_says_so(place: Place) -> None:
    place.environ["GPUTUI_SCHEDULER_HAND_OVER"] = "auto"
    with Terminal([sys.executable, "-c", FAULTY, str(place.path / "faulty")], place.environ, 160, 40) as terminal:
        terminal.until("scheduling", "1 of 1 GPU free")
        (place.path / "faulty").touch()
        terminal.until("the scheduler failed in a tick and continues", "no such gpu")
        terminal.until("serve schedules", seconds=40)
        terminal.press("!")  # the error keeps its row of messages
        terminal.until("a background `gputui serve` continues")
        place.script(f"touch {place.path}/ran")
        until(lambda: place.has("ran"), "the background scheduler starts nothing")
        found = current_leader(place.path / "state")
        assert found is not None
        assert found.kind == "serve"
        os.kill(found.pid, signal.SIGTERM)


@pytest.mark.long
def test_serve_that_fails_repeatedly_restarts_in_the_same_process(place: Place) -> None:
    words = [sys.executable, "-c", FAULTY, "serve", str(place.path / "faulty")]
    (place.path / "faulty").touch()
    environ = {**os.environ, **place.environ}
    with subprocess.Popen(words, env=environ, stderr=subprocess.PIPE) as serve:
        place.script(f"touch {place.path}/ran")
        until(lambda: place.has("ran"), "nothing is started anew")
        found = current_leader(place.path / "state")
        assert found is not None
        assert found.pid == serve.pid
        serve.terminate()
        assert serve.stderr is not None
        told = serve.stderr.read().decode()
        assert serve.wait(PATIENCE) == 0
    assert "failed 5 times within a minute, the last time in a tick by KeyError: 'no such gpu'; starting again" in told
