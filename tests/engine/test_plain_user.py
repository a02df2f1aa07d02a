"""Plain users of a queue that one account owns: the kernel says what each may open, and what runs is that account."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.container import Box, Launch
from gputui.domain.errors import AccessError, CauseCode, RuntimeFault
from gputui.domain.job_spec import ContainerOptions, JobSpec
from gputui.domain.settings import AdmissionSettings, PolicySettings, Settings
from gputui.engine.actions.permissions import FileAccount, UserPermissions, as_account, file_account, open_source
from tests.cases import cases
from tests.factories import spec

UID, OTHER, GROUP = 61_234, 61_235, 61_236
"""Unused ids."""
MEMBER = FileAccount(UID, UID, (UID, GROUP), "member")
pytestmark = pytest.mark.needs("root")


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory of root in which the user may not write."""
    with tempfile.TemporaryDirectory(prefix="gputui-plain-", dir="/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        (path / "state").mkdir(mode=0o700)
        yield path


def made(path: Path, uid: int, mode: int, gid: int = 0) -> Path:
    path.mkdir()
    os.chown(path, uid, gid)
    path.chmod(mode)
    return path


def permissions(place: Path, **admission: Any) -> UserPermissions:
    return UserPermissions(place / "state", Settings(admission=AdmissionSettings(**admission)))


def asking(**options: Any) -> JobSpec:
    return spec(options=ContainerOptions(**options))


def admitted(rules: UserPermissions, asked: JobSpec, until: ExitStack) -> Launch:
    return rules.permitted(lambda: "/", Launch("store", 1, 1, asked, (), submitter=UID), until)


def test_a_thread_opens_files_with_the_rights_of_an_account_and_the_others_do_not(place: Path) -> None:
    closed, shared = made(place / "closed", OTHER, 0o700), made(place / "shared", 0, 0o770, GROUP)
    here = threading.get_ident()

    def write() -> None:
        assert threading.get_ident() != here
        (shared / "x").touch()

    before = Path("/proc/thread-self/status").read_text().splitlines()
    with pytest.raises(PermissionError):
        as_account(MEMBER, lambda: os.listdir(closed))  # noqa: PTH208 - a Path lists lazily
    as_account(MEMBER, write)
    assert (shared / "x").stat().st_uid == UID
    after = Path("/proc/thread-self/status").read_text().splitlines()
    ids = ("Uid", "Gid", "Groups", "CapEff")
    assert [line for line in before if line.startswith(ids)] == [line for line in after if line.startswith(ids)]
    assert not list(closed.iterdir())


def test_only_root_opens_files_as_another(place: Path) -> None:
    code = (
        "from gputui.engine.actions.permissions import *\n"
        "try: as_account(FileAccount(61235, 61235, (61235,), 'x'), lambda: print('opened'))\n"
        "except PermissionError as error: print(error)"
    )
    words = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert "only root" in done.stdout, done


def test_each_step_of_a_path_needs_the_users_own_rights(place: Path) -> None:
    closed = made(place / "closed", OTHER, 0o700)
    inner = made(closed / "inner", OTHER, 0o777)
    group = made(place / "group", OTHER, 0o750, GROUP)
    with ExitStack() as until:
        assert open_source("/", str(inner), until).path == str(inner), "root may"
        for path in (closed, inner):
            with pytest.raises(PermissionError):
                open_source("/", str(path), until, MEMBER)
        found = open_source("/", str(group), until, MEMBER)
        assert (found.path, found.is_writable) == (str(group), False), "by a group, which may only read"
        assert open_source("/", str(made(place / "own", UID, 0o700)), until, MEMBER).is_writable


def test_neither_pipes_nor_sockets_nor_devices_are_mounted(place: Path) -> None:
    os.mkfifo(place / "pipe")
    with ExitStack() as until:
        for path in (str(place / "pipe"), "/dev/null"):
            with pytest.raises(OSError, match="neither a file nor a directory"):
                open_source("/", path, until, MEMBER)


@pytest.mark.needs("mount")
def test_a_file_system_that_a_user_serves_is_not_even_asked(place: Path) -> None:
    """The server of such a file system may never answer: here there is none."""
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    served = made(place / "served", UID, 0o755)
    fd = os.open("/dev/fuse", os.O_RDWR)
    try:
        options = f"fd={fd},rootmode=40000,user_id={UID},group_id={UID},allow_other"
        words = ["mount", "-i", "-t", "fuse", "-o", options, "test", str(served)]
        mounted = subprocess.run(words, pass_fds=(fd,), capture_output=True, text=True, check=False)
        if mounted.returncode:
            pytest.skip(f"FUSE cannot be mounted: {mounted.stderr}")
        try:
            with ExitStack() as until, pytest.raises(OSError, match="a user serves"):
                open_source("/", f"{served}/data", until, MEMBER)
        finally:
            subprocess.run(["umount", "-l", str(served)], check=True)
    finally:
        os.close(fd)


def test_what_a_user_may_only_read_is_mounted_read_only(place: Path) -> None:
    made(place / "theirs", OTHER, 0o755)
    own = made(place / "own", UID, 0o755)
    (place / "file").write_text("x")
    (place / "file").chmod(0o644)
    rules = permissions(place, mounts=(str(place / "own"), str(place / "theirs"), str(place / "file")))
    asked = asking(
        volumes=(f"{own}:/a", f"{place}/theirs:/b", f"{place}/file:/c", f"{own}:/d:ro"),
        mounts=(f"type=bind,src={place}/theirs,dst=/e", f"type=bind,src={place}/file,dst=/f"),
    )
    rules.check(asked, UID)
    with ExitStack() as until:
        launch = admitted(rules, asked, until)
        assert [(held.target, held.is_readonly) for held in launch.held] == [
            ("/a", False),
            ("/b", True),
            ("/d", True),
            ("/e", True),
        ]
        assert launch.spec.options.volumes == (f"{place}/file:/c:ro",)
        assert launch.spec.options.mounts == (f"type=bind,dst=/f,source={place}/file,readonly",)
        assert all(Path(held.descriptor).samefile(held.path) for held in launch.held)


def test_links_of_the_operator_are_followed_and_links_of_users_are_not(place: Path) -> None:
    disk = made(place / "disk", 0, 0o1777)
    (place / "scratch").symlink_to(disk)
    name = file_account(UID).name
    own = made(disk / name, UID, 0o755)
    other = made(place / "other", 0, 0o755)
    rules = permissions(place, mounts=(f"{place}/scratch/{{user}}",))
    rules.check(asking(volumes=(f"{place}/scratch/{name}:/a", f"{own}:/b")), UID)
    own.rmdir()
    own.symlink_to(other)
    for source in (own, other, f"{place}/scratch/{name}"):
        with pytest.raises(AccessError, match="outside") as told:
            rules.check(asking(volumes=(f"{source}:/a",)), UID)
        assert (told.value.rule, told.value.where) == ("admission-volume", "--volume")


def test_launches_of_plain_users(place: Path) -> None:
    # a plain users launch is in a box
    with ExitStack() as until:
        launch = admitted(permissions(place, pids=10, memory=1000), asking(), until)
    assert launch.box == Box(10, 1000)
    assert launch.run_as == UID
    with ExitStack() as until:
        operator = UserPermissions(place / "state", Settings(policy=PolicySettings(operators=(str(UID),))))
        assert admitted(operator, asking(privileged=True), until).box is None
    # the start decides whatever was submitted
    for options in ({"privileged": True}, {"volumes": ("/etc:/e",)}, {"mounts": ("no mount",)}, {"cpus": 0.0}):
        asked = asking(**options)
        with pytest.raises(AccessError):
            permissions(place, cpus=2.0).check(asked, UID)
        with ExitStack() as until, pytest.raises(RuntimeFault) as fault:
            admitted(permissions(place, cpus=2.0), asked, until)
        assert fault.value.cause.code is CauseCode.NOT_ALLOWED


def test_what_is_missing_or_refused_is_told(place: Path) -> None:
    # what is missing may be made before the start
    own = made(place / "own", UID, 0o755)
    rules, asked = permissions(place, mounts=(str(own),)), asking(volumes=(f"{own}/later:/a",))
    rules.check(asked, UID)
    with ExitStack() as until, pytest.raises(RuntimeFault, match="later cannot be mounted: no such file"):
        admitted(rules, asked, until)
    # what is missing and never may be mounted is told when it is submitted
    others = made(place / "others", 0, 0o755)
    (own / "out").symlink_to(others)
    (place / "home").symlink_to(own)
    rules = permissions(place, mounts=(str(place / "home"),))
    for missing in ("home/later/a", "own/later"):
        rules.check(asking(volumes=(f"{place}/{missing}:/a",)), UID)
    for missing in ("others/later", "own/out/later/a", "own/later/../../others/later", "nowhere"):
        for options in (
            {"volumes": (f"{place}/{missing}:/a",)},
            {"mounts": (f"type=bind,src={place}/{missing},dst=/a",)},
        ):
            with pytest.raises(AccessError, match="outside the directories that may be mounted"):
                rules.check(asking(**options), UID)
    with pytest.raises(AccessError, match="outside the directories that may be mounted"):
        rules.check(asking(volumes=(f"{own}/later:/a", "/etc:/b")), UID)
    # all that is refused is told at once
    with pytest.raises(AccessError) as told:
        permissions(place).check(asking(privileged=True, pid="host", network="host"), UID)
    assert all(option in str(told.value) for option in ("--privileged", "--pid", "--network"))
    assert told.value.rule == "admission-network"


@cases(
    "options",
    [{"user": "0"}, {"user": "root"}, {"user": f"{UID}:0"}, {"user": "nobody-here"}, {"group_add": ("root",)}],
)
def test_another_user_or_group_is_refused_when_it_is_submitted(place: Path, options: dict[str, Any]) -> None:
    with pytest.raises(AccessError) as told:
        permissions(place).check(asking(**options), UID)
    assert told.value.where in {"--user", "--group-add"}
    permissions(place).check(asking(user=f"{UID}:{UID}", group_add=(str(UID),)), UID)
    permissions(place, root_images=("*",)).check(asking(**options), UID)


def test_nothing_of_the_host_is_for_images_that_run_as_root(place: Path) -> None:
    own = made(place / "own", UID, 0o755)
    asked = asking(volumes=(f"{own}:/a",))
    rules = permissions(place, mounts=(str(own),), root_images=(asked.image or "",))
    with pytest.raises(AccessError, match="may run as root gets no directories"):
        rules.check(asked, UID)
    with ExitStack() as until, pytest.raises(RuntimeFault, match="may run as root gets no directories"):
        admitted(rules, asked, until)
