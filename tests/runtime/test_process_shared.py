"""Attempts in a directory that others may write, and who plant, swap and move files."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputui.domain.container import ContainerState
from gputui.domain.errors import RuntimeFault
from gputui.runtime.host_processes import boot_id, read_stat
from gputui.runtime.process import wrapper
from gputui.runtime.process.attempt_folder import AttemptFolder, Manifest
from gputui.runtime.process.wrapper import STATE_SIZE, sealed
from tests.cases import cases
from tests.runtime.contract import PATIENCE, SLEEP, STORE, Harness, record
from tests.runtime.test_process import process_harness
from tests.waiting import until

MEMBER, OTHER = 54321, 54322
NAME = f"gputui-{STORE}-99-1"
as_root = pytest.mark.needs("root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "attempts"


@pytest.fixture
def harness(root: Path) -> Iterator[Harness]:
    harness = process_harness(root.parent)
    yield harness
    harness.clean()


@contextmanager
def bystander(uid: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a shell of that user in its own session, which belongs to no attempt and ends with its child."""
    script = "sleep 1000 & wait"
    with subprocess.Popen(["/bin/sh", "-c", script], user=uid, start_new_session=True, cwd="/") as process:
        until(lambda: len(session_of(process.pid)) == 2, "it has a child")
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def session_of(pid: int) -> list[int]:
    return [each for each in pids() if (found := read_stat(each)) is not None and found.session == pid]


def pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


@contextmanager
def forged(root: Path, owner: int, mode: int, keeper: int) -> Iterator[None]:
    """Create a directory that claims that an attempt runs, with that process as its keeper."""
    found = read_stat(keeper)
    assert found is not None
    place = root / NAME
    place.mkdir(parents=True)
    record = sealed(b"%d %d %s %d" % (keeper, found.ticks, boot_id().encode(), 1))
    (place / "state").write_bytes(record.ljust(STATE_SIZE))
    manifest = Manifest((), "", "x", cgroups=("/sys/fs/cgroup/of/others",))
    (place / "launch.json").write_bytes(msgspec.json.encode(manifest))
    (place / "claim").touch()
    os.chown(place, owner, -1)
    place.chmod(mode)
    try:
        with (place / "claim").open() as claim:
            fcntl.flock(claim, fcntl.LOCK_EX)
            yield
    finally:
        shutil.rmtree(place)


@as_root
@pytest.mark.parametrize(
    ("owner", "mode", "victim", "is_ended"),
    [
        pytest.param(0, 0o2770, 0, False, id="made by root for the group, and moved here"),
        pytest.param(0, 0o2770, MEMBER, False, id="the same against a member"),
        pytest.param(MEMBER, 0o700, 0, False, id="a member against root"),
        pytest.param(MEMBER, 0o700, OTHER, False, id="a member against another"),
        pytest.param(MEMBER, 0o2770, MEMBER, False, id="made by a member for the group"),
        pytest.param(MEMBER, 0o700, MEMBER, True, id="a member's own"),
        pytest.param(0, 0o2750, OTHER, True, id="root's own"),
    ],
)
def test_forged_records_reach_no_processes_of_others(
    harness: Harness, root: Path, owner: int, mode: int, victim: int, is_ended: bool
) -> None:
    with bystander(victim) as keeper, forged(root, owner, mode, keeper.pid):
        runtime = harness.open()
        assert record(runtime, NAME).state is ContainerState.RUNNING
        assert bool(AttemptFolder(root / NAME).cgroups()) == (mode == 0o2750)
        runtime.kill(NAME)
        if is_ended:
            keeper.wait(PATIENCE)
        else:
            assert len(session_of(keeper.pid)) == 2


@cases("after", ["mkdir", "fsync"])
def test_folders_under_construction_cannot_be_redirected(
    harness: Harness, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """Members may replace a file that is being made in their own directory by a link."""
    victim = tmp_path / "victim"
    victim.mkdir()
    victim.chmod(0o755)
    real = getattr(os, after)

    def attacked(*args: Any, **options: Any) -> None:
        real(*args, **options)
        for each in root.glob(".*.new"):
            if not each.is_symlink():
                each.rename(tmp_path / "taken")
                each.symlink_to(victim)

    with monkeypatch.context() as patch:
        patch.setattr(os, after, attacked)
        with suppress(RuntimeFault):
            harness.open().create(harness.launch(SLEEP))
    assert (tmp_path / "taken").is_dir(), "nothing was attacked"
    assert list(victim.iterdir()) == []
    assert victim.stat().st_mode & 0o777 == 0o755
    for each in root.iterdir():
        each.unlink()


def test_attempts_are_not_found_through_a_link(harness: Harness, root: Path) -> None:
    """The link may lead to the attempts of another queue."""
    runtime = harness.open()
    created = runtime.create(harness.launch(("true",)))
    root.rename(root.with_name("moved"))
    root.symlink_to(root.with_name("moved"))
    later = harness.open()
    assert later.containers() == ()
    assert later.inspect(created.id) is None
    command = [sys.executable, "-I", "-S", wrapper.__file__, str(root / created.id)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "NotADirectoryError" in done.stderr) == (1, True)


@as_root
@cases("plant", ["link", "fifo", "numbers"])
def test_planted_files_hide_no_other_attempt(harness: Harness, root: Path, plant: str) -> None:
    runtime = harness.open()
    created = runtime.create(harness.launch(SLEEP))
    place = root / NAME
    place.mkdir()
    if plant == "link":
        (place / "state").symlink_to("/etc/passwd")
    elif plant == "fifo":
        os.mkfifo(place / "state")
    else:
        huge = b"9" * 400
        (place / "state").write_bytes(sealed(b"1 1 x " + huge) + sealed(huge + b" " + huge + b" 1"))
        (place / "claim").touch()
    os.chown(place, MEMBER, -1)
    assert created.id in [each.id for each in runtime.containers()]
    shutil.rmtree(place)


@as_root
def test_an_attempt_that_the_leader_cannot_read_counts_as_running(harness: Harness, root: Path) -> None:
    """Count it as running, so that it is not run again and the others are found."""
    open_to_all(root)
    (root / NAME).mkdir(mode=0o700)
    listed = subprocess.run(
        [sys.executable, "-c", LIST, str(root.parent), STORE, NAME], cwd="/", capture_output=True, text=True
    )
    assert listed.stdout.splitlines() == ["RUNNING", "None"], listed.stderr
    (root / NAME).rmdir()


LIST = """
import os, sys
from pathlib import Path
from gputui.runtime.process.attempt_folder import AttemptIndex
import pwd
os.setgroups([]); os.setgid(54321); os.setuid(54321)
state, store, name = sys.argv[1:]
index = AttemptIndex(store, Path(state, "attempts"))
print(index.find(name).state.name)
print(index.find(name + "1"))
"""


def open_to_all(root: Path) -> None:
    """Give other users access to the state directory, as a group has it."""
    for each in (root.parent.parent, *root.parent.parent.parents):
        if each.stat().st_uid == 0 and str(each).startswith("/tmp/"):
            each.chmod(0o755)
    root.mkdir(parents=True, exist_ok=True)
    root.parent.chmod(0o2770)
    os.chown(root.parent, -1, MEMBER)
    os.chown(root, -1, MEMBER)
    root.chmod(0o3770)
