"""Journals that are missing, cut short or replaced: writes are refused, and the loss is reported."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gputui.domain.errors import StoreBusyError, StoreDamagedError, StoreError, StoreFormatError
from gputui.store import TinyJobStore
from gputui.store.queue_files import read_record
from gputui.store.repair import verify_directory
from gputui.store.storage import rescue_paths
from tests.cases import cases
from tests.factories import ACTOR, job

Spoil = Callable[[Path], object]
WAL = "queue.json.wal.1"
LOCK = "queue.json.lock"


def replaced(directory: Path) -> None:
    """Replace the journal by other lines of the same length."""
    path = directory / WAL
    size = path.stat().st_size
    path.unlink()
    path.write_bytes((b"%08x 1 {}\n" % zlib.crc32(b"1 {}")) * (size // 14) + b"\n" * (size % 14))


def first_line(directory: Path) -> int:
    return (directory / WAL).read_bytes().index(b"\n") + 1


SPOILS: Mapping[str, Spoil] = {
    "removed": lambda directory: (directory / WAL).unlink(),
    "cut inside a line": lambda directory: os.truncate(directory / WAL, 500),
    "cut by one byte": lambda directory: os.truncate(directory / WAL, (directory / WAL).stat().st_size - 1),
    "cut between lines": lambda directory: os.truncate(
        directory / WAL, (directory / WAL).read_bytes().index(b"\n") + 1
    ),
    "emptied": lambda directory: os.truncate(directory / WAL, 0),
    "replaced": replaced,
    "moved away": lambda directory: (directory / WAL).rename(directory / "elsewhere"),
}
"""Damages of the journal that lose data."""


def filled(directory: Path) -> None:
    store = TinyJobStore(directory)
    for _ in range(3):
        store.submit([job(held=True)], actor=ACTOR)
    store.close()


def writes(store: TinyJobStore) -> list[Callable[[], object]]:
    def change() -> None:
        with store.transaction() as transaction:
            transaction.add(job())

    return [lambda: store.submit([job()], actor=ACTOR), change, store.storage.checkpoint]


@cases("spoil", SPOILS.values())
def test_a_damaged_queue_is_refused_for_writing_and_reported_to_readers(tmp_path: Path, spoil: Spoil) -> None:
    directory = tmp_path / "state"
    filled(directory)
    spoil(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    store = TinyJobStore(directory)
    for write in writes(store):
        with pytest.raises(StoreDamagedError, match=r"queue\.json\.wal\.1.*state repair"):
            write()
    assert set(store.jobs()) < {1, 2, 3}
    with pytest.raises(StoreDamagedError):
        store.check()
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    store.close()


@cases("spoil", SPOILS.values())
def test_a_process_with_the_queue_in_memory_rescues_it(tmp_path: Path, spoil: Spoil) -> None:
    directory = tmp_path / "state"
    filled(directory)
    store = TinyJobStore(directory)
    assert list(store.jobs()) == [1, 2, 3]
    spoil(directory)
    assert list(store.jobs()) == [1, 2, 3]
    for write in writes(store):
        with pytest.raises(StoreDamagedError):
            write()
    assert rescue_paths(directory / "queue.json")
    store.close()


@cases("place", ["where it had read to", "behind that"])
def test_an_outdated_process_detects_a_truncated_journal(tmp_path: Path, place: str) -> None:
    directory = tmp_path / "state"
    filled(directory)
    late, other = TinyJobStore(directory), TinyJobStore(directory)
    late.jobs()
    read_to = (directory / WAL).stat().st_size
    other.submit([job()], actor=ACTOR)
    end = (directory / WAL).stat().st_size
    other.submit([job()], actor=ACTOR)
    os.truncate(directory / WAL, read_to if place == "where it had read to" else end)
    for write in writes(late):
        with pytest.raises(StoreDamagedError):
            write()
    late.jobs()
    with pytest.raises(StoreDamagedError):
        late.check()
    for one in (late, other):
        one.close()


def test_overwritten_bytes_are_noticed_by_processes_with_the_queue_in_memory(directory: Path) -> None:
    filled(directory)
    store = TinyJobStore(directory)
    store.jobs()
    with (directory / WAL).open("r+b") as file:
        file.seek(300)
        file.write(b"???")
    for write in writes(store):
        with pytest.raises(StoreDamagedError):
            write()
    assert list(store.jobs()) == [1, 2, 3]
    store.close()


def test_a_restored_journal_is_accepted_again(directory: Path) -> None:
    filled(directory)
    store = TinyJobStore(directory)
    store.jobs()
    (directory / WAL).rename(directory / "elsewhere")
    with pytest.raises(StoreDamagedError):
        store.submit([job()], actor=ACTOR)
    (directory / "elsewhere").rename(directory / WAL)
    assert store.submit([job()], actor=ACTOR) == (4,)
    with store.transaction() as transaction:
        assert transaction.add(job()).id == 5
    assert list(store.jobs()) == [1, 2, 3, 4, 5]
    assert not rescue_paths(directory / "queue.json")
    store.close()


def test_a_journal_replaced_by_its_copy_is_continued(directory: Path) -> None:
    filled(directory)
    store = TinyJobStore(directory)
    store.submit([job()], actor=ACTOR)
    shutil.copy(directory / WAL, directory / "copy")
    (directory / "copy").replace(directory / WAL)
    assert store.submit([job()], actor=ACTOR) == (5,)
    other = TinyJobStore(directory)
    assert list(other.jobs()) == list(store.jobs()) == [1, 2, 3, 4, 5]
    for one in (store, other):
        one.close()


@cases("moment", ["before", "after"])
@cases("call", ["submit", "transaction"])
def test_a_write_to_a_removed_journal_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, call: str
) -> None:
    directory = tmp_path / "state"
    filled(directory)
    store = TinyJobStore(directory)
    store.submit([job()], actor=ACTOR)
    real = os.fdatasync

    def sync(fd: int) -> None:
        if moment == "after":
            real(fd)
        (directory / WAL).unlink(missing_ok=True)

    monkeypatch.setattr(os, "fdatasync", sync)
    with pytest.raises(StoreDamagedError):
        writes(store)[call == "transaction"]()
    store.close()


@cases("record", ["removed", "zeroed", "torn", "old", "of 0.1"])
def test_a_missing_or_old_write_record_proves_nothing(tmp_path: Path, record: str) -> None:
    directory = tmp_path / "state"
    store = TinyJobStore(directory)
    store.submit([job()], actor=ACTOR)
    old = (directory / LOCK).read_bytes()
    store.submit([job()] * 2, actor=ACTOR)
    lock = directory / LOCK
    if record == "removed":
        lock.unlink()
    elif record == "of 0.1":
        lock.write_bytes(as_0_1(lock.read_bytes()))
    else:
        lock.write_bytes({"zeroed": bytes(256), "torn": lock.read_bytes()[:40], "old": old}[record])
    for one in (TinyJobStore(directory), store):
        before = len(one.jobs())
        assert one.submit([job()], actor=ACTOR) == (before + 1,)
        with one.transaction() as transaction:
            transaction.add(job())
        assert list(one.jobs()) == list(range(1, before + 3))
        one.close()
    written = read_record(lock)
    assert written is not None
    assert written.checksum == zlib.crc32((directory / WAL).read_bytes())


def test_a_record_of_0_1_still_reveals_a_truncated_journal(directory: Path) -> None:
    filled(directory)
    (directory / LOCK).write_bytes(as_0_1((directory / LOCK).read_bytes()))
    os.truncate(directory / WAL, 500)
    with pytest.raises(StoreDamagedError, match="500 bytes"):
        TinyJobStore(directory).submit([job()], actor=ACTOR)


def as_0_1(record: bytes) -> bytes:
    """Write the record as 0.1 does: eight numbers."""
    body = b" ".join(record.split()[1:9])
    return b"%08x %s\n" % (zlib.crc32(body), body.ljust(246))


def test_a_lost_lock_file_never_permits_concurrent_writes(directory: Path) -> None:
    filled(directory)
    store = TinyJobStore(directory)
    with store.transaction() as transaction:
        transaction.add(job())
        (directory / LOCK).unlink()
    other = TinyJobStore(directory)
    with other.storage.lock.held(), store.storage.lock.lock_timeout(0), pytest.raises(StoreBusyError):
        store.submit([job()], actor=ACTOR)
    assert store.submit([job()], actor=ACTOR) == (5,)
    for one in (store, other):
        assert list(one.jobs()) == [1, 2, 3, 4, 5]
        one.close()


def test_copies_and_restored_backups_are_accepted(directory: Path, tmp_path: Path) -> None:
    filled(directory)
    copy = Path(shutil.copytree(directory, tmp_path / "copy"))
    store = TinyJobStore(copy)
    assert list(store.jobs()) == [1, 2, 3]
    assert store.submit([job()], actor=ACTOR) == (4,)
    store.storage.checkpoint()
    store.submit([job()], actor=ACTOR)
    store.close()
    shutil.rmtree(copy)
    shutil.copytree(directory, copy)
    again = TinyJobStore(copy)
    assert again.submit([job()], actor=ACTOR) == (4,)
    again.close()


def test_an_older_snapshot_put_back_beside_a_later_record_is_refused(directory: Path) -> None:
    filled(directory)
    backup = (directory / "queue.json").read_bytes()
    store = TinyJobStore(directory)
    store.storage.checkpoint()
    (directory / "queue.json").write_bytes(backup)
    for one in (store, TinyJobStore(directory)):
        with pytest.raises(StoreDamagedError, match=r"generation 1 .* generation 2 was acknowledged"):
            one.submit([job()], actor=ACTOR)
        one.close()


def test_a_missing_queue_with_a_record_is_not_created_again(directory: Path) -> None:
    filled(directory)
    for name in ("queue.json", WAL):
        (directory / name).unlink()
    with pytest.raises(StoreFormatError, match="ids up to 3"):
        TinyJobStore(directory)


def test_a_damaged_line_behind_the_record_is_a_torn_tail(directory: Path) -> None:
    filled(directory)
    with (directory / WAL).open("ab") as file:
        file.write(b"\0" * 100 + b'"}\n')
    store = TinyJobStore(directory)
    assert list(store.jobs()) == [1, 2, 3]
    assert store.submit([job()], actor=ACTOR) == (4,)
    assert b"\0" not in (directory / WAL).read_bytes()
    store.close()


@cases("kind", ["FIFO", "a symbolic link", "a directory"])
@cases("name", ["queue.json", WAL, LOCK])
def test_a_special_file_is_refused_at_once(tmp_path: Path, name: str, kind: str) -> None:
    directory = tmp_path / "state"
    filled(directory)
    path = directory / name
    path.rename(directory / "kept")
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "a directory":
        path.mkdir()
    else:
        path.symlink_to(directory / "kept")

    def use() -> None:
        store = TinyJobStore(directory)
        store.jobs()
        store.submit([job()], actor=ACTOR)

    with pytest.raises(StoreError, match=f"{name}.*{kind}"):
        use()


def test_a_journal_overwritten_during_a_write_is_refused_after_the_next_read(directory: Path) -> None:
    filled(directory)
    [journal] = directory.glob("queue.json.wal.*")
    before = journal.stat()
    with journal.open("r+b") as file:
        file.seek(20)
        file.write(b"?????")
    os.utime(journal, ns=(before.st_atime_ns, before.st_mtime_ns))
    reader, writer = TinyJobStore(directory), TinyJobStore(directory)
    reader.jobs()
    with pytest.raises(StoreDamagedError):
        reader.check()
    with pytest.raises(StoreDamagedError):
        writer.submit([job()], actor=ACTOR)
    touched = journal.stat().st_mtime_ns
    reader.jobs()
    assert journal.stat().st_mtime_ns == touched
    reader.close()
    writer.close()


@cases("tear", ["zeros", "old data", "a line within"])
def test_power_loss_in_a_write_stops_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tear: str) -> None:
    """A line was written in part, with its newline, and the record is as it was last synced."""
    directory = tmp_path / "state"
    tears = {"zeros": b"\0" * 40, "old data": b"x" * 40, "a line within": b"\n" + b"y" * 39}
    real, durable, states = os.fdatasync, [b""], list[tuple[Path, int]]()
    synced: set[tuple[str, int]] = set()
    acknowledged = 0

    def sync(fd: int) -> None:
        real(fd)
        path = Path(f"/proc/self/fd/{fd}").resolve()
        if path.name == LOCK:
            durable[0] = path.read_bytes()
        elif ".wal." in path.name and (line := (path.name, path.stat().st_size)) not in synced:
            synced.add(line)
            state = Path(shutil.copytree(directory, tmp_path / str(len(states))))
            content = path.read_bytes()
            (state / path.name).write_bytes(content[:-60] + tears[tear] + content[-20:])
            (state / LOCK).write_bytes(durable[0])
            states.append((state, acknowledged))

    monkeypatch.setattr(os, "fdatasync", sync)
    store = TinyJobStore(directory)
    for number in range(8):
        if number in {3, 5}:
            store.storage.checkpoint()
        if number == 6:
            (directory / LOCK).write_bytes(bytes(256))  # as a crash of 0.1 could leave it
        if number % 2:
            store.submit([job()], actor=ACTOR)
        else:
            with store.transaction() as transaction:
                transaction.add(job())
        acknowledged += 1
    store.close()
    monkeypatch.undo()
    assert len(states) == 8
    for state, count in states:
        after = TinyJobStore(state)
        assert list(after.jobs()) == list(range(1, count + 1)), state
        assert after.submit([job()], actor=ACTOR) == (count + 1,)
        assert after.damage() == ()
        after.close()
        assert all(finding.is_harmless for finding in verify_directory(state))


def test_a_damaged_line_without_a_record_may_have_been_acknowledged(directory: Path) -> None:
    filled(directory)
    with (directory / WAL).open("r+b") as file:
        file.seek(-30, os.SEEK_END)
        file.write(b"\0" * 10)
    (directory / LOCK).unlink()
    with pytest.raises(StoreDamagedError, match="is damaged"):
        TinyJobStore(directory).submit([job()], actor=ACTOR)
