"""Processes in containers of a real engine that ask the owner of a queue: jobs' submitters, or nobody; never root."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.api import connections
from gputui.api.rights import SUDO_UID, AccountNames, Callers, whereabouts_of
from gputui.domain.access import Caller, Role
from gputui.domain.job import Job
from gputui.domain.settings import AccessSettings, Settings
from tests.cases import cases
from tests.factories import running
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [pytest.mark.docker, pytest.mark.needs("root"), pytest.mark.timeout(120)]

SUBMITTER, OTHER = 61_234, 61_235
"""Uids without accounts."""
PATIENCE = 60.0
_ASK = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
PYTHON = os.path.realpath(sys.executable)
SHOWN = sorted({each for each in ("/usr", "/lib", "/lib64", sys.base_prefix) if Path(each).exists()})
"""Mounts that a container needs to run this Python."""

Ask = Callable[..., Caller]


@pytest.fixture
def door() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory(dir="/tmp") as place, socket.socket(socket.AF_UNIX) as found:
        Path(place).chmod(0o755)
        found.bind(f"{place}/s")
        Path(f"{place}/s").chmod(0o666)
        found.listen()
        found.settimeout(PATIENCE)
        yield found


@pytest.fixture
def ask(engine: Dockerd, door: socket.socket) -> Iterator[Ask]:
    """Return a function that has a container ask, and returns who that is to the owner."""
    made: list[str] = []

    def ask(*options: str, submitter: int | None = SUBMITTER, is_job: bool = True) -> Caller:
        path = str(door.getsockname())
        mounts = [f"--volume={each}:{each}:ro" for each in (*SHOWN, str(Path(path).parent))]
        words = (*mounts, "--network", "host", *options, IMAGE, PYTHON, "-S", "-c", _ASK, path)
        made.append(engine.docker("run", "--detach", *words))
        connection, _ = door.accept()
        with closing(connection):
            peer = connections.peer_of(connection)
            assert peer is not None
            one = running(7, submitted_uid=submitter)
            job = one.evolve(attempts=(replace(one.attempts[0], container_id=made[-1]),))
            return callers([job] if is_job else []).caller_of(peer, {SUDO_UID: str(SUBMITTER)})

    yield ask
    for container in made:
        engine.docker("rm", "--force", container)


def callers(jobs: list[Job]) -> Callers:
    own = whereabouts_of(Path("/proc/self/cgroup").read_text(), "a" * 12)
    return Callers(Settings(access=AccessSettings(users=("*",))), 0, "a" * 12, lambda: jobs, AccountNames(), own)


@cases(
    "options",
    [
        (),
        ("--user", str(SUBMITTER)),
        ("--pid", "host"),
        ("--cgroupns", "host"),
        ("--pid", "host", "--ipc", "host", "--uts", "host", "--cap-add", "SYS_PTRACE"),
    ],
)
def test_a_container_of_a_job_is_its_submitter(ask: Ask, options: tuple[str, ...]) -> None:
    caller = ask(*options)
    assert (caller.uid, caller.role, caller.job) == (SUBMITTER, Role.USER, 7)
    assert caller.via == ""


def test_callers_who_may_only_look(ask: Ask) -> None:
    # another uid in a container of a job may only look
    caller = ask("--user", str(OTHER))
    assert (caller.uid, caller.role, caller.job) == (OTHER, Role.VIEWER, None)
    # a container that is no job may only look
    caller = ask(is_job=False)
    assert (caller.uid, caller.role, caller.job) == (0, Role.VIEWER, None)


def test_a_command_that_entered_a_container_is_in_it(ask: Ask, engine: Dockerd, door: socket.socket) -> None:
    path = str(door.getsockname())
    mounts = [f"--volume={each}:{each}:ro" for each in (*SHOWN, str(Path(path).parent))]
    container = engine.docker("run", "--detach", "--network", "host", *mounts, IMAGE, "sleep", "600")
    try:
        engine.docker("exec", "--detach", container, PYTHON, "-S", "-c", _ASK, path)
        connection, _ = door.accept()
        with closing(connection):
            peer = connections.peer_of(connection)
        assert peer is not None
        assert container in peer.cgroup
        assert callers([]).caller_of(peer, {}).role is Role.VIEWER
    finally:
        engine.docker("rm", "--force", container)


@cases("submitter", [0, None])
def test_a_container_of_roots_job_is_not_root(ask: Ask, submitter: int | None) -> None:
    assert ask(submitter=submitter).role is Role.VIEWER
