"""Full disks, refused permissions and file systems that cannot keep a promise."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputui.domain.errors import StoreAccessError, StoreError, StoreFullError
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from gputui.store.files import check_file_system, store_error
from tests.cases import cases
from tests.factories import ACTOR, NOW, job
from tests.store.conftest import SETTINGS

IS_ROOT = os.geteuid() == 0


class Full:
    """Directory on a full disk, which can be given space again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._mounted = IS_ROOT and _mount(directory)
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    @contextmanager
    def full(self, most: int | None = None) -> Iterator[None]:
        """Fill the disk: no byte fits, except in the rest of the current page.

        Where no disk can be mounted, no file may get larger than `most` bytes, by default little more than the largest.
        """
        if self._mounted:
            with (self.directory / "ballast").open("wb", buffering=0) as ballast:
                _fill(ballast.fileno())
            yield
            (self.directory / "ballast").unlink()
        else:
            most = most or max(path.stat().st_size for path in self.directory.rglob("*") if path.is_file()) + 100
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, self._limits[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)

    def close(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", self.directory], check=True)


def _mount(directory: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(directory)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _fill(fd: int) -> None:
    with pytest.raises(OSError, match="No space left"):  # noqa: PT012
        while True:
            os.write(fd, bytes(4096))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Full]:
    """Return a file system of 256 kB if tests may mount one, else a limit on the size of files."""
    directory = tmp_path / "small"
    directory.mkdir(mode=0o700)
    made = Full(directory)
    yield made
    made.close()


def test_a_full_disk_loses_nothing_and_is_usable_again(small: Full) -> None:
    store = TinyJobStore(small.directory / "state")
    store.submit([job(name="first")], actor=ACTOR)
    batch = [job(name="x" * 900)] * 20
    with small.full():
        with pytest.raises(StoreFullError, match="make room"):
            store.submit(batch, actor=ACTOR)
        with pytest.raises(StoreFullError), store.transaction() as transaction:  # noqa: PT012
            for new in batch:
                transaction.add(new)
        assert list(store.jobs()) == [1]
        assert list(TinyJobStore(small.directory / "state").jobs()) == [1]
    assert store.submit([job()], actor=ACTOR) == (2,)
    assert list(TinyJobStore(small.directory / "state").jobs()) == [1, 2]
    assert [entry.target for entry in store.audit_log()] == ["job 1", "job 2"]
    assert store.damage() == ()
    store.close()


def test_a_fold_on_a_full_disk_keeps_the_journal(small: Full) -> None:
    store = TinyJobStore(small.directory / "state")
    store.submit([job(name="y" * 900)] * 20, actor=ACTOR)
    with small.full(most=4096):
        with pytest.raises(StoreFullError):
            store.storage.checkpoint()
        assert not list(small.directory.rglob("*.tmp"))
        assert len(store.jobs()) == 20
    store.storage.checkpoint()
    assert store.submit([job()], actor=ACTOR) == (21,)
    assert len(TinyJobStore(small.directory / "state").jobs()) == 21
    store.close()


def test_acknowledged_changes_survive_a_failed_compaction(tiny: TinyJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreFullError("no space")

    monkeypatch.setattr("gputui.store.storage.FOLD_AT", 0)
    monkeypatch.setattr("gputui.store.storage.write_snapshot", full)
    tiny.submit([job()], actor=ACTOR)
    with tiny.transaction() as transaction:
        transaction.put(transaction.get(1).evolve(priority=60))
    assert tiny.get(1).priority == 60
    monkeypatch.undo()
    tiny.storage.checkpoint()
    assert tiny.get(1).priority == 60


@cases("call", ["submit", "transaction"])
@cases("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_line_that_cannot_be_synced_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    directory = tmp_path / "state"
    tiny = TinyJobStore(directory, SETTINGS)

    def broken(_: int) -> None:
        raise OSError(code, os.strerror(code))

    tiny.submit([job()], actor=ACTOR)
    before = (directory / "queue.json.wal.1").read_bytes()
    monkeypatch.setattr(os, "fdatasync", broken)

    def write() -> None:
        if call == "submit":
            tiny.submit([job()], actor=ACTOR)
        else:
            with tiny.transaction() as transaction:
                transaction.add(job())

    with pytest.raises(StoreError) as caught:
        write()
    assert isinstance(caught.value, StoreFullError) == (code != errno.EIO)
    assert (directory / "queue.json.wal.1").read_bytes() == before
    monkeypatch.undo()
    write()
    assert list(tiny.jobs()) == [1, 2]


def test_a_partial_write_is_continued(tiny: TinyJobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:7])))
    tiny.submit([job(name="whole")], actor=ACTOR)
    monkeypatch.undo()
    assert tiny.get(1).spec.name == "whole"


@cases("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_refusals_are_access_errors(code: int) -> None:
    assert isinstance(store_error(OSError(code, os.strerror(code)), Path("/x")), StoreAccessError)


def test_inaccessible_files_are_an_access_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TinyJobStore(directory).close()
    real = Path.stat

    def refused(self: Path, *arguments: object, **named: object) -> os.stat_result:
        if self == directory / "queue.json":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(self, *arguments, **named)  # type: ignore[arg-type]

    store = TinyJobStore(directory)
    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(StoreAccessError, match="permission denied"):
        store.jobs()
    with pytest.raises(StoreAccessError, match="permission denied"):
        store.submit([job()], actor=ACTOR)
    with pytest.raises(StoreAccessError, match="permission denied"):
        store.version()
    monkeypatch.undo()
    store.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="/proc/gputui-state"):
        TinyJobStore(Path("/proc/gputui-state"))
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="file"):
            TinyJobStore(path)


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in [directory, *directory.iterdir()]}


@pytest.fixture
def _umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_umask")
@cases("umask", [0o000, 0o077, 0o027])
def test_files_belong_to_their_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    directory = tmp_path / "state"
    os.umask(umask)
    store = TinyJobStore(directory)
    store.submit([job()] * 2, actor=ACTOR)
    with store.transaction() as transaction:
        transaction.put(transaction.get(1).evolve(ended_at=NOW.replace(year=2025), state=JobState.FAILED))
    store.maintain(NOW)
    store.storage.checkpoint()
    store.submit([job()], actor=ACTOR)
    store.close()
    found = modes(directory)
    assert found.pop("state") == 0o700
    assert set(found.values()) == {0o600}
    assert len(found) == 5


@cases("mode", [0o755, 0o711, 0o700])
@cases("others", [True, False])
def test_an_existing_directory_keeps_its_mode(tmp_path: Path, mode: int, others: bool) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    directory.chmod(mode)
    if others:
        (directory / "thesis.tex").write_text("")
    for _ in range(3):
        store = TinyJobStore(directory)
        store.submit([job()], actor=ACTOR)
        store.close()
        found = modes(directory)
        assert found["state"] == mode
    files = {name: each for name, each in found.items() if name.startswith("queue.json")}
    assert set(files.values()) == {0o600}


def test_the_names_of_a_new_directory_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    real = os.fsync

    def sync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    TinyJobStore(tmp_path / "a" / "b" / "state").close()
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "state"} <= set(synced)


def test_a_line_that_cannot_be_removed_is_not_reported_as_refused(
    tiny: TinyJobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    tiny.submit([job()], actor=ACTOR)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", broken)
        patched.setattr(os, "ftruncate", broken)
        with pytest.raises(StoreError, match=r"it is unknown whether this was stored.*gputui queue"):
            tiny.submit([job()], actor=ACTOR)
    assert list(tiny.jobs()) == [1, 2]
    assert tiny.submit([job()], actor=ACTOR) == (3,)


MOUNTS = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 21 0:26 / /home rw - nfs4 server:/home rw
31 21 0:27 / /mnt/a\\040b rw - cifs //server/share rw
32 21 0:28 / /home/local rw - xfs /dev/vdb rw
33 21 0:29 / /over rw - overlay overlay rw
34 21 0:30 / /ssh rw - fuse.sshfs host:/ rw
35 21 0:31 / /tmp rw shared:1 master:2 - tmpfs tmpfs rw
36 21 0:32 / /tank rw - zfs tank rw
37 21 0:33 / /late rw - ext4 /dev/vdc rw
38 37 0:34 / /late rw - nfs server:/late rw
39 21 0:35 / /odd\u2028\r rw - nfs server:/odd rw
"""


@pytest.fixture
def mountinfo(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_bytes(MOUNTS.encode())
    return path


@cases(
    ("place", "kind"),
    [
        ("/home/alice/.local/state/gputui", "nfs4"),
        ("/mnt/a b/state", "cifs"),
        ("/over/state", "overlay"),
        ("/ssh", "fuse.sshfs"),
        ("/late/x", "nfs"),
        ("/odd\u2028\r/x", "nfs"),
    ],
)
def test_shared_file_systems_are_refused_by_name(mountinfo: Path, place: str, kind: str) -> None:
    with pytest.raises(StoreAccessError) as caught:
        check_file_system(Path(place), mountinfo=mountinfo)
    assert kind in str(caught.value)
    assert place in str(caught.value)
    assert "--state" in str(caught.value)


@cases(
    ("place", "kind"), [("/var/lib/gputui", "ext4"), ("/home/local/x", "xfs"), ("/tmp/x", "tmpfs"), ("/tank/x", "zfs")]
)
def test_local_file_systems_are_accepted(mountinfo: Path, place: str, kind: str) -> None:
    assert check_file_system(Path(place), mountinfo=mountinfo) == kind


def test_a_machine_without_proc_is_trusted(tmp_path: Path) -> None:
    check_file_system(tmp_path, mountinfo=tmp_path / "none")


def test_the_store_checks_its_file_system(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 0:29 / {directory} rw - nfs4 server:/home rw\n")
    monkeypatch.setattr("gputui.store.files.MOUNTINFO", mounts)
    with pytest.raises(StoreAccessError, match="nfs4"):
        TinyJobStore(directory)
    assert not directory.exists()


def test_other_kinds_of_files_are_refused_as_directories(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, said in (("file", "not a directory"), ("link", "a dangling symbolic link")):
        with pytest.raises(StoreAccessError, match=said):
            TinyJobStore(tmp_path / name)
