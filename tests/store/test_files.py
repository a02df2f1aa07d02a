"""Files of the store: stock TinyDB, old and new schemas, damage, and leftovers."""

from __future__ import annotations

import copy
import errno
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tinydb import Query, TinyDB
from tinydb.table import Table

from gputui.domain.access import AuditEntry
from gputui.domain.errors import NotFoundError, StoreDamagedError, StoreError, StoreFormatError
from gputui.domain.job_spec import DEFAULT_BACKOFF, GpuRequest
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from gputui.store.files import StoreLock, access_for
from gputui.store.queue_files import JournalEntry, read_record
from gputui.store.storage import JournalDB
from tests.cases import cases
from tests.factories import ACTOR, NOW, job
from tests.store.conftest import SETTINGS
from tests.store.repairing import repair

DATA = Path(__file__).parent / "data"


def fold(store: TinyJobStore) -> None:
    store.storage.checkpoint()


def journal(directory: Path) -> Path:
    [path] = [path for path in directory.glob("queue.json.wal.*") if path.suffix != ".damaged"]
    return path


def copy_of(directory: Path) -> Path:
    return Path(shutil.copytree(directory, directory.with_name("copy"), dirs_exist_ok=True))


def priorities(directory: Path) -> dict[int, int]:
    store = TinyJobStore(directory)
    try:
        return {job_id: stored.priority for job_id, stored in store.jobs().items()}
    finally:
        store.close()


def set_priority(store: TinyJobStore, job_id: int, value: int) -> None:
    with store.transaction() as transaction:
        transaction.put(transaction.get(job_id).evolve(priority=value))


def test_stock_tinydb_opens_the_files(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job(name="a"), job(name="b")], actor=ACTOR)
    with tiny.transaction() as transaction:
        transaction.put(transaction.get(2).evolve(state=JobState.CANCELLED, ended_at=NOW.replace(year=2025)))
    fold(tiny)
    with TinyDB(directory / "queue.json", access_mode="r") as stock:
        assert stock.tables() == {"_meta", "jobs"}
        [found] = stock.table("jobs").search(Query().state == "PENDING")
        assert (found.doc_id, found["spec"]["name"]) == (1, "a")
        assert stock.table("_meta").all()[0]["store_id"] == tiny.store_id
    tiny.maintain(NOW)
    [line] = (directory / "history-2025-03.jsonl").read_text().splitlines()
    assert (json.loads(line)["id"], json.loads(line)["job"]["spec"]["name"]) == (2, "b")


def test_changes_by_stock_tinydb_are_seen_and_its_ids_not_reused(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    fold(tiny)
    with TinyDB(directory / "queue.json") as stock:
        stock.table("jobs").update({"priority": 3})
        stock.table("jobs").insert({"spec": {"name": "by hand"}, "submitted_at": "2026-01-01T00:00:00Z"})
    assert tiny.get(1).priority == 3
    assert tiny.submit([job()], actor=ACTOR) == (3,)
    assert tiny.get(2).spec.name == "by hand"


@cases(
    "write",
    [
        lambda table: table.insert({"n": 1}),
        lambda table: table.insert_multiple([{"n": 1}]),
        lambda table: table.update({"priority": 1}),
        lambda table: table.update_multiple([({"priority": 1}, Query().state == "PENDING")]),
        lambda table: table.upsert({"priority": 1}, Query().state == "PENDING"),
        lambda table: table.remove(doc_ids=[1]),
        lambda table: table.truncate(),
    ],
)
def test_tinydb_reads_the_queue_but_its_writing_methods_are_refused(
    tmp_path: Path, write: Callable[[Table], object]
) -> None:
    """Fails when TinyDB no longer ends all its writing methods in `Table._update_table`."""
    directory = tmp_path / "state"
    tiny = TinyJobStore(directory, SETTINGS)
    tiny.submit([job()], actor=ACTOR)
    access = access_for(directory)
    with JournalDB(directory / "queue.json", access, StoreLock(directory / "queue.json.lock", access)) as database:
        table = database.table("jobs")
        before = copy.deepcopy(table.all())
        with pytest.raises(StoreError, match="not used here"):
            write(table)
        assert table.all() == before
        with pytest.raises(StoreError, match="not used here"):
            database.drop_tables()
    assert list(tiny.jobs()) == [1]


def test_one_transaction_is_one_line(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()] * 50, actor=ACTOR)
    with tiny.transaction() as transaction:
        for job_id in range(1, 51):
            transaction.put(transaction.get(job_id).evolve(priority=1))
    assert journal(directory).read_bytes().count(b"\n") == 2


def test_a_file_of_schema_1_loads(directory: Path) -> None:
    directory.mkdir()
    shutil.copy(DATA / "store_v1.json", directory / "queue.json")
    store = TinyJobStore(directory)
    assert store.store_id == "v1v1v1v1v1v1"
    old = store.get(4)
    assert (old.priority, old.spec.priority, old.spec.gpus) == (90, 80, GpuRequest(2, 4))
    assert old.spec.options.env == (("A", "1"),)
    assert old.gpus == ("GPU-00000000-0000-4000-8000-000000000000",)
    assert store.controls().pause_reason == "cooling"
    assert store.submit([job(priority=70)], actor=ACTOR) == (9,)
    store.close()
    assert priorities(directory) == {4: 90, 7: 50, 9: 70}
    assert b'"schema":3' in (directory / "queue.json").read_bytes()
    assert b'prio"' not in (directory / "queue.json").read_bytes()


def test_a_journal_of_schema_1_is_read_as_such(directory: Path) -> None:
    directory.mkdir()
    shutil.copy(DATA / "store_v1.json", directory / "queue.json")
    body = b'10 {"t":{"jobs":{"7":{"spec":{},"submitted_at":"2025-11-02T09:00:00Z","prio":11}}},"a":[]}'
    (directory / "queue.json.wal.3").write_bytes(crc_line(body))
    assert priorities(directory) == {4: 90, 7: 11}


def test_a_file_of_schema_2_loads(directory: Path) -> None:
    directory.mkdir()
    shutil.copy(DATA / "store_v2.json", directory / "queue.json")
    store = TinyJobStore(directory)
    only = store.get(7)
    assert (only.priority, only.state, only.spec.backoff) == (50, JobState.PENDING, DEFAULT_BACKOFF)
    assert store.controls().drains["GPU-1"].reason == "hot"
    assert store.submit([job()], actor=ACTOR) == (9,)
    store.close()


def test_a_history_of_schema_1_loads(tiny: TinyJobStore, directory: Path) -> None:
    (directory / "history-2025-11.json").write_bytes((DATA / "store_v1.json").read_bytes())
    assert sorted((old.id, old.priority) for old in tiny.past()) == [(4, 90), (7, 50)]


@cases("name", ["queue.json", "history-2026-01.json"])
def test_files_of_a_newer_schema_are_refused(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "state"
    TinyJobStore(directory).close()
    newer = '{"_meta":{"1":{"generation":1,"next_id":1,"store_id":"x","schema":4}},"jobs":{}}'
    (directory / name).write_text(newer)

    def open_and_read() -> None:
        list(TinyJobStore(directory).past())

    with pytest.raises(StoreFormatError, match=r"schema 4.*upgrade"):
        open_and_read()
    assert (directory / name).read_text() == newer


@cases("text", ["", "{", "[]", '{"_default":{"1":{"a":1}}}', "\0\0\0"])
def test_a_file_that_is_not_a_queue_is_refused_and_unchanged(tmp_path: Path, text: str) -> None:
    directory = tmp_path / "state"
    directory.mkdir()
    (directory / "queue.json").write_text(text)
    with pytest.raises(StoreFormatError):
        TinyJobStore(directory).submit([job()], actor=ACTOR)
    assert (directory / "queue.json").read_text() == text


def test_a_queue_without_its_snapshot_is_not_created_again(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    (directory / "queue.json").unlink()
    for use in (lambda: TinyJobStore(directory), tiny.jobs, lambda: tiny.submit([job()], actor=ACTOR)):
        with pytest.raises(StoreFormatError, match="gone"):
            use()
    assert journal(directory).stat().st_size


def test_a_queue_replaced_by_another_is_refused(tiny: TinyJobStore, directory: Path, tmp_path: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    assert len(tiny.jobs()) == 1
    other = TinyJobStore(tmp_path / "other")
    other.submit([job()] * 3, actor=ACTOR)
    fold(other)
    for path in [*directory.glob("queue.json*")]:
        path.unlink()
    for path in (tmp_path / "other").glob("queue.json*"):
        path.rename(directory / path.name)
    with pytest.raises(StoreFormatError, match="another queue"):
        tiny.jobs()
    with pytest.raises(StoreFormatError, match="another queue"), tiny.transaction():
        pass
    other.close()


def test_ids_continue_when_only_history_is_left(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()] * 4, actor=ACTOR)
    with tiny.transaction() as transaction:
        transaction.put(transaction.get(4).evolve(state=JobState.FAILED, ended_at=NOW.replace(year=2024)))
    tiny.maintain(NOW)
    for path in directory.glob("queue.json*"):
        path.unlink()
    store = TinyJobStore(directory)
    assert store.submit([job()], actor=ACTOR) == (5,)
    assert store.get(4).state is JobState.FAILED
    store.close()


def test_a_torn_last_line_is_cut_off_at_any_byte(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    whole = journal(directory).stat().st_size
    set_priority(tiny, 1, 70)
    length = journal(directory).stat().st_size
    torn = copy_of(directory)
    for cut in range(whole, length):
        shutil.copy(directory / "queue.json.wal.1", torn)
        os.truncate(torn / "queue.json.wal.1", cut)
        (torn / "queue.json.lock").unlink()
        store = TinyJobStore(torn)
        assert store.get(1).priority == 50, cut
        assert store.submit([job()], actor=ACTOR) == (2,), cut
        assert store.damage() == ()
        store.close()
        assert priorities(torn) == {1: 50, 2: 50}, cut


def test_a_tail_of_zeros_is_cut_off(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    with journal(directory).open("ab") as file:
        file.write(bytes(4096))
    assert tiny.submit([job()], actor=ACTOR) == (2,)
    assert priorities(directory) == {1: 50, 2: 50}


def test_a_flipped_byte_costs_its_own_line_and_is_reported(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()] * 2, actor=ACTOR)
    begin = journal(directory).stat().st_size
    set_priority(tiny, 1, 70)
    end = journal(directory).stat().st_size
    set_priority(tiny, 2, 80)
    good = journal(directory).read_bytes()
    bad = copy_of(directory)
    for place in range(begin, end - 1):
        flipped = bytes([good[place] ^ 1])
        (bad / "queue.json.wal.1").write_bytes(good[:place] + flipped + good[place + 1 :])
        store = TinyJobStore(bad)
        assert store.get(2).priority == 80, place
        assert store.get(1).priority == 50, place
        assert len(store.damage()) >= 1
        assert "queue.json.wal.1" in store.damage()[0]
        store.close()


def test_a_damaged_journal_kept_by_0_1_is_reported(tiny: TinyJobStore, directory: Path) -> None:
    kept = directory / "queue.json.wal.7.damaged"
    kept.write_bytes(b"")
    assert tiny.damage() == (f"{kept}: kept for its damaged lines, which are lost to the queue",)
    kept.unlink()
    assert tiny.damage() == ()


@cases("hint", ["kept", "zeroed", "removed", "torn"])
def test_a_damaged_line_is_refused_until_repair_and_its_ids_are_not_reused(tmp_path: Path, hint: str) -> None:
    directory = tmp_path / "state"
    store = TinyJobStore(directory)
    store.submit([job()] * 5, actor=ACTOR)
    store.close()
    path, lock = journal(directory), directory / "queue.json.lock"
    path.write_bytes(path.read_bytes().replace(b"busybox", b"busybux", 1))
    if hint == "zeroed":
        lock.write_bytes(bytes(256))
    elif hint == "removed":
        lock.unlink()
    elif hint == "torn":
        os.truncate(lock, 17)
    store = TinyJobStore(directory)
    with pytest.raises(StoreDamagedError):
        store.submit([job()], actor=ACTOR)
    assert store.damage()
    store.close()
    found = repair(directory)
    assert found.lost == (1, 2, 3, 4, 5)
    store = TinyJobStore(directory)
    assert store.submit([job()], actor=ACTOR) == (6,)
    assert list(store.jobs()) == [6]
    store.close()


@cases("spoil", ["zeroed", "torn", "stale"])
def test_a_wrong_write_record_is_ignored(tmp_path: Path, spoil: str) -> None:
    directory = tmp_path / "state"
    tiny = TinyJobStore(directory, SETTINGS)
    tiny.submit([job()], actor=ACTOR)
    lock = directory / "queue.json.lock"
    stale = lock.read_bytes()
    set_priority(tiny, 1, 60)
    tiny.submit([job()], actor=ACTOR)
    lock.write_bytes({"zeroed": bytes(256), "torn": lock.read_bytes()[:40], "stale": stale}[spoil])
    assert TinyJobStore(directory).submit([job()], actor=ACTOR) == (3,)
    assert priorities(directory) == {1: 60, 2: 50, 3: 50}


def test_a_write_record_from_before_a_fold_is_ignored(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    stale, old = (directory / "queue.json.lock").read_bytes(), journal(directory)
    content = old.read_bytes()
    fold(tiny)
    # as if the writer had been killed between the rename and the new hint
    (directory / "queue.json.lock").write_bytes(stale)
    old.write_bytes(content)
    other = TinyJobStore(directory)
    assert other.submit([job()], actor=ACTOR) == (2,)
    other.close()
    assert priorities(directory) == {1: 50, 2: 50}


def test_leftovers_of_killed_writers_are_removed(directory: Path) -> None:
    store = TinyJobStore(directory)
    store.submit([job()], actor=ACTOR)
    fold(store)
    store.close()
    for name in ("queue.json.123.tmp", "history-2026-01.json.9.tmp", "queue.json.wal.1", "queue.json.wal.3"):
        (directory / name).write_bytes(b"{" if name.endswith(("tmp", "1")) else b"")
    assert priorities(directory) == {1: 50}
    left = {path.name for path in directory.iterdir() if not path.name.startswith("audit")}
    assert left == {"queue.json", "queue.json.lock", "queue.json.wal.2"}


def test_a_restored_older_snapshot_is_not_combined_with_a_later_journal(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    fold(tiny)
    backup = (directory / "queue.json").read_bytes()
    fold(tiny)
    tiny.submit([job()], actor=ACTOR)
    tiny.close()
    (directory / "queue.json").write_bytes(backup)
    (directory / "queue.json.wal.2").touch()
    (directory / "queue.json.lock").unlink()
    store = TinyJobStore(directory)
    assert list(store.jobs()) == [1]
    fold(store)
    fold(store)
    assert list(store.jobs()) == [1]
    assert (directory / "queue.json.wal.3").stat().st_size
    store.close()


def test_a_fold_within_a_change_waits_for_its_end(tiny: TinyJobStore, directory: Path) -> None:
    with tiny.transaction() as transaction:
        transaction.add(job())
        before = (directory / "queue.json").read_bytes()
        tiny.storage.checkpoint()
        assert (directory / "queue.json").read_bytes() == before
    fold(tiny)
    assert list(priorities(directory)) == [1]


def test_a_long_journal_folds_itself(tiny: TinyJobStore, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gputui.store.storage.FOLD_AT", 2000)
    assert tiny.submit([job()] * 20, actor=ACTOR)[-1] == 20
    assert journal(directory).name == "queue.json.wal.2"
    assert journal(directory).stat().st_size == 0
    assert len(priorities(directory)) == 20
    assert tiny.submit([job()], actor=ACTOR) == (21,)


def test_the_write_record_gives_the_end_of_the_journal(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()] * 3, actor=ACTOR)
    with (directory / "queue.json.lock").open("rb") as lock:
        hint = read_record(lock.fileno())
    assert hint is not None
    assert (hint.length, hint.next_id) == (journal(directory).stat().st_size, 4)


def test_a_truncated_and_rewritten_line_is_read_again(
    tiny: TinyJobStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.submit([job()], actor=ACTOR)
    other = TinyJobStore(directory)

    def seen_but_not_synced(_: int) -> None:
        assert tiny.get(1).priority == 70
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", seen_but_not_synced)
        with pytest.raises(StoreError):
            set_priority(other, 1, 70)
    set_priority(other, 1, 71)
    other.submit([job()], actor=ACTOR)
    assert tiny.get(1).priority == 71
    assert list(tiny.jobs()) == [1, 2]
    other.close()


def test_a_job_in_queue_and_history_is_that_of_the_queue(
    tiny: TinyJobStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.submit([job()], actor=ACTOR)
    with tiny.transaction() as transaction:
        transaction.put(transaction.get(1).evolve(state=JobState.FAILED, ended_at=NOW.replace(year=2024)))
    with monkeypatch.context() as patched:
        patched.setattr(JournalEntry, "stage", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tiny.maintain(NOW)
    assert (directory / "history-2024-03.jsonl").exists()
    assert list(tiny.jobs()) == [1]
    assert list(tiny.past()) == []
    tiny.maintain(NOW)
    assert not tiny.jobs()
    assert [moved.id for moved in tiny.past()] == [1]


def test_audit_entries_folded_twice_are_listed_once(
    tiny: TinyJobStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.submit([job()] * 2, actor=ACTOR)
    with monkeypatch.context() as patched:
        patched.setattr("gputui.store.storage.write_snapshot", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fold(tiny)
    assert [entry.target for entry in tiny.audit_log()] == ["job 1", "job 2"]
    with (directory / "audit-2026-03.jsonl").open("ab") as file:
        file.write(b'{"id":[1,')
    fold(tiny)
    tiny.submit([job()], actor=ACTOR)
    fold(tiny)
    assert [entry.target for entry in tiny.audit_log()] == ["job 1", "job 2", "job 3"]


def test_unknown_keys_survive_a_change(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    fold(tiny)
    with TinyDB(directory / "queue.json") as stock:
        stock.table("jobs").update({"colour": "red"})
    set_priority(tiny, 1, 60)
    fold(tiny)
    with TinyDB(directory / "queue.json") as stock:
        assert stock.table("jobs").get(doc_id=1)["colour"] == "red"


def test_history_is_searched_up_to_the_last_id_and_the_store_is_tinydb(tiny: TinyJobStore, directory: Path) -> None:
    assert issubclass(JournalDB, TinyDB)
    (directory / "history-2025-01.json").write_text("not JSON")
    with pytest.raises(NotFoundError):
        tiny.get(1)


def crc_line(body: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(body), body)


def test_entries_of_a_target_are_found_without_decoding_those_of_others(tiny: TinyJobStore, directory: Path) -> None:
    targets = ["job 1", "job 11", "job 1", 'GPU "a"', "GPU ä/b\\", "GPU \u2028"]
    with tiny.transaction() as transaction:
        for target in targets:
            transaction.audit(AuditEntry(NOW, 0, "root", "drain", target, "", "drained"))
    fold(tiny)
    for target in targets:
        assert [entry.target for entry in tiny.audit_log(target)] == [target] * targets.count(target)
    path = directory / "audit-2026-03.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"job 11"', b'"job 11" damaged'))
    assert len(list(tiny.audit_log("job 1"))) == 2
