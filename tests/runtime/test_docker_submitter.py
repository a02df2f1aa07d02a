"""Containers under the account of their submitter, as in every shared queue, on a real engine."""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.errors import CauseCode, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.settings import AdmissionSettings, PolicySettings, RuntimeSettings, Settings
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.tick.start_protocol import start_attempt
from gputui.runtime.docker.runtime import DockerRuntime
from gputui.store import TinyJobStore
from tests.accounts import accounts
from tests.cases import cases
from tests.factories import FakeClock
from tests.runtime.contract import STORE, Harness, output, shell
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = [pytest.mark.docker, pytest.mark.needs("root")]

UID = 20_000 + os.getpid() % 30_000
"""Uid of a test user, different in each process, so that parallel runs do not conflict."""
SHOWN = shell("id -u; id -g; id -G; grep -E 'NoNewPrivs|Cap' /proc/self/status; echo $USER $LOGNAME $HOME")


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
def store(tmp_path: Path) -> Iterator[TinyJobStore]:
    store = TinyJobStore(tmp_path / "state")
    yield store
    store.close()


def started(
    harness: Harness,
    store: TinyJobStore,
    uid: int,
    *,
    command: tuple[str, ...] = SHOWN,
    site: Settings | None = None,
    **options: Any,
) -> list[str] | RuntimeFault:
    """Return the output of a container of that submitter, or the fault of its start."""
    site = site or Settings()
    runtime = harness.open()
    spec = JobSpec(image=IMAGE, command=command, options=ContainerOptions(**options))
    launch = harness.launch(SHOWN)
    launch = type(launch)(STORE, launch.job_id, 1, spec, (), submitter=uid)
    permit = partial(UserPermissions(Path("/nowhere"), site).permitted, runtime.root_directory)
    fault = start_attempt(store, runtime, launch, FakeClock(), site, permit)
    if fault is not None:
        return fault
    harness.ended(runtime, launch.name)
    with tempfile.TemporaryDirectory() as folder:
        return output(runtime, launch.name, Path(folder) / "log").decode().splitlines()


def test_users_of_containers(harness: Harness, store: TinyJobStore, member: Member) -> None:
    # a container has the user and the groups of its submitter
    lines = started(harness, store, UID)
    assert isinstance(lines, list)
    assert lines[:2] == [str(UID), str(member.gid)]
    assert set(map(int, lines[2].split())) == {member.gid, member.shared_gid}
    status = dict(line.split() for line in lines[3:-1])
    assert status.pop("NoNewPrivs:") == "1"
    assert len(status) == 5
    assert {int(word, 16) for word in status.values()} == {0}
    name = pwd.getpwuid(UID).pw_name
    assert lines[-1] == f"{name} {name} /tmp"
    # an operator may name another user
    policy = PolicySettings(operators=(str(UID),))
    site = Settings(policy=policy)
    own = started(harness, store, UID, site=site)
    chosen = started(harness, store, UID, site=site, user="0", cap_add=("SYS_PTRACE",))
    assert isinstance(own, list)
    assert isinstance(chosen, list)
    assert (own[0], own[6].split()) == (str(UID), ["CapBnd:", "0" * 16])
    assert chosen[0] == "0"
    assert int(chosen[6].split()[1], 16) & 1 << 19
    # containers of root run as root
    lines = started(harness, store, 0)
    assert isinstance(lines, list)
    assert lines[:2] == ["0", "0"]
    assert set(map(int, lines[2].split())) == {0, *os.getgroups()}
    # a member may choose only own groups
    lines = started(harness, store, UID, user=f"{UID}:{member.shared}", group_add=(str(member.gid),))
    assert isinstance(lines, list)
    assert lines[:2] == [str(UID), str(member.shared_gid)]
    assert set(map(int, lines[2].split())) == {member.gid, member.shared_gid}


def test_a_site_may_run_containers_as_their_image_says(harness: Harness, store: TinyJobStore) -> None:
    site = Settings(policy=PolicySettings(operators=(str(UID),)), runtime=RuntimeSettings(run_as_submitter=False))
    lines = started(harness, store, UID, site=site)
    assert isinstance(lines, list)
    assert lines[0] == "0"


def test_a_container_makes_no_file_that_gives_its_user_more_rights(
    harness: Harness, store: TinyJobStore, member: Member
) -> None:
    """A setuid file of root on a mount would make everybody root who runs it."""
    with tempfile.TemporaryDirectory(prefix="gputui-mounts-", dir="/tmp") as place:
        os.chown(place, UID, member.gid)
        site = Settings(admission=AdmissionSettings(mounts=(place,)))
        script = shell("cp /bin/busybox /r/sh && chmod 6755 /r/sh && ! chown 0:0 /r/sh 2>&1 && stat -c %u /r/sh")
        lines = started(harness, store, UID, command=script, site=site, volumes=(f"{place}:/r",))
        assert isinstance(lines, list)
        assert lines[-1] == str(UID)
        assert (Path(place) / "sh").stat().st_uid == UID


@cases("options", [{"user": "0"}, {"user": "root"}, {"user": f"{UID}:0"}, {"group_add": ("0",)}])
def test_a_member_becomes_no_other_user(harness: Harness, store: TinyJobStore, options: dict[str, Any]) -> None:
    fault = started(harness, store, UID, **options)
    assert isinstance(fault, RuntimeFault)
    assert fault.cause.code is CauseCode.BAD_SPEC
    assert "--user" in fault.cause.text or "--group-add" in fault.cause.text
    assert harness.open().containers() == ()
