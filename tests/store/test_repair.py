"""Repair of damaged queues: what is recovered, and the report of losses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputui.domain.errors import StoreDamagedError, StoreError, StoreNewerError
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from gputui.store.repair import repair_of
from tests.cases import cases
from tests.factories import ACTOR, NOW, job, running, uuid
from tests.store.conftest import SETTINGS
from tests.store.repairing import repair
from tests.store.test_integrity import SPOILS, WAL, Spoil, filled


@cases("spoil", SPOILS.values())
def test_the_report_names_exactly_the_lost_changes(tmp_path: Path, spoil: Spoil) -> None:
    directory = tmp_path / "state"
    filled(directory)
    spoil(directory)
    before = TinyJobStore(directory)
    left = set(before.jobs())
    before.close()
    found = repair(directory)
    assert set(found.lost) == {1, 2, 3} - left
    assert not found.is_complete
    store = TinyJobStore(directory)
    assert set(store.jobs()) == left
    assert (store.controls().paused, store.controls().paused_by) == (True, "gputui state repair")
    assert store.submit([job()], actor=ACTOR) == (4,)
    [entry] = store.audit_log("the queue")
    assert entry.verb == "repair"
    store.close()


@cases("spoil", SPOILS.values())
def test_a_rescue_from_memory_loses_nothing(tmp_path: Path, spoil: Spoil) -> None:
    directory = tmp_path / "state"
    filled(directory)
    store = TinyJobStore(directory)
    with store.transaction() as transaction:
        active = running(1, on=[uuid(0)])
        transaction.put(active)
    spoil(directory)
    with pytest.raises(StoreDamagedError):
        store.submit([job()], actor=ACTOR)
    found = repair(directory)
    assert (found.lost, found.is_complete, found.jobs) == ((), True, 3)
    assert store.get(1) == active
    assert not store.controls().paused
    assert store.submit([job()], actor=ACTOR) == (4,)
    assert [entry.target for entry in store.audit_log()] == ["job 1", "job 2", "job 3", "the queue", "job 4"]
    store.close()


def test_a_removed_empty_journal_loses_nothing_if_a_process_knows_it(directory: Path) -> None:
    filled(directory)
    store = TinyJobStore(directory)
    store.storage.checkpoint()
    store.jobs()
    [journal] = directory.glob("queue.json.wal.*")
    journal.unlink()
    with pytest.raises(StoreDamagedError):
        store.submit([job()], actor=ACTOR)
    found = repair(directory)
    assert (found.lost, found.is_complete, found.source) == ((), True, f"the memory of process {os.getpid()}")
    assert not store.controls().paused
    store.close()


def test_changes_acknowledged_after_the_rescue_are_reported_as_lost(directory: Path) -> None:
    filled(directory)
    store, other = TinyJobStore(directory), TinyJobStore(directory)
    store.jobs()
    other.submit([job()] * 2, actor=ACTOR)
    (directory / WAL).unlink()
    store.jobs()
    found = repair(directory)
    assert (found.lost, found.is_complete) == ((4, 5), False)
    assert store.submit([job()], actor=ACTOR) == (6,)
    for one in (store, other):
        one.close()


def test_damaged_files_are_kept_aside(directory: Path) -> None:
    filled(directory)
    os.truncate(directory / WAL, 500)
    kept = (directory / WAL).read_bytes()
    before = directory / f"damaged-{NOW:%Y%m%dT%H%M%SZ}"
    before.mkdir()  # by another repair in the same second
    (directory / "queue.json.old").mkdir()
    repair(directory)
    assert not list(before.iterdir())
    aside = before.with_name(f"{before.name}-2")
    assert (aside / WAL).read_bytes() == kept
    assert {path.name for path in aside.iterdir()} == {WAL, "queue.json", "queue.json.lock", "report.txt"}
    assert "lost: 2 jobs: 2-3" in (aside / "report.txt").read_text()
    assert not (directory / WAL).exists()


@cases("left", ["the record", "the journal", "the history", "memory"])
def test_a_queue_without_its_snapshot_is_repaired(tmp_path: Path, left: str) -> None:
    directory = tmp_path / "state"
    store = TinyJobStore(directory, SETTINGS)
    store_id = store.store_id
    store.submit([job(), job(), job()], actor=ACTOR)
    if left == "history":
        with store.transaction() as transaction:
            transaction.put(transaction.get(1).evolve(state=JobState.FAILED, ended_at=NOW.replace(year=2024)))
        store.maintain(NOW)
    store.jobs()
    (directory / "queue.json").unlink()
    if left != "the journal":
        for path in directory.glob("queue.json.wal.*"):
            path.unlink()
    if left == "memory":
        with pytest.raises(StoreError):
            store.jobs()
    store.close()
    found = repair(directory)
    lost = {"the record": (1, 2, 3), "the journal": (), "the history": (1, 2, 3), "memory": ()}
    assert found.lost == lost[left]
    again = TinyJobStore(directory)
    assert again.store_id == store_id
    assert again.submit([job()], actor=ACTOR) == (4,)
    again.close()


def test_a_restored_older_snapshot_is_updated_as_far_as_possible(directory: Path) -> None:
    store = TinyJobStore(directory)
    store.submit([job(name="first")], actor=ACTOR)
    store.storage.checkpoint()
    backup = (directory / "queue.json").read_bytes()
    store.submit([job(name="lost")], actor=ACTOR)
    store.storage.checkpoint()
    store.submit([job(name="kept")], actor=ACTOR)
    store.close()
    (directory / "queue.json").write_bytes(backup)
    assert repair(directory).lost == (2,)
    again = TinyJobStore(directory)
    assert {job_id: one.spec.name for job_id, one in again.jobs().items()} == {1: "first", 3: "kept"}
    again.close()


def test_a_job_that_ended_in_history_does_not_run_again(directory: Path) -> None:
    store = TinyJobStore(directory, SETTINGS)
    store.submit([job(), job()], actor=ACTOR)
    end = (directory / WAL).stat().st_size
    with store.transaction() as transaction:
        ended = NOW.replace(year=2024)
        over = running(1, on=[uuid(0)]).with_attempt(ended_at=ended).evolve(state=JobState.COMPLETED, ended_at=ended)
        transaction.put(over)
        transaction.put(transaction.get(2).evolve(state=JobState.CANCELLED, ended_at=NOW.replace(year=2024)))
    store.maintain(NOW)
    store.close()
    os.truncate(directory / WAL, end)
    found = repair(directory)
    assert (found.settled, found.doubtful, found.lost) == ((1,), (2,), ())
    again = TinyJobStore(directory)
    assert list(again.jobs()) == [2]
    assert again.get(2).held
    assert again.get(1) == over
    again.close()


def test_an_intact_queue_is_not_repaired(directory: Path, tmp_path: Path) -> None:
    filled(directory)
    assert repair_of(directory).assess() is None
    (tmp_path / "empty").mkdir()
    assert repair_of(tmp_path / "empty").assess() is None
    with pytest.raises(StoreError, match="no state directory"):
        repair_of(tmp_path / "none")


def test_files_of_a_newer_gputui_are_not_repaired(directory: Path) -> None:
    filled(directory)
    path = directory / "queue.json"
    path.write_bytes(path.read_bytes().replace(b'"schema":3', b'"schema":9'))
    with pytest.raises(StoreNewerError):
        repair_of(directory).assess()


def test_a_repair_of_files_that_changed_meanwhile_is_refused(directory: Path) -> None:
    filled(directory)
    os.truncate(directory / WAL, 500)
    found = repair_of(directory)
    recovery = found.assess()
    assert recovery is not None
    os.truncate(directory / WAL, 0)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(StoreError, match="changed meanwhile"):
        found.carry_out(recovery, NOW, ACTOR)
    assert not list(directory.glob("damaged-*"))
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
