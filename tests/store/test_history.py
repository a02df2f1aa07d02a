"""The history: files of lines that only grow, beside those of 0.1."""

from __future__ import annotations

import json
import os
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.access import AuditEntry
from gputui.domain.accounting import record_of
from gputui.domain.job import Job
from gputui.domain.runs import Spans
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from gputui.store.codec import encode_job
from gputui.store.files import FileAccess
from gputui.store.history import HistoryFiles, latest
from tests.factories import ACTOR, NOW, array, job
from tests.store.conftest import SETTINGS
from tests.store.test_kills import python

MONTH = "history-2026-03.jsonl"


def over(job_id: int, name: str = "job") -> Job:
    return job(job_id, name=name).evolve(state=JobState.COMPLETED, ended_at=NOW - timedelta(days=1))


def files(directory: Path) -> HistoryFiles:
    directory.mkdir(exist_ok=True)
    return HistoryFiles(directory, FileAccess())


def add(history: HistoryFiles, *jobs: Job) -> None:
    history.add("2026-03", {str(one.id): encode_job(one) for one in jobs})


def names(history: HistoryFiles) -> dict[str, str]:
    found = latest(history.latest_first(Job, None, history.decoded), Spans())
    return {str(one.id): one.spec.name for one in sorted(found, key=lambda one: one.id)}


def test_jobs_are_appended_and_found(directory: Path) -> None:
    history, other = files(directory), files(directory)
    add(history, over(7, name="seven"), over(5, name="five"))
    before = (directory / MONTH).read_bytes()
    assert list(names(other)) == ["5", "7"]
    add(history, over(6, name="six"), over(7, name="again"))
    assert (directory / MONTH).read_bytes().startswith(before)
    for one in (history, other, files(directory)):
        assert names(one) == {"5": "five", "6": "six", "7": "again"}
        found = one.find(7)
        assert found is not None
        assert found[1]["spec"]["name"] == "again"
        assert one.find(8) is None
        assert one.highest_id() == 7


def test_a_torn_last_line_is_ignored_and_cut_off(directory: Path) -> None:
    history = files(directory)
    add(history, over(1), over(2))
    whole = (directory / MONTH).stat().st_size
    add(history, over(3))
    for cut in range(whole, (directory / MONTH).stat().st_size):
        os.truncate(directory / MONTH, cut)
        assert list(names(files(directory))) == ["1", "2"]
        add(files(directory), over(3))
        assert list(names(files(directory))) == ["1", "2", "3"]
    assert list(names(history)) == ["1", "2", "3"]


def test_a_damaged_line_loses_only_itself_and_is_reported(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job(), job(), job()], actor=ACTOR)
    add(files(directory), over(1), over(2), over(3))
    path = directory / MONTH
    path.write_bytes(path.read_bytes().replace(b'{"id":2,', b'("id":2,'))
    history = files(directory)
    assert list(names(history)) == ["1", "3"]
    assert list(history.damage()) == [f"{path}: 1 line cannot be read: left out"]


def test_unreadable_entries_are_counted_and_reported(directory: Path) -> None:
    store = TinyJobStore(directory, SETTINGS)
    add(files(directory), over(5), over(6), over(7))
    path = directory / MONTH
    path.write_bytes(path.read_bytes().replace(b'"COMPLETED"', b'"SLEEPING"', 2))
    assert store.history_damage() == ()
    assert [one.id for one in store.past()] == [7]
    told = f"{directory}/history-*: 2 jobs, the first of them job 5, cannot be read: left out"
    assert store.history_damage() == (told,)
    store.close()


def test_a_month_of_0_1_is_read_beside_the_new_file(directory: Path) -> None:
    history = files(directory)
    old = {"_meta": {"1": {"schema": 2}}, "jobs": {str(n): encode_job(over(n, name="old")) for n in (9, 1, 4)}}
    (directory / "history-2026-03.json").write_text(json.dumps(old))
    add(history, over(4, name="new"), over(2, name="new"))
    assert names(history) == {"1": "old", "2": "new", "4": "new", "9": "old"}
    assert list(names(history)) == ["1", "2", "4", "9"]
    found = history.find(9)
    assert found is not None
    assert found[1]["spec"]["name"] == "old"


def test_a_job_that_changes_while_it_is_moved_stays_in_the_queue(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = TinyJobStore(directory, SETTINGS), TinyJobStore(directory, SETTINGS)
    store.submit([job(), job()], actor=ACTOR)
    with store.transaction() as transaction:
        for job_id in (1, 2):
            ended = NOW - timedelta(days=30)
            transaction.put(transaction.get(job_id).evolve(state=JobState.COMPLETED, ended_at=ended))
    real = HistoryFiles.add

    def meanwhile(self: HistoryFiles, month: str, documents: dict[str, object]) -> None:
        real(self, month, documents)  # type: ignore[arg-type]
        with other.storage.lock.lock_timeout(0), other.transaction() as transaction:  # so the lock is free
            transaction.put(transaction.get(1).evolve(requeue_requested=True))

    monkeypatch.setattr(HistoryFiles, "add", meanwhile)
    store.maintain(NOW)
    assert list(store.jobs()) == [1]
    assert store.jobs()[1].requeue_requested
    assert [one.id for one in store.past()] == [2]
    for one in (store, other):
        one.close()


APPENDER = """
import sys
from pathlib import Path
from tests.store.test_history import add, files, over
history = files(Path(sys.argv[1]))
for n in range(30):
    add(history, over(int(sys.argv[2]) + n, name="x" * 5000))
"""


def test_processes_append_one_after_another(directory: Path) -> None:
    directory.mkdir()
    for process in [python("-c", APPENDER, directory, first) for first in (1, 1001)]:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert len(names(files(directory))) == 60
    assert len((directory / MONTH).read_bytes().splitlines()) == 60


def past(store: TinyJobStore) -> dict[int, str]:
    """Return the names of the jobs that `past` yields, by id."""
    jobs = list(store.past())
    assert len({one.id for one in jobs}) == len(jobs)
    every = [record_of(one) for one in (*store.jobs().values(), *jobs)]
    assert sorted(store.records(), key=lambda one: one.id) == sorted(every, key=lambda one: one.id)
    return {one.id: one.spec.name for one in jobs}


def test_past_jobs_are_read_by_month_in_their_last_version(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job() for _ in range(9)], actor=ACTOR)
    tiny.maintain(NOW)
    history = files(directory)
    april = over(3, name="april").evolve(ended_at=NOW + timedelta(days=40))
    entry = array(range(4), first=10).evolve(state=JobState.CANCELLED, ended_at=NOW)
    rerun = entry.element(12).evolve(state=JobState.COMPLETED, ended_at=NOW)
    add(history, over(20), over(21, name="first"), entry)
    add(history, over(21, name="again"), rerun)
    history.add("2026-04", {"3": encode_job(april)})
    assert past(tiny) == {10: "train", 12: "train", 20: "job", 21: "again"}  # job 3 is in the queue
    with tiny.transaction() as transaction:
        transaction.put(over(3))
    tiny.maintain(NOW + timedelta(days=30))
    found = list(tiny.past(NOW + timedelta(days=20)))
    assert (found, next(one.id for one in tiny.past())) == ([april.evolve(id=3)], 3)


@pytest.mark.parametrize("part", [1 << 24, 1200, 64])
@pytest.mark.parametrize("damage", [b"", b'{"id":7,"schema":3,"job":{}}\n', b'{"id":3,"schema":1,"job":{"prio":1}}\n'])
def test_part_size_damage_and_old_versions_do_not_change_past_jobs(
    tiny: TinyJobStore, directory: Path, monkeypatch: pytest.MonkeyPatch, part: int, damage: bytes
) -> None:
    monkeypatch.setattr("gputui.store.history.PART", part)
    add(files(directory), *(over(number, name=f"first{number}") for number in range(1, 14)))
    add(files(directory), *(over(number, name=f"again{number}") for number in range(1, 8)))
    path = directory / MONTH
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:10], damage, *lines[10:], b'{"id":14,"schema":3,"jo']))
    assert past(tiny) == {n: f"again{n}" if n < 8 else f"first{n}" for n in range(1, 14)}


def test_the_keys_of_actions_are_known_when_the_journal_was_folded(tiny: TinyJobStore, directory: Path) -> None:
    """An owner that begins folds it, maybe before those come again whom the one before left without an answer."""
    tiny.submit([job(submitted_uid=1001, key="k.1")], actor=ACTOR)
    for number in range(2):
        with tiny.transaction() as transaction:
            transaction.audit(AuditEntry(NOW, 1001, "alice", "hold", "job 1", "", "", key=f"k{number}.1"))
        tiny.storage.checkpoint()
    tiny.close()
    with closing(TinyJobStore(directory)) as following:
        assert dict(following.requests(1001)) == {"k.1": (1,), "k0.1": (1,), "k1.1": (1,)}
