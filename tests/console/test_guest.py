"""The console of a user who asks a service: it shows the owner's queue, and neither schedules nor keeps one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputui.config import resolve
from gputui.engine.leadership import current_leader
from tests.cli.conftest import Run
from tests.e2e.terminal import Terminal

GPUTUI = [sys.executable, "-P", "-m", "gputui"]
PATIENCE = 60.0


@contextmanager
def served(state: Path, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [*GPUTUI, "--state", str(state), "--probe", "sim:2", "--runtime", "process", "serve"]
    with (state.parent / "serve.log").open("ab") as log:
        serve = subprocess.Popen(command, env={**os.environ, **environ}, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE
        while (leader := current_leader(state)) is None or leader.pid != serve.pid or not (state / "api.sock").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield serve
    finally:
        serve.kill()
        serve.wait(PATIENCE)


@pytest.mark.tmux
@pytest.mark.timeout(180)
def test_a_guest_sees_the_services_queue_across_its_owners(tmp_path: Path) -> None:
    state, own = tmp_path / "state", tmp_path / "own"
    environ = {"XDG_STATE_HOME": str(own), "XDG_CONFIG_HOME": str(tmp_path / "config"), "LANG": "C.UTF-8"}
    told = {**environ, "GPUTUI_SOCKET": str(state / "api.sock")}
    submit = [*GPUTUI, "--state", str(state), "--runtime", "process", "submit", "--host", "--", "sleep", "600"]
    subprocess.run(submit, env={**os.environ, **environ}, check=True)
    with served(state, environ) as first, Terminal(GPUTUI, told, 120, 36) as console:
        console.until("serve schedules", "sleep")
        first.kill()
        console.until("no answer")
        with served(state, environ):
            console.until_gone("no answer")
            console.press("c")
            console.press("Enter")
            console.until("cancelled by")
            leader = current_leader(state)
            assert leader is not None
            assert leader.kind == "serve"
            console.press("q")
            console.until("EXIT 0")
    assert not (own / "gputui").exists()


def test_a_guest_does_not_schedule_beside_the_service(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_SOCKET", "/nowhere/api.sock")
    assert not resolve(environ=os.environ).sockets.in_process
    done = run("serve")
    assert (done.code, "the service of this machine schedules" in done.err) == (1, True)
