"""The console in a real terminal, on a real engine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.engine.leadership import current_leader
from tests import leftovers
from tests.e2e import witness
from tests.e2e.site import Site
from tests.e2e.terminal import Terminal
from tests.machine_load import stretched

pytestmark = pytest.mark.tmux

CONSOLE = [sys.executable, "-m", "gputui"]
PATIENCE = 60.0


@pytest.mark.docker
@pytest.mark.nvml
def test_a_job_is_watched_and_cancelled_by_keys_at_80x24_beside_a_scheduler(site: Site) -> None:
    site.serve()
    job_id = site.shell("echo hello from inside; sleep 60", "--gpus", "2", "--name", "to-be-cancelled")
    with Terminal(CONSOLE, site.environ) as terminal:
        shown = terminal.until("to-be-cancelled", "hello from inside", "serve", "6/8")
        assert [line.split()[0] for line in shown.splitlines()[2:10]] == [*"01234567"]
        assert shown.count("8x H100") == 1
        terminal.press("c")
        terminal.until(f"job #{job_id} to-be-cancelled: cancel it", "of work on 2 GPUs is lost")
        terminal.press("y")
        site.until_state(job_id, "CANCELLED")
        terminal.until("8/8 free")
        terminal.press("q")
        terminal.until("EXIT 0")


@pytest.mark.docker
@pytest.mark.nvml
def test_a_console_that_schedules_hands_over_when_it_is_quit(site: Site) -> None:
    with Terminal(CONSOLE, site.environ, 120, 36) as terminal:
        job_id = site.shell(witness.until_let_go(), "--gpus", "8")
        site.until_state(job_id, "RUNNING")
        terminal.until("q quit")
        terminal.press("q")
        terminal.until("hand over to a background scheduler")
        terminal.press("Enter")
        terminal.until("EXIT 0")
    site.let_go()
    site.until_state(job_id, "COMPLETED")
    site.until_state(site.shell("true", "--gpus", "8"), "COMPLETED")


@pytest.mark.docker
@pytest.mark.nvml
def test_a_console_whose_terminal_closes_hands_over_within_seconds(site: Site) -> None:
    terminal = Terminal(CONSOLE, site.environ, 120, 36)
    try:
        job_id = site.shell(witness.until_let_go(), "--gpus", "8")
        site.until_state(job_id, "RUNNING")
        next_id = site.shell("true", "--gpus", "8")
        terminal.close()
        site.let_go()
        closed = time.monotonic()
        site.until_state(job_id, "COMPLETED")
        site.until_state(next_id, "COMPLETED", "RUNNING")
        assert time.monotonic() - closed < stretched(7)
    finally:
        terminal.close()


def test_the_demo_shows_gpus_jobs_and_logs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    environ = {"GPUTUI_CONFIG": "/dev/null", "TMPDIR": str(tmp_path)}
    with Terminal([*CONSOLE, "demo"], environ, 200, 50) as terminal:
        terminal.until("scheduling", "llama-7b-sft", "loss", "jupyter-carol", "wants 2 GPUs")
        assert [path.name for path in tmp_path.glob("*/state/gputui.log")] == ["gputui.log"]
        terminal.press("q")
        terminal.until("EXIT 0")
    assert list(tmp_path.iterdir()) == []
    assert leftovers.of_directory(tmp_path) == []


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    leftovers.end(tmp_path / "state")


def test_a_terminated_console_hands_over_and_restores_the_terminal(state: Path, tmp_path: Path) -> None:
    environ = {"GPUTUI_STATE": str(state), "GPUTUI_PROBE": "sim:2", "GPUTUI_RUNTIME": "process"}
    environ |= {"GPUTUI_CONFIG": "/dev/null", "XDG_STATE_HOME": str(tmp_path / "home")}

    def leader_but(pid: int) -> int:
        deadline = time.monotonic() + PATIENCE
        while (found := current_leader(state)) is None or found.pid == pid:
            assert time.monotonic() < deadline, "nobody schedules"
            time.sleep(0.05)
        return found.pid

    with Terminal(CONSOLE, environ) as terminal:
        terminal.until("● sched", "2/2 free")
        console = leader_but(0)
        os.kill(console, signal.SIGTERM)
        shown = terminal.until(f"EXIT {128 + signal.SIGTERM}")
        assert "2/2 free" not in shown, "the screen of before is back"
    assert leader_but(console)


def test_a_suspended_console_is_redrawn_completely(state: Path, tmp_path: Path) -> None:
    environ = {"GPUTUI_STATE": str(state), "GPUTUI_PROBE": "sim:2", "GPUTUI_RUNTIME": "process"}
    environ |= {"GPUTUI_CONFIG": "/dev/null", "XDG_STATE_HOME": str(tmp_path), "GPUTUI_SCHEDULER_HAND_OVER": "never"}
    with Terminal(CONSOLE, environ) as terminal:
        terminal.until("● sched", "2/2 free", "s submit")
        found = current_leader(state)
        assert found is not None
        for _ in range(20):  # whatever the console does at that moment
            os.kill(found.pid, signal.SIGTSTP)
            until_stopped(found.pid)
            os.kill(found.pid, signal.SIGCONT)
        terminal.until("● sched", "2/2 free", "H100", "The queue is empty", "s submit")
        terminal.press("q")
        terminal.until("EXIT 0")


def until_stopped(pid: int) -> None:
    """Wait until the process has stopped; press Ctrl-Z again if it has not.

    Two threads may take a continue and the stop after it at once, in either order: then the console goes on.
    """
    deadline, again_at = time.monotonic() + PATIENCE, time.monotonic() + 1
    while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "T":
        now = time.monotonic()
        assert now < deadline, "it does not stop"
        if now > again_at:
            again_at = now + 1
            os.kill(pid, signal.SIGTSTP)
        time.sleep(0.02)
