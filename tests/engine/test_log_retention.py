"""Saved logs and telemetry within their limits of age and size."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.engine.saved_logs import LogSweeper, kept
from tests.factories import ACTOR, NOW, job
from tests.memory_store import MemoryJobStore


def write(directory: Path, job_id: int, name: str, days: int, size: int = 100) -> Path:
    """Write a file of a job, last changed `days` days ago."""
    path = directory / "logs" / str(job_id) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = (NOW - timedelta(days=days)).timestamp()
    os.utime(path, (then, then))
    return path


def sweep(directory: Path, settings: StoreSettings, store: MemoryJobStore | None = None) -> list[str]:
    """Keep the limits, two directories a step; return the files that are left."""
    sweeper = LogSweeper(directory, settings, store or MemoryJobStore(), step=2)
    for _ in range(20):
        sweeper.step(NOW)
    return sorted(str(path.relative_to(directory / "logs")) for path in directory.glob("logs/*/*"))


def test_old_logs_are_removed_except_those_of_live_jobs(tmp_path: Path) -> None:
    store = MemoryJobStore()
    store.submit([job() for _ in range(3)], actor=ACTOR)
    with store.transaction() as transaction:
        transaction.put(transaction.get(2).evolve(state=JobState.CANCELLED, ended_at=NOW))
        transaction.put(transaction.get(3).evolve(state=JobState.CANCELLED, ended_at=NOW, requeue_requested=True))
    for job_id in range(1, 7):
        write(tmp_path, job_id, "1.log", days=40)
        write(tmp_path, job_id, "2.log", days=3)
        write(tmp_path, job_id, "1.telemetry", days=40)
    assert len(sweep(tmp_path, StoreSettings(), store)) == 18
    left = sweep(tmp_path, StoreSettings(logs_max_age=timedelta(days=30)), store)
    assert [name for name in left if name.endswith("/1.log")] == ["1/1.log", "3/1.log"]
    assert sum(name.endswith("/2.log") for name in left) == 6
    assert sum(name.endswith(".telemetry") for name in left) == 6


def test_excess_files_of_each_kind_are_removed_oldest_first(tmp_path: Path) -> None:
    for days in range(1, 8):
        write(tmp_path, days, "1.log", days)
        write(tmp_path, days, "1.telemetry", days)
    settings = StoreSettings(logs_max_size=350, telemetry_max_size=100)
    assert sweep(tmp_path, settings) == ["1/1.log", "1/1.telemetry", "2/1.log", "3/1.log"]
    [logs, telemetry] = kept(tmp_path, settings)
    assert (logs.size, logs.files, logs.oldest_at) == (300, 3, NOW - timedelta(days=3))
    assert (telemetry.size, telemetry.is_over(NOW, timedelta(0))) == (100, False)


def test_counting_ends_in_time_and_says_what_it_counted(tmp_path: Path) -> None:
    for job_id in (100, 20, 3):
        write(tmp_path, job_id, "1.log", days=job_id)
    [logs, _] = kept(tmp_path, StoreSettings(), seconds=0)
    assert (logs.files, logs.counted, logs.oldest_at) == (1, (1, 3), NOW - timedelta(days=3))
    assert [each.counted for each in kept(tmp_path, StoreSettings(), seconds=60)] == [None, None]


def test_links_are_not_followed_and_empty_directories_are_removed(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "other", 1, "1.log", days=40)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "5").symlink_to(elsewhere.parent)
    write(tmp_path, 7, "1.log", days=40).unlink()
    then = (NOW - timedelta(days=2)).timestamp()
    os.utime(tmp_path / "logs" / "7", (then, then))
    sweep(tmp_path, StoreSettings(logs_max_age=timedelta(days=1)))
    assert elsewhere.exists()
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["5"]
