"""Options of docker run that a site forbids: refused when submitted, and again when a job starts."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import Launch
from gputui.domain.errors import CauseCode, InputError, InputErrors, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, JobSpec, Submission
from gputui.domain.settings import AllowSettings, PolicySettings, RuntimeSettings, Settings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.permissions import UserPermissions
from tests.cases import cases
from tests.engine.world import World
from tests.factories import ACTOR, spec

MEMBER = 61_234
"""Unused uid."""


def settings(operators: tuple[str, ...] = (), **allow: Any) -> Settings:
    return Settings(policy=PolicySettings(allow=AllowSettings(**allow), operators=operators))


def at_start(permissions: UserPermissions, asked: JobSpec, uid: int | None) -> JobSpec:
    """Return the spec that the scheduler starts."""
    with ExitStack() as until:
        return permissions.permitted(lambda: "/", Launch("store", 1, 1, asked, (), submitter=uid), until).spec


def asking(**options: Any) -> JobSpec:
    return spec(options=ContainerOptions(**options))


GUARDED: list[dict[str, Any]] = [
    {"privileged": True},
    {"device": ("/dev/fuse",)},
    {"device_cgroup_rule": ("c 10:* rwm",)},
    {"cap_add": ("SYS_ADMIN",)},
    {"security_opt": ("seccomp=unconfined",)},
    {"volumes_from": ("other",)},
    {"ulimits": ("nofile=1024", "rtprio=99")},
    {"ulimits": ("NICE=40",)},
    {"pid": "host"},
    {"pid": "container:other"},
    {"ipc": "host"},
    {"uts": "host"},
    {"userns": "host"},
    {"cgroupns": "host"},
    {"network": "host"},
    {"network": "name=host"},
    {"volumes": ("/var/run/docker.sock:/s",)},
    {"volumes": ("/run:/r",)},
    {"volumes": ("/etc:/e",)},
    {"mounts": ("type=bind,src=/,dst=/host",)},
    {"mounts": ("type=volume,src=v,dst=/v,volume-driver=plugin",)},
    {"volume_driver": "plugin", "volumes": ("v:/v",)},
    {"volumes": ("data:/data",)},
    {"mounts": ("src=v,dst=/v",)},
    {"mounts": ("type=volume,src=v,dst=/v,volume-opt=type=none,volume-opt=o=bind,volume-opt=device=/etc",)},
]
HARMLESS: list[dict[str, Any]] = [
    {"security_opt": ("no-new-privileges",), "cap_drop": ("ALL",), "read_only": True},
    {"ulimits": ("memlock=-1", "nofile=65536:65536", "core=0")},
    {"network": "lab", "ipc": "private", "publish": ("auto:8888",), "volumes": ("/scratch",)},
    {"mounts": ("type=tmpfs,dst=/t", "type=volume,dst=/v,volume-driver=local"), "volume_driver": "local"},
]


@cases("options", [*GUARDED, *HARMLESS])
def test_operators_may_use_every_option_that_the_site_does_not_forbid(tmp_path: Path, options: dict[str, Any]) -> None:
    tmp_path.chmod(0o700)
    permissions = UserPermissions(tmp_path, settings())
    permissions.check(asking(**options), os.geteuid())
    assert at_start(permissions, asking(**options), None) == asking(**options)


@cases("name", [str(MEMBER), "root"])
def test_operators_are_named_by_the_site(tmp_path: Path, name: str) -> None:
    permissions = UserPermissions(tmp_path, settings(operators=("no-such-user", "@no-such-group", name)))
    assert permissions.is_operator(MEMBER) is (name != "root")


def test_groups_and_switches(tmp_path: Path) -> None:
    # a group may be named as operators
    assert UserPermissions(tmp_path, settings(operators=("@root",))).is_operator(0)
    assert not UserPermissions(tmp_path, settings(operators=("@root",))).is_operator(MEMBER)
    # a switch forbids an option to all
    forbidden = UserPermissions(tmp_path, settings(options={"privileged": False, "publish": False}))
    with pytest.raises(InputErrors) as told:
        forbidden.check(asking(privileged=True, publish=("80:80",), cap_add=("SYS_PTRACE",)), 0)
    assert {error.where for error in told.value.errors} == {"--privileged", "--publish"}


def test_links_do_not_lead_mounts_out_of_the_listed_directories(tmp_path: Path) -> None:
    data, own = tmp_path / "data", tmp_path / "state"
    (data / "set").mkdir(parents=True)
    own.mkdir()
    (data / "out").symlink_to("/etc")
    (data / "in").symlink_to(data / "set")
    permissions = UserPermissions(own, settings(mounts=(str(data),)))
    good = asking(volumes=(f"{data}/set:/a:ro", f"{data}/in:/b"), mounts=(f"type=bind,src={data}/in/new,dst=/c",))
    permissions.check(good, 0)
    options = at_start(permissions, good, 0).options
    assert options.volumes == (f"{data}/set:/a:ro", f"{data}/set:/b")
    assert options.mounts == (f"type=bind,dst=/c,source={data}/set/new",)
    for source in (f"{data}/out", f"{data}/../state", f"{data}x", str(tmp_path), "/"):
        with pytest.raises(InputError):
            permissions.check(asking(volumes=(f"{source}:/x",)), 0)
        with pytest.raises(RuntimeFault):
            at_start(permissions, asking(mounts=(f"type=bind,source={source},target=/x",)), 0)
    with pytest.raises(RuntimeFault, match="outside"):
        at_start(UserPermissions(own, settings(mounts=(str(data),))), asking(volumes=("/etc:/e",)), 0)


def test_a_mount_whose_link_cannot_be_read_is_refused_where_mounts_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /proc/1/root, which only the engine may follow."""
    real = os.path.realpath

    def realpath(path: Path | str) -> str:
        if path == "/proc/1/root":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return str(real(path))

    monkeypatch.setattr(os.path, "realpath", realpath)
    asked = asking(volumes=("/proc/1/root:/r",))
    for limits in ({"mounts": ("/data",)}, {"options": {"docker_socket": False}}):
        permissions = UserPermissions(tmp_path, settings(**limits))
        with pytest.raises(InputError, match=r"/proc/1/root cannot be checked: .*Permission denied"):
            permissions.check(asked, 0)
        with pytest.raises(RuntimeFault, match="cannot be checked"):
            at_start(permissions, asked, 0)
    free = UserPermissions(tmp_path, settings())
    free.check(asked, 0)
    assert at_start(free, asked, 0) == asked, "docker run would mount it too"


def test_volumes_and_unreadable_options(tmp_path: Path) -> None:
    # named volumes count as mounts
    limited = UserPermissions(tmp_path, settings(named_volumes=("models",)))
    limited.check(asking(volumes=("models:/m:ro",), mounts=("type=volume,source=models,target=/n",)), 0)
    with pytest.raises(InputError, match="the volume 'pgdata' is not one that jobs may"):
        limited.check(asking(volumes=("pgdata:/m",)), 0)
    # an unreadable option is refused
    with pytest.raises(RuntimeFault) as fault:
        at_start(UserPermissions(tmp_path, settings(named_volumes=())), asking(mounts=("type=",)), 0)
    assert fault.value.cause.code is CauseCode.NOT_ALLOWED


def test_a_job_written_past_the_commands_fails_for_good_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: JobSpec, submitted_uid: int | None = None) -> int:
        raise InputError("nothing proves who submitted it")

    of_image = replace(settings(), runtime=RuntimeSettings(run_as_submitter=False))
    world = World(tmp_path / "state", settings=of_image)
    monkeypatch.setattr(world.store, "run_as", refuse)
    job_id = world.submit(1, options=ContainerOptions(privileged=True), retries=3)
    world.tick(4)
    job = world.job(job_id)
    assert (job.state, len(job.attempts)) == (JobState.FAILED, 1)
    assert job.cause is not None
    assert job.cause.code is CauseCode.BAD_SPEC
    assert "nothing proves" in job.cause.text
    assert not world.docker.running()


def test_permissions_are_checked_for_every_kind_of_request(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    permissions = UserPermissions(tmp_path, settings(options={"privileged": False}))
    operator = Actions(world.store, world.clock, replace(ACTOR, uid=0), permissions=permissions)
    asked = Submission(asking(privileged=True))
    for call in (operator.act, operator.foresee):
        with pytest.raises(InputError, match="--privileged"):
            call(SubmitJobs((asked,)))
