"""A process that owns the queue: nobody else writes, everybody reads, and a damaged queue can be repaired beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.access import AuditEntry
from gputui.domain.errors import StoreBusyError, StoreDamagedError, StoreOwnedError
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore
from gputui.store.backup import unpack, write_backup
from gputui.store.repair import repair_of
from gputui.store.transfer import export_lines
from tests.factories import ACTOR, NOW, job

BRIEF = StoreSettings(lock_timeout=timedelta(seconds=0.1))


@pytest.fixture
def owner(tiny: TinyJobStore) -> TinyJobStore:
    """Return the store of a process that owns a queue of one job."""
    tiny.own()
    tiny.submit([job()], actor=ACTOR)
    return tiny


@pytest.fixture
def other(owner: TinyJobStore, directory: Path) -> Iterator[TinyJobStore]:
    """Yield the store of another process."""
    assert owner.store_id
    with closing(TinyJobStore(directory, BRIEF)) as made:
        yield made


def test_others_read_and_do_not_write_until_the_owner_leaves_the_queue(
    owner: TinyJobStore, other: TinyJobStore
) -> None:
    with pytest.raises(StoreBusyError, match=f"process {os.getpid()} .*nothing was stored"):
        other.submit([job()], actor=ACTOR)
    owner.submit([job()], actor=ACTOR)
    assert list(other.jobs()) == [1, 2]
    owner.disown()
    assert other.submit([job()], actor=ACTOR) == (3,)
    assert list(owner.jobs()) == [1, 2, 3]
    owner.own()
    with pytest.raises(StoreBusyError):
        other.submit([job()], actor=ACTOR)


def test_who_waits_for_an_owner_that_answers_is_told_so(owner: TinyJobStore, directory: Path) -> None:
    assert owner.store_id
    with closing(TinyJobStore(directory, served=lambda: True)) as other, pytest.raises(StoreOwnedError):
        other.submit([job()], actor=ACTOR)


def test_a_note_beside_an_owner_is_in_the_audit_log(owner: TinyJobStore, other: TinyJobStore) -> None:
    other.note(AuditEntry(NOW, 0, "root", "kill", "process 7", "", "ended"))
    owner.note(AuditEntry(NOW, 0, "root", "kill", "process 8", "", "ended"))
    assert {entry.target for entry in owner.audit_log() if entry.verb == "kill"} == {"process 7", "process 8"}


def test_a_backup_and_an_export_beside_an_owner_are_whole(owner: TinyJobStore, directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "backup.tar.gz"
    write_backup(directory, target, NOW, "1", with_logs=True)
    into = tmp_path / "copy"
    into.mkdir()
    assert [finding for finding in unpack(target, into) if not finding.is_harmless] == []
    with closing(TinyJobStore(into)) as copy:
        assert copy.jobs() == owner.jobs()
    assert sum(b'"kind":"job"' in line for line in export_lines(directory, NOW, "1")) == 1


def test_a_damaged_queue_is_repaired_beside_its_owner_who_keeps_it(
    owner: TinyJobStore, other: TinyJobStore, directory: Path
) -> None:
    assert list(owner.jobs()) == [1]
    (directory / "queue.json.wal.1").unlink()
    with pytest.raises(StoreDamagedError):
        owner.maintain(NOW)
    repair = repair_of(directory)
    found = repair.assess()
    assert found is not None
    repair.carry_out(found, NOW, ACTOR)
    owner.submit([job()], actor=ACTOR)
    assert list(owner.jobs()) == [1, 2]
    with pytest.raises(StoreBusyError):
        other.submit([job()], actor=ACTOR)
