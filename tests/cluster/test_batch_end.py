"""What a batch script notes of its job, and the signals that reach the command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.job_spec import LimitWarning
from tests.cluster.batch import KEY, BatchRun, noted, script_of

# sigwait: Python would run a handler only after a wait that the signal came just before
_COUNTS = """
import signal
noted = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
signal.pthread_sigmask(signal.SIG_BLOCK, noted)
print("ready", flush=True)
while True:
    print(signal.sigwait(noted).name, flush=True)
"""
COUNTS = (sys.executable, "-c", _COUNTS)
Begin = Callable[..., BatchRun]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Return a function that starts the script of a host job."""
    runs: list[BatchRun] = []

    def start(**job: Any) -> BatchRun:
        script = script_of(image=None, output=f"{tmp_path}/%j.out", **job)
        runs.append(BatchRun(tmp_path, script, "", "2,3", SLURMD_NODENAME="gpu1"))
        return runs[-1]

    yield start
    for run in runs:
        run.end()


@pytest.mark.parametrize(
    ("job", "code"),
    [
        ({"command": ("true",)}, 0),
        ({"command": ("sh", "-c", "exit 3")}, 3),
        ({"command": ("sh", "-c", "kill -KILL $$")}, 137),
        ({"command": ("no-such-program",)}, 127),
        ({"command": ("true",), "ulimits": ("nofile=9999999999",)}, 125),
        ({"command": ("env",), "env": (("PATH", "/nowhere"),)}, 127),
    ],
)
def test_the_end_of_a_command_is_noted(begin: Begin, tmp_path: Path, job: dict[str, Any], code: int) -> None:
    assert begin(**job).wait() == code
    note = noted(tmp_path)
    assert (note.node, note.gpus, note.restarts, note.key, note.code) == ("gpu1", (2, 3), 0, KEY, code)
    assert note.ended is not None
    assert note.started <= note.ended <= note.started + 60


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ({"command": ("no\nend 1 0", "x")}, "CommandNotFound gpu1 has no program no end 1 0"),
        ({"command": ("env",), "env": (("PATH", "/nowhere"),)}, "CommandNotFound gpu1 has no program env"),
        ({"command": ("sh", "-c", "exit 127")}, ""),
    ],
)
def test_a_program_that_the_node_lacks_is_noted(begin: Begin, tmp_path: Path, job: dict[str, Any], why: str) -> None:
    assert begin(**job).wait() == 127
    assert noted(tmp_path).why == why


def test_a_killed_script_has_noted_its_start_alone(begin: Begin, tmp_path: Path) -> None:
    run = begin(command=COUNTS)
    run.wait_for("ready")
    run.signal(signal.SIGKILL, everything=True)
    run.wait()
    assert (noted(tmp_path).ended, noted(tmp_path).node) == (None, "gpu1")


@pytest.mark.parametrize("everything", [False, True])
def test_each_signal_reaches_the_command_once(begin: Begin, everything: bool) -> None:
    run = begin(command=COUNTS)
    run.wait_for("ready")
    sent = ("SIGTERM", "SIGUSR1", "SIGINT", "SIGHUP", "SIGUSR1")
    for number, name in enumerate(sent, 1):
        run.wait_until_it_listens()
        run.signal(signal.Signals[name], everything=everything)
        run.wait_for("\n".join(("ready", *sent[:number], "")))
    run.wait_until_it_listens()
    assert run.output.split() == ["ready", *sent]


def test_a_warning_by_the_signal_that_ends_jobs_reaches_the_command(begin: Begin) -> None:
    run = begin(command=COUNTS, warning=LimitWarning(signal.SIGTERM, timedelta(minutes=1)))
    run.wait_for("ready")
    run.wait_until_it_listens()
    run.signal(signal.SIGURG, everything=False)
    run.wait_for("SIGTERM")


def test_a_cancelled_command_may_save_its_work(begin: Begin, tmp_path: Path) -> None:
    run = begin(command=("sh", "-c", "trap 'echo saved; exit 7' TERM; echo ready; while :; do sleep 0.1; done"))
    run.wait_for("ready")
    run.wait_until_it_listens()
    run.signal(everything=True)
    assert (run.wait(), noted(tmp_path).code, run.output.split()[-1]) == (7, 7, "saved")
