"""Files that a scheduler without a screen leaves in the state directory."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.config import Options
from gputui.console import own_log, serving
from gputui.domain.snapshot import Leader
from gputui.engine.leadership import Leadership, current_leader
from tests.cli.conftest import Run
from tests.factories import NOW
from tests.waiting import until


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """Restore the root logger after the test."""
    root = logging.getLogger()
    before, raising = list(root.handlers), logging.raiseExceptions
    yield root
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
        handler.close()
    logging.raiseExceptions = raising


def test_the_log_is_closed_to_others(tmp_path: Path, root_logger: logging.Logger) -> None:
    path = tmp_path / "gputui.log"
    path.touch(0o666)
    own_log.log_to_file(tmp_path)
    logging.getLogger("gputui.test").warning("secretive")
    assert "secretive" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_hand_over_needs_no_room_for_its_errors(tmp_path: Path) -> None:
    fd = serving.errors_file(tmp_path / "no" / "serve.err")
    assert os.write(fd, b"lost") == 4
    os.close(fd)


def test_every_command_reports_a_scheduler_that_does_not_respond(
    run: Run, root_logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del root_logger  # `serve` logs to a file
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    state = tmp_path / "state"
    words = ("--state", str(state), "--probe", "sim:2", "--runtime", "process")
    assert run(*words, "submit", "--host", "--", "true").code == 0
    leadership = Leadership(state, patience=0.01)
    assert leadership.acquire(Leader(4711, "here", "root", "serve", NOW))
    time.sleep(0.05)
    silent = "serve of root, pid 4711"
    for command in ("queue", "gpus"):
        assert f"the scheduler ({silent}) has not responded for" in run(*words, command).err
    assert "the scheduler has not responded for" in run(*words, "explain", "1").out
    doctor = run(*words, "doctor")
    assert f"{silent}, has not responded for" in doctor.out
    assert doctor.code == 1
    assert ", and holds the lock in " in run(*words, "serve").err
    leadership.release()


def test_serve_schedules_though_its_stderr_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        serving.say("state in /state")
        full.write("")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_a_background_scheduler_makes_room_for_a_service(tmp_path: Path) -> None:
    """Also for one that was started without --wait."""
    state = tmp_path / "state"
    command = [sys.executable, "-P", "-m", "gputui", "--state", str(state), "--runtime", "process", "--probe", "sim:1"]

    def leads(process: subprocess.Popen[bytes]) -> bool:
        leader = current_leader(state)
        return leader is not None and leader.pid == process.pid

    with subprocess.Popen([*command, "serve", "--stand-in"], stderr=subprocess.PIPE) as stand_in:
        until(lambda: leads(stand_in), "it schedules")
        with subprocess.Popen([*command, "serve"], stderr=subprocess.PIPE) as service:
            until(lambda: leads(service), "the service schedules")
            stand_in.communicate(timeout=60)
            service.terminate()
            service.communicate(timeout=60)
    assert (stand_in.returncode, service.returncode) == (0, 0)


def test_no_background_scheduler_is_started_while_a_service_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **_: started.append(words))
    waiting = Leadership(tmp_path)
    waiting.stand_in_line()
    serving.hand_over(Options(state=tmp_path))
    assert started == []
    waiting.leave_line()
    serving.hand_over(Options(state=tmp_path))
    assert len(started) == 1
