"""Containers under the account of their submitter (`runtime.run_as_submitter`), on a real engine."""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.cause import CauseCode
from gputui.domain.container_options import ContainerOptions
from gputui.domain.errors import RuntimeFault
from gputui.domain.job_spec import JobSpec
from gputui.domain.settings import RuntimeSettings, Settings, StoreSettings
from gputui.engine.tick.start_protocol import start_attempt
from gputui.runtime.docker.runtime import DockerRuntime
from gputui.store import TinyJobStore
from tests.accounts import accounts
from tests.factories import FakeClock
from tests.runtime.contract import STORE, Harness, output, shell
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [pytest.mark.docker, pytest.mark.needs("root")]

UID = 20_000 + os.getpid() % 30_000
"""Uid of a test user, different in each process, so that parallel runs do not conflict."""
SHOWN = shell("id -u; id -g; id -G; grep NoNewPrivs /proc/self/status")


@dataclass
class Member:
    """User with its own group, and another that shares the state directory."""

    gid: int
    shared: str

    @property
    def shared_gid(self) -> int:
        return grp.getgrnam(self.shared).gr_gid


@pytest.fixture(scope="module")
def member() -> Iterator[Member]:
    mark = secrets.token_hex(3)
    name, shared = f"gptd{mark}", f"gptd{mark}s"
    with accounts():
        subprocess.run(["groupadd", shared], check=True)
        subprocess.run(["useradd", "-M", "-U", "-u", str(UID), "-G", shared, name], check=True)
    yield Member(pwd.getpwnam(name).pw_gid, shared)
    with accounts():
        subprocess.run(["userdel", "-f", name], check=True)
        subprocess.run(["groupdel", shared], check=True)


@pytest.fixture
def harness(engine: Dockerd) -> Iterator[Harness]:
    settings = RuntimeSettings(docker_host=engine.host)
    harness = Harness(lambda store: DockerRuntime(store, settings, FakeClock()), image=IMAGE, name="docker")
    yield harness
    harness.clean()


@pytest.fixture
def store(member: Member, tmp_path: Path) -> Iterator[TinyJobStore]:
    store = TinyJobStore(tmp_path / "state", StoreSettings(group=member.shared))
    yield store
    store.close()


def started(harness: Harness, store: TinyJobStore, uid: int, **options: Any) -> list[str] | RuntimeFault:
    """Return the output of a container of that submitter, or the fault of its start."""
    runtime = harness.open()
    spec = store.with_warrant(JobSpec(image=IMAGE, command=SHOWN, options=ContainerOptions(**options)), uid)
    launch = harness.launch(SHOWN)
    launch = type(launch)(STORE, launch.job_id, 1, spec, ())
    settings = Settings(runtime=RuntimeSettings(run_as_submitter=True))
    fault = start_attempt(store, runtime, launch, FakeClock(), settings)
    if fault is not None:
        return fault
    harness.ended(runtime, launch.name)
    with tempfile.TemporaryDirectory() as folder:
        return output(runtime, launch.name, Path(folder) / "log").decode().splitlines()


def test_a_container_has_the_user_and_the_groups_of_its_submitter(
    harness: Harness, store: TinyJobStore, member: Member
) -> None:
    lines = started(harness, store, UID)
    assert isinstance(lines, list)
    assert lines[:2] == [str(UID), str(member.gid)]
    assert set(map(int, lines[2].split())) == {member.gid, member.shared_gid}
    assert lines[3].split() == ["NoNewPrivs:", "1"]


def test_containers_of_root_run_as_root(harness: Harness, store: TinyJobStore) -> None:
    lines = started(harness, store, 0)
    assert isinstance(lines, list)
    assert lines[:2] == ["0", "0"]
    assert set(map(int, lines[2].split())) == {0, *os.getgroups()}


def test_a_member_may_choose_only_own_groups(harness: Harness, store: TinyJobStore, member: Member) -> None:
    lines = started(harness, store, UID, user=f"{UID}:{member.shared}", group_add=(str(member.gid),))
    assert isinstance(lines, list)
    assert lines[:2] == [str(UID), str(member.shared_gid)]
    assert set(map(int, lines[2].split())) == {member.gid, member.shared_gid}


@pytest.mark.parametrize("options", [{"user": "0"}, {"user": "root"}, {"user": f"{UID}:0"}, {"group_add": ("0",)}])
def test_a_member_becomes_no_other_user(harness: Harness, store: TinyJobStore, options: dict[str, Any]) -> None:
    fault = started(harness, store, UID, **options)
    assert isinstance(fault, RuntimeFault)
    assert fault.cause.code is CauseCode.BAD_SPEC
    assert "--user" in fault.cause.text or "--group-add" in fault.cause.text
    assert harness.open().containers() == ()
