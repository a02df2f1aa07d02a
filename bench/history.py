"""The cost of moving finished jobs to history: `python -m bench.history [JOBS_IN_THE_MONTH...]`.

Milliseconds for one job that leaves the queue, and those during which other writers wait for it, with so many jobs in
the month's file already.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from bench.store import ACTOR, JOB
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from gputui.store.codec import encode_job
from gputui.store.files import StoreLock

SIZES = (1_000, 150_000)
NOW = datetime(2026, 3, 30, 12, tzinfo=UTC)
ENDED = NOW - timedelta(days=10)
MOVES = 20


def main() -> None:
    """Print one line for each size."""
    print(f"{'in the month':>12} {'file MB':>8} {'move ms':>8} {'locked ms':>9} {'find ms':>8} {'first find ms':>13}")
    for size in [int(word) for word in sys.argv[1:]] or SIZES:
        with tempfile.TemporaryDirectory() as place:
            measure(Path(place) / "state", size)


def measure(directory: Path, size: int) -> None:
    """Fill a month, then move jobs one by one."""
    store = TinyJobStore(directory, StoreSettings(keep_finished=10_000))
    over = JOB.evolve(state=JobState.COMPLETED, ended_at=ENDED)
    store.submit([JOB] * MOVES, actor=ACTOR)
    document = encode_job(over)
    with (directory / "history-2026-03.jsonl").open("wb") as file:
        for number in range(size):
            file.write(msgspec.json.encode({"id": 1_000_000 + number, "schema": 2, "job": document}) + b"\n")
    store.maintain(NOW)
    moves: list[float] = []
    locked: list[float] = []
    for job_id in range(1, MOVES + 1):
        with store.transaction() as transaction:
            transaction.put(transaction.get(job_id).evolve(state=JobState.COMPLETED, ended_at=ENDED))
        with timed_lock(locked):
            begun = time.perf_counter()
            store.maintain(NOW)
            moves.append((time.perf_counter() - begun) * 1e3)
    assert not store.jobs()
    first, again = seconds_of(store, 5), seconds_of(store, 5)
    megabytes = (directory / "history-2026-03.jsonl").stat().st_size / 1e6
    middle = statistics.median
    print(f"{size:>12,} {megabytes:>8.0f} {middle(moves):>8.2f} {middle(locked):>9.2f} {again:>8.2f} {first:>13.1f}")
    store.close()


def seconds_of(store: TinyJobStore, job_id: int) -> float:
    """Return the milliseconds to find a job in the history."""
    begun = time.perf_counter()
    store.get(job_id)
    return (time.perf_counter() - begun) * 1e3


@contextmanager
def timed_lock(spent: list[float]) -> Iterator[None]:
    """Add the milliseconds during which the block holds the lock."""
    real = StoreLock.held
    total = 0.0

    @contextmanager
    def held(self: StoreLock) -> Iterator[None]:
        nonlocal total
        is_inner = self.is_mine
        with real(self):
            begun = time.perf_counter()
            yield
            total += 0.0 if is_inner else time.perf_counter() - begun

    StoreLock.held = held  # type: ignore[method-assign]
    try:
        yield
    finally:
        StoreLock.held = real  # type: ignore[method-assign]
        spent.append(total * 1e3)


if __name__ == "__main__":
    main()
