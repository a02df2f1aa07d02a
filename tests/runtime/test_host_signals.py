"""Signals to real processes: identified by start time, refused for other users, and their end awaited."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gputui.domain.errors import GputuiError
from gputui.domain.gpu_processes import ProcessTarget
from gputui.runtime.host_processes import LocalProcesses, read_stat
from tests.foreign import idle_process

STRANGER = 54_321
"""Uid without an account on any machine."""
_DEAF = "trap '' TERM; echo ready; while :; do sleep 60 & wait; done"


@pytest.fixture
def idle() -> Iterator[subprocess.Popen[bytes]]:
    with idle_process() as process:
        yield process


def target(process: subprocess.Popen[bytes]) -> ProcessTarget:
    found = read_stat(process.pid)
    assert found is not None
    return ProcessTarget(process.pid, found.ticks, "", "cat")


def nothing() -> None:
    """Do nothing before the signal."""


def test_a_signalled_process_ends_and_its_zombie_counts_as_ended(idle: subprocess.Popen[bytes]) -> None:
    called: list[bool] = []
    outcome = LocalProcesses().signal(target(idle), 15, 10, lambda: called.append(idle.poll() is None))
    assert (outcome.has_ended, called) == (True, [True])
    with pytest.raises(GputuiError, match="ended"):
        LocalProcesses().signal(ProcessTarget(idle.pid, 1), 15, 1, nothing)


def test_a_process_that_ignores_the_signal_is_reported_as_running() -> None:
    with subprocess.Popen(["sh", "-c", _DEAF], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        outcome = LocalProcesses().signal(target(process), 15, 0.1, nothing)
        assert not outcome.has_ended
        assert "still there" in outcome.sentence
        os.killpg(process.pid, 9)


def test_a_pid_with_another_start_is_refused_and_nothing_is_sent(idle: subprocess.Popen[bytes]) -> None:
    later = replace(target(idle), ticks=1)
    with pytest.raises(GputuiError, match="another process now"):
        LocalProcesses().signal(later, 9, 1, lambda: pytest.fail("it was about to be sent"))
    with pytest.raises(GputuiError, match="another process now"):
        LocalProcesses().environment(later)
    assert idle.poll() is None


def test_without_a_pidfd_the_start_is_compared_too(
    idle: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(GputuiError, match="another process now"):
        LocalProcesses().signal(replace(target(idle), ticks=1), 9, 1, nothing)
    assert LocalProcesses().signal(target(idle), 9, 10, nothing).has_ended


def test_gputui_refuses_signals_to_its_own_container() -> None:
    for pid in (os.getpid(), os.getppid()):
        found = read_stat(pid)
        assert found is not None
        with pytest.raises(GputuiError, match="gputui itself runs in pid"):
            LocalProcesses().signal(ProcessTarget(pid, found.ticks), 15, 1, nothing)


def test_environment_and_parents_of_a_process(idle: subprocess.Popen[bytes]) -> None:
    # the environment of an own process is shown
    assert f"PATH={os.environ['PATH']}" in LocalProcesses().environment(target(idle))
    # parents are listed up to the first process
    host = LocalProcesses()
    found = host.rows((idle.pid,), with_parents=True)
    assert found[idle.pid].parent == os.getpid()
    assert {idle.pid, os.getpid(), os.getppid()} - {1} <= set(found)
    assert 1 not in found
    again = host.rows((idle.pid,))
    assert set(again) == {idle.pid}
    assert again[idle.pid].command == "cat"


_ASK = """
import os, pwd, sys
from gputui.domain.errors import GputuiError
from gputui.domain.gpu_processes import ProcessTarget
from gputui.runtime.host_processes import LocalProcesses
from tests.foreign import idle_process
os.setgroups([]); os.setgid(int(sys.argv[3])); os.setuid(int(sys.argv[3]))  # now: the interpreter may be root's
target = ProcessTarget(int(sys.argv[1]), int(sys.argv[2]))
for act in (lambda: LocalProcesses().signal(target, 9, 1, print), lambda: LocalProcesses().environment(target)):
    try:
        act()
    except GputuiError as error:
        print(error)
"""


@pytest.mark.needs("root")
def test_a_process_of_another_user_is_refused(idle: subprocess.Popen[bytes]) -> None:
    mine = target(idle)
    command = [sys.executable, "-c", _ASK, str(mine.pid), str(mine.ticks), str(STRANGER)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    assert done.stdout.decode().splitlines() == [
        f"pid {mine.pid} belongs to root (ask root)",
        f"the environment of pid {mine.pid} belongs to root (only root may read it)",
    ]
    assert idle.poll() is None
