"""Power lost, or the process killed, before any write: all that was acknowledged is there, once, and can be read.

Each life is recorded once. Of each of its changes the disks are made that a power loss just behind it may leave, and
each distinct one is opened and used. The long lane checks all of them, the test line an even sample.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.access import AuditEntry
from gputui.store import TinyJobStore
from gputui.store.repair import damaged_files, move_aside, verify_directory
from tests.factories import ACTOR, NOW, job
from tests.lane import IS_LONG, seeds
from tests.store.power import lives
from tests.store.power.disk import Disk, Moment, moments, put
from tests.store.power.recording import Recording

pytestmark = pytest.mark.needs("gcc")

Check = Callable[[Path, dict[str, list[Any]]], None]
"""Checks a disk by what was acknowledged."""
AT_ONCE = 150
"""Disks of a life that the test line checks."""
SAMPLES = 12 if IS_LONG else 2
"""Disks with parts taken at random, of each moment."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory that is recorded; checks do without syncs, which take most of their time."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
    monkeypatch.setattr(os, "sync", lambda: None)
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def check_all(root: Path, life: str, check: Check) -> None:
    """Record a life; check what is left of it by every loss of power."""
    disk, recording = Disk(root), Recording(root, root.parent / "log")
    recording.run("-m", "tests.store.power.lives", life, root)
    changes = list(recording.changes())
    found = moments(disk, changes, samples=SAMPLES)
    check_moments(found if IS_LONG else sampled(found, AT_ONCE), root.parent / "disk", check)
    print(f"{life}: {len(changes)} changes, {len(found)} distinct disks")


def sampled(found: list[Moment], count: int) -> list[Moment]:
    """Return an even sample, with the last."""
    return [*random.Random(0).sample(found, min(len(found), count)), found[-1]]


def check_moments(found: list[Moment], place: Path, check: Check) -> None:
    for moment in found:
        put(moment.tree, place)
        try:
            check(place, acks_of(moment.told))
        except Exception as error:
            error.add_note(f"after change {moment.number}: {moment.loss}, {acks_of(moment.told)}")
            raise
        shutil.rmtree(place)


def acks_of(told: bytes) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in told.splitlines():
        for word, value in json.loads(line).items():
            found.setdefault(word, []).append(value)
    return found


@pytest.mark.parametrize("begun", [True, False])
def test_nothing_that_a_store_acknowledged_is_lost(root: Path, begun: bool) -> None:
    if begun:
        store = TinyJobStore(root / "state")
        store.submit([job()], actor=ACTOR)
        store.close()

    def check(place: Path, acks: dict[str, list[Any]]) -> None:
        check_store(place / "state", acks, first=int(begun), entries=entries_of(root / "state"))

    check_all(root, "use", check)


@pytest.mark.parametrize("first", seeds(100, at_once=2))
def test_what_a_killed_process_left_unsynced_misleads_nobody_after_a_power_loss(root: Path, first: int) -> None:
    """The next process reads what the killed one wrote, and power is lost before the disk has it."""
    number = random.Random(first).randrange(10, 80)
    disk, recording = Disk(root), Recording(root, root.parent / "log")
    recording.run("-m", "tests.store.power.lives", "use", root, kill_at=number)
    before = len(list(recording.changes()))
    recording.run("-m", "tests.store.power.lives", "go_on", root)
    check_second_life(root, moments(disk, list(recording.changes()), samples=SAMPLES, since=before))


@pytest.mark.parametrize("first", seeds(100, at_once=2))
def test_power_may_be_lost_again(root: Path, first: int) -> None:
    chance = random.Random(first)
    disk, recording = Disk(root), Recording(root, root.parent / "log")
    recording.run("-m", "tests.store.power.lives", "use", root)
    moment = chance.choice(moments(disk, list(recording.changes()), samples=SAMPLES, seed=first))
    again = root.with_name("again")
    put(moment.tree, again)
    disk, recording = Disk(again), Recording(again, root.parent / "log of again")
    recording.run("-m", "tests.store.power.lives", "go_on", again)
    found = moments(disk, list(recording.changes()), samples=SAMPLES, seed=first)
    check_second_life(again, [each._replace(told=moment.told + each.told) for each in found])


def check_second_life(root: Path, found: list[Moment]) -> None:
    entries = entries_of(root / "state")
    chosen = found if IS_LONG else sampled(found, AT_ONCE // 4)
    check_moments(chosen, root.parent / "disk", lambda place, acks: check_store(place / "state", acks, 0, entries))


def entries_of(directory: Path) -> list[AuditEntry]:
    store = TinyJobStore(directory)
    found = list(store.audit_log())
    store.close()
    return found


def check_store(directory: Path, acks: dict[str, list[Any]], first: int, entries: list[AuditEntry]) -> None:
    """Check that acknowledged jobs are complete, the next id is new, and no file is left behind."""
    store = TinyJobStore(directory, lives.SETTINGS)
    added = acks.get("added", [])
    assert len(set(added)) == len(added)
    for job_id in added:
        assert store.get(job_id).id == job_id
    if 1 in store.jobs() and 2 in store.jobs():
        both = {store.get(1).priority, store.get(2).priority}
        assert both == {70} if "both" in acks else both in ({50}, {70})
    for job_id in acks.get("finished", ()):
        assert store.get(job_id).state.is_terminal
    for entry in store.recurring().values():
        runs = [run.id for run in store.jobs().values() if run.recurring == entry.id]
        assert runs == ([entry.last_job_id] if entry.last_job_id else [])
    assert set(acks.get("recurring", ())) <= set(store.recurring())
    known = listed(store)
    [new] = store.submit([job()], actor=ACTOR)
    assert new > max([0, *known, *added])
    assert store.damage() == ()
    store.storage.checkpoint()
    audited = list(store.audit_log())
    targets = [entry.target for entry in audited]
    assert len(set(targets)) == len(targets)
    # the fourth is added without an entry
    assert {f"job {job_id}" for job_id in added if job_id != first + 4} <= set(targets)
    assert {*acks.get("audited", ()), f"job {new}"} <= set(targets)
    assert all(entry in entries for entry in audited if entry.target != f"job {new}")
    store.maintain(NOW)
    listed(store)
    store.close()
    assert not list(directory.glob("queue.json.*.tmp"))
    assert len(list(directory.glob("queue.json.wal.*"))) == 1
    check_whole(directory)


def check_whole(directory: Path) -> None:
    """Check that all can be read, but for lines that never were: of those the disk may have kept zeros and an end."""
    if damaged := damaged_files(directory):
        lines = [file.path.read_bytes()[line.start : line.end] for file in damaged for line in file.lines]
        assert all(b"\0" in line for line in lines)
        move_aside(directory, damaged, NOW)
    assert [finding for finding in verify_directory(directory) if not finding.is_harmless] == []


def listed(store: TinyJobStore) -> list[int]:
    """Return all ids, of which each is there once."""
    found = [*store.recurring(), *store.jobs(), *(old.id for old in store.past())]
    assert len(set(found)) == len(found)
    return found
