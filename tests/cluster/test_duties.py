"""Duties that one process of a machine has for all: taken when they are free, and left to others."""

from __future__ import annotations

import errno
import fcntl
import os
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.snapshot import Leader, Notice, Snapshot
from gputui.engine.cluster.poll import SharedDuty, Turn
from tests.factories import NOW, snapshot

LAB = snapshot(leader=Leader(0, "head", "slurm", "slurm", NOW))
LATER = snapshot(leader=Leader(0, "head", "slurm", "slurm", NOW), jobs=())


class Work:
    """A duty that notes what it is given."""

    def __init__(self) -> None:
        self.given: list[Snapshot] = []
        self.ends = 0
        self.fault: Exception | None = None

    def update(self, snapshot: Snapshot) -> None:
        if self.fault is not None:
            raise self.fault
        self.given.append(snapshot)

    def notices(self) -> tuple[Notice, ...]:
        return (Notice("warning", "a hook failed"),)

    def close(self) -> None:
        self.ends += 1
        if self.fault is not None:
            raise self.fault


class Process:
    """A process that offers to do the duty."""

    def __init__(self, lock: Path) -> None:
        self.begun: list[Work] = []
        self.waited = 0
        self.duty = SharedDuty("hooks", Turn(lock), self._begin, self._wait)

    def _begin(self, snapshot: Snapshot) -> Work:
        self.begun.append(Work())
        return self.begun[-1]

    def _wait(self) -> None:
        self.waited += 1


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "hooks.lock"


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a file system that has no locks; return its words."""
    words = os.strerror(errno.ENOLCK)

    def refused(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, words)

    monkeypatch.setattr(fcntl, "flock", refused)
    return words


def test_a_lock_is_held_by_one_at_a_time(lock: Path) -> None:
    one, other = Turn(lock), Turn(lock)
    assert (one.take(), one.take(), other.take()) == (True, True, False)
    one.release()
    one.release()
    assert (other.take(), one.take()) == (True, False)
    other.release()


def test_a_lock_is_for_this_user_alone_and_follows_no_link(lock: Path, tmp_path: Path) -> None:
    turn = Turn(lock)
    assert turn.take()
    turn.release()
    assert lock.stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(lock)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        Turn(tmp_path / "link").take()


def test_a_lock_of_another_leaves_no_file_open(lock: Path) -> None:
    holder = Turn(lock)
    assert holder.take()
    before = descriptors()
    assert not Turn(lock).take()
    assert descriptors() == before
    holder.release()


def test_a_file_system_without_locks_leaves_no_file_open(lock: Path, no_locks: str) -> None:
    before = descriptors()
    with pytest.raises(OSError, match=no_locks) as refusal:
        Turn(lock).take()
    assert refusal.value.filename == str(lock)
    assert descriptors() == before


def test_the_first_process_does_the_duty_until_it_ends(lock: Path) -> None:
    first, second = Process(lock), Process(lock)
    for process in (first, second, second):
        process.duty.update(LAB)
    assert (first.duty.is_mine, second.duty.is_mine) == (True, False)
    assert (first.waited, second.waited) == (0, 1)
    first.duty.close()
    assert not first.duty.is_mine
    assert [work.ends for work in first.begun] == [1]
    second.duty.update(LATER)
    assert second.duty.is_mine
    assert [work.given for work in second.begun] == [[LATER]]
    second.duty.close()


def test_each_snapshot_reaches_the_duty_and_its_problems_are_told(lock: Path) -> None:
    process = Process(lock)
    assert process.duty.notices() == ()
    for each in (LAB, LATER):
        process.duty.update(each)
    assert [work.given for work in process.begun] == [[LAB, LATER]]
    assert [notice.text for notice in process.duty.notices()] == ["a hook failed"]
    process.duty.close()
    assert process.duty.notices() == ()


def test_a_cluster_that_has_not_answered_yet_begins_nothing(lock: Path) -> None:
    process = Process(lock)
    for leader in (None, Leader(0, "", "", "slurm", NOW, timedelta(seconds=1))):
        process.duty.update(snapshot(leader=leader))
    assert (process.begun, lock.exists()) == ([], False)
    process.duty.close()


def test_a_directory_that_is_not_there_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = tmp_path / "state" / "hooks.lock"
    process = Process(lock)
    process.duty.update(LAB)
    process.duty.update(LAB)
    words = f"no hooks: {lock}: No such file or directory"
    assert process.duty.notices() == (Notice("warning", words, short="no hooks"),)
    assert [record.getMessage() for record in caplog.records] == [words]
    assert (process.begun, process.waited) == ([], 0)
    lock.parent.mkdir()
    process.duty.update(LAB)
    assert process.duty.is_mine
    assert [notice.text for notice in process.duty.notices()] == ["a hook failed"]
    process.duty.close()


def test_a_file_system_without_locks_is_told(lock: Path, no_locks: str) -> None:
    process = Process(lock)
    process.duty.update(LAB)
    [notice] = process.duty.notices()
    assert notice.text == f"no hooks: {lock}: {no_locks}"


def test_a_duty_that_fails_says_so_and_is_done_again(lock: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(lock)
    process.duty.update(LAB)
    [work] = process.begun
    work.fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    process.duty.update(LAB)
    process.duty.update(LAB)
    assert [notice.text for notice in process.duty.notices()] == ["no hooks: No space left on device", "a hook failed"]
    assert len(caplog.records) == 1
    work.fault = None
    process.duty.update(LATER)
    assert work.given == [LAB, LATER]
    assert [notice.text for notice in process.duty.notices()] == ["a hook failed"]
    work.fault = ValueError()
    process.duty.close()


def test_a_duty_that_cannot_be_begun_is_left_to_others(lock: Path) -> None:
    def refuse(snapshot: Snapshot) -> Work:
        raise KeyError("x")

    first, second = SharedDuty("hooks", Turn(lock), refuse), Process(lock)
    first.update(LAB)
    assert [notice.text for notice in first.notices()] == ["no hooks: KeyError: 'x'"]
    second.duty.update(LAB)
    assert second.duty.is_mine
    second.duty.close()
