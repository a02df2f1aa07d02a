"""Power lost, or the process killed, before any write: all that was acknowledged is there, once, and can be read.

Each life is recorded once. Of each of its changes the disks are made that a power loss just behind it may leave, and
each distinct one is opened and used. The long lane checks all of them, the test line an even sample.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gputui.bootstrap import upkeep
from gputui.config import Options
from gputui.domain.access import AuditEntry
from gputui.domain.errors import GputuiError
from gputui.store import TinyJobStore
from gputui.store.queue_files import SCHEMA
from gputui.store.repair import damaged_files, move_aside, repair_of, verify_directory
from tests.factories import ACTOR, NOW, job
from tests.lane import IS_LONG, seeds
from tests.store.power import lives
from tests.store.power.disk import Disk, Moment, is_as_recorded, moments, put
from tests.store.power.recording import Recording

pytestmark = [pytest.mark.torture, pytest.mark.needs("gcc"), pytest.mark.timeout(1800)]

Check = Callable[[Path, dict[str, list[Any]]], None]
"""Checks a disk by what was acknowledged."""
AT_ONCE = 80
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
    assert is_as_recorded(disk, root)
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


@pytest.mark.parametrize(("first", "second"), [("ask", "add"), ("ask", "answer"), ("ask_older", "add")])
def test_a_line_is_synced_before_anything_is_built_on_it(root: Path, first: str, second: str) -> None:
    """The first process is killed between its line and the sync."""
    store = TinyJobStore(root / "state")
    store.submit([job()] * 2, actor=ACTOR)
    store.close()
    if first == "ask_older":
        snapshot = root / "state/queue.json"
        snapshot.write_bytes(snapshot.read_bytes().replace(b'"schema":%d' % SCHEMA, b'"schema":%d' % (SCHEMA - 1)))
    (root.parent / "log").touch()
    disk, recording = Disk(root), Recording(root, root.parent / "log")
    for number in count(1):  # opening a file may count too
        recording.run("-m", "tests.store.power.lives", first, root, kill_at=number)
        if list(recording.changes()):
            break
    assert [change.what for change in recording.changes()] == ["write"]
    recording.run("-m", "tests.store.power.lives", second, root)
    found, entries = moments(disk, list(recording.changes()), samples=SAMPLES), entries_of(root / "state")
    check_moments(found, root.parent / "disk", lambda place, acks: check_store(place / "state", acks, 0, entries))


def test_a_fold_that_another_process_left_unsynced_is_no_loss(root: Path) -> None:
    def check(place: Path, acks: dict[str, list[Any]]) -> None:
        check_store(place / "state", acks, 0, entries_of(root / "state"))

    check_all(root, "fold_beside", check)


def test_a_queue_that_was_copied_to_its_place_is_synced_with_the_first_job(root: Path) -> None:
    store = TinyJobStore(root / "state")
    store.submit([job()], actor=ACTOR)
    store.storage.checkpoint()
    store.close()
    (root / "state/queue.json").rename(root / "queue.json")
    for path in (root / "state").iterdir():
        path.unlink()

    def check(place: Path, acks: dict[str, list[Any]]) -> None:
        if "added" in acks:
            check_store(place / "state", acks, 1, entries_of(root / "state"))

    check_all(root, "copy", check)


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


def test_history_and_audit_log_are_cut_or_not(root: Path) -> None:
    lives.fill(root)
    before = entries_of(root / "state")

    def check(place: Path, acks: dict[str, list[Any]]) -> None:
        store = TinyJobStore(place / "state", lives.LIMITS)
        live, past = set(store.jobs()), [old.id for old in store.past()]
        assert live >= {*range(lives.DAYS + 1, lives.DAYS + 5), *acks.get("added", ())}
        first = min(past)
        assert sorted(past) == list(range(first, lives.DAYS + 1))
        assert first in range(49, 53) if "trimmed" in acks else first <= 52  # of twenty days, and a day of slack
        audited = list(store.audit_log())
        recent = [entry for entry in before if entry.at >= NOW - lives.AUDIT_AGE]
        assert all(entry in audited for entry in recent)
        assert all(entry in before or entry.verb == "submit" for entry in audited)
        assert Counter(entry.target for entry in audited).most_common(1)[0][1] == 1
        assert {f"job {job_id}" for job_id in acks.get("added", ())} <= {entry.target for entry in audited}
        store.close()
        check_whole(place / "state")

    check_all(root, "trim", check)


def test_a_repair_loses_nothing_that_could_be_read(root: Path) -> None:
    state = root / "state"
    lives.fill(root)
    [journal] = state.glob("queue.json.wal.*")
    spoiled = {}
    for path in (journal, state / f"history-{NOW:%Y-%m}.jsonl", state / f"audit-{NOW:%Y-%m}.jsonl"):
        content = path.read_bytes()
        spoiled[path.name] = b"%%" + content[2:].partition(b"\n")[0]
        path.write_bytes(b"%%" + content[2:])
    store = TinyJobStore(state)
    jobs, past, audited = set(store.jobs()), {old.id for old in store.past()}, list(store.audit_log())
    store.close()
    before = repair_of(state).assess()

    def check(place: Path, acks: dict[str, list[Any]]) -> None:
        for name, line in spoiled.items():
            assert any(line in path.read_bytes() for path in (place / "state").rglob("*.*") if path.is_file()), name
        kept = repair_of(place / "state")
        recovery = kept.assess()
        if recovery is not None:
            assert "repaired" not in acks
            assert before is not None
            assert recovery.lost == before.lost
            kept.carry_out(recovery, NOW, ACTOR)
        if damaged := damaged_files(place / "state"):
            move_aside(place / "state", damaged, NOW)
        after = TinyJobStore(place / "state")
        assert set(after.jobs()) >= {*jobs, *acks.get("added", ())}
        assert {old.id for old in after.past()} == past
        now = list(after.audit_log())
        assert all(entry in now for entry in audited)
        assert [entry.verb for entry in now if entry.target == "the queue"] == ["repair"]
        assert after.controls().paused
        after.close()
        assert [finding for finding in verify_directory(place / "state") if not finding.is_harmless] == []

    check_all(root, "repair", check)


def test_a_backup_of_its_name_is_whole(root: Path) -> None:
    lives.fill(root)
    (root / "backups").mkdir()
    good: set[bytes] = set()

    def check(place: Path, acks: dict[str, list[Any]]) -> None:
        made = {path.name: path.read_bytes() for path in (place / "backups").glob("gputui-*.tar.gz")}
        known = acks.get("backup", [])
        assert len(made) >= min(7, len(known))
        for name in made:
            if made[name] not in good:
                upkeep.restore(Options(place / name.removesuffix(".tar.gz")), place / "backups" / name)
                added = acks["added"][: known.index(name) + 1] if name in known else acks["added"]
                assert whole(place / name.removesuffix(".tar.gz"), added) == "whole"
                good.add(made[name])
        assert set(known[-1:]) <= made.keys()
        assert whole(place / "state", acks.get("added", [])) == "whole"

    check_all(root, "back_up", check)


@pytest.mark.parametrize("way", ["restore", "import"])
def test_a_directory_is_filled_whole_or_not_at_all(root: Path, way: str) -> None:
    source = root.parent / "source"
    source.mkdir()
    lives.fill(source)
    (root / "backups").mkdir()
    upkeep.checked_backup(Options(source / "state"), root / "backups" / "gputui.tar.gz", NOW, with_logs=True)
    upkeep.export_to(Options(source / "state"), root / "export", NOW)

    def check(place: Path, acks: dict[str, list[Any]]) -> None:
        found = whole(place / "state", acks.get("added", []))
        assert found == "whole" or ("restored" not in acks and found in {"refused", "empty"})

    check_all(root, way, check)


def whole(state: Path, added: list[int]) -> str:
    """Return how much of what `fill` wrote is there: whole, empty, refused, or what else."""
    if not state.exists():
        return "empty"
    try:
        store = TinyJobStore(state)
    except GputuiError:
        return "refused"
    jobs, past, audited = set(store.jobs()), {old.id for old in store.past()}, len(list(store.audit_log()))
    store.submit([job()], actor=ACTOR)
    store.close()
    expected = {*range(lives.DAYS + 1, lives.DAYS + 5), *added}
    if past == set(range(1, lives.DAYS + 1)) and jobs >= expected and audited >= lives.DAYS + len(expected):
        check_whole(state)
        return "whole"
    return f"{len(jobs)} jobs, {len(past)} ended, {audited} entries" if jobs or past or audited else "empty"
