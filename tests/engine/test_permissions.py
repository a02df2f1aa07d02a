"""Options of docker run that a site forbids: refused when submitted, and again when a job starts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import Launch
from gputui.domain.errors import CauseCode, GputuiError, InputError, InputErrors, RuntimeFault
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


THERE = {"/data": "/mnt/disk", "/data/set": "/mnt/disk/set", "/data/out": "/etc", "/data/sub": "/mnt/disk/sub"}
"""Paths of another machine, and where its links lead."""


def over_ssh(path: str) -> str:
    return THERE.get(path, path)


def over_tcp(path: str) -> str:
    raise OSError(errno.EOPNOTSUPP, "links of gpu1 are followed over ssh alone", path)


@cases(
    ("follow", "source", "mounted"),
    [
        (over_ssh, "/data/set", "/mnt/disk/set"),
        (over_ssh, "/data", "/mnt/disk"),
        (over_ssh, "/data/out", ""),
        (over_tcp, "/data/", "/data"),
        (over_tcp, "/data/set", ""),
        (over_tcp, "/data/sub", ""),  # listed, but below another one
    ],
)
def test_links_of_an_engine_elsewhere_are_those_of_its_machine(
    tmp_path: Path, follow: Callable[[str], str], source: str, mounted: str
) -> None:
    """Where they cannot be followed, what is mounted is a place where no job can make one."""
    listed = ("/data", "/data/", "/data/sub")
    permissions = UserPermissions(tmp_path, settings(mounts=listed), lambda: "ssh://gpu1/run/d.sock")
    asked = asking(volumes=(f"{source}:/d",))
    permissions.check(asked, 0)
    with ExitStack() as until:
        launch = Launch("store", 1, 1, asked, (), submitter=0)
        if mounted:
            found = permissions.permitted(lambda: "/", launch, until, follow)
            assert found.spec.options.volumes == (f"{mounted}:/d",)
        else:
            with pytest.raises(RuntimeFault, match=r"outside the dir|ssh alone"):
                permissions.permitted(lambda: "/", launch, until, follow)
    with pytest.raises(InputError, match="outside"):
        permissions.check(asking(volumes=("/data/../etc:/e",)), 0)


def test_what_was_checked_is_what_is_mounted(tmp_path: Path) -> None:
    """A link that is changed meanwhile leads nowhere else."""
    answers = iter(["/data", "/data/set", "/etc"])
    permissions = UserPermissions(tmp_path, settings(mounts=("/data",)))
    with ExitStack() as until:
        launch = Launch("store", 1, 1, asking(volumes=("/data/set:/d",)), (), submitter=0)
        found = permissions.permitted(lambda: "/", launch, until, lambda path: next(answers))
    assert found.spec.options.volumes == ("/data/set:/d",)


@cases(
    ("url", "sources", "held"),
    [
        ("", ("/run", "/var/run/docker.sock", "/run/containerd", "/run/docker", "/run/podman/podman.sock", "/"), True),
        ("", ("/run/user/1000", "/var/run/user/1000/podman", "/run/user/7/docker.sock", "/run/gputui"), True),
        ("", ("/run/lock", "/run/user/1000/pulse", "/data"), False),
        ("unix:///srv/e/d.sock", ("/srv/e", "/srv/e/d.sock"), True),
        ("ssh://gpu1:22/srv/e/d.sock", ("/srv", "/srv/e/d.sock", "/var/run"), True),
        ("ssh://gpu1/srv/of%20e/d.sock", ("/srv/of e",), True),
        ("ssh://gpu1", ("/srv", "/data"), False),
        ("tcp://gpu1:2376", ("/run/docker.sock",), True),
    ],
)
def test_sockets_of_engines_are_guarded_at_every_usual_place(
    tmp_path: Path, url: str, sources: tuple[str, ...], held: bool
) -> None:
    permissions = UserPermissions(tmp_path, settings(options={"docker_socket": False}), lambda: url)
    for source in sources:
        with pytest.raises(InputError, match="holds an engine's socket") if held else nullcontext():
            permissions.check(asking(volumes=(f"{source}:/x",)), 0)


def test_a_link_to_the_engines_socket_is_that_socket(tmp_path: Path) -> None:
    (tmp_path / "d.sock").touch()
    (tmp_path / "link").symlink_to("d.sock")
    site = settings(options={"docker_socket": False})
    for url, source in (("d.sock", "link"), ("link", "d.sock")):
        permissions = UserPermissions(tmp_path, site, lambda url=url: f"unix://{tmp_path}/{url}")  # type: ignore[misc]
        with pytest.raises(InputError, match="holds an engine's socket"):
            permissions.check(asking(mounts=(f"type=bind,src={tmp_path}/{source},dst=/x",)), 0)
    there = UserPermissions(tmp_path, site, lambda: "ssh://gpu1/data/set")
    launch = Launch("store", 1, 1, asking(volumes=("/mnt/disk:/d",)), (), submitter=0)
    with ExitStack() as until, pytest.raises(RuntimeFault, match="holds an engine's socket"):
        there.permitted(lambda: "/", launch, until, over_ssh)


@cases(
    ("asked", "words"),
    [({"image": None}, "host jobs are processes of this machine"), ({"volumes": True}, "files of gpu1")],
)
def test_what_a_machine_elsewhere_cannot_do_is_refused_when_it_is_submitted(
    tmp_path: Path, asked: dict[str, Any], words: str
) -> None:
    job = spec(image=None, command=("true",)) if "image" in asked else asking(volumes=(f"{tmp_path}:/d",))
    uid = 0 if "image" in asked else MEMBER
    UserPermissions(tmp_path, settings()).check(job, 0)
    with pytest.raises(GputuiError, match=words):
        UserPermissions(tmp_path, settings(), jobs_machine=lambda: "gpu1").check(job, uid)


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
