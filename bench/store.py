"""Cost of the store beside stock TinyDB, at growing sizes: `python bench/store.py [SIZE...]`.

Medians in milliseconds, the same jobs in both, on the disk of the current directory's temporary files.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tinydb import TinyDB

from gputui.domain.access import Actor
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.store import TinyJobStore
from gputui.store.codec import encode_job

SIZES = (100, 1_000, 10_000, 50_000)
ACTOR = Actor(1000, "alice")
JOB = Job(
    0,
    JobSpec("pytorch/pytorch:2.5", ("python", "train.py", "--lr", "1e-4"), "train", "alice", GpuRequest(2, 4)),
    datetime(2026, 3, 2, 12, tzinfo=UTC),
    submitted_by="alice",
)


def median(call: Callable[[], object], times: int) -> float:
    """Return the median in milliseconds."""
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        spent.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(spent)


def ours(directory: Path, size: int) -> dict[str, float]:
    """Measure this store."""
    store = TinyJobStore(directory)
    store.submit([JOB] * size, actor=ACTOR)
    folding = median(store.storage.checkpoint, 3)
    store.jobs()
    other = TinyJobStore(directory)

    def submit_cold() -> None:
        cold = TinyJobStore(directory)
        cold.submit([JOB], actor=ACTOR)
        cold.close()

    def open_and_load() -> None:
        cold = TinyJobStore(directory)
        cold.controls()
        cold.close()

    def open_and_read() -> None:
        cold = TinyJobStore(directory)
        cold.jobs()
        cold.close()

    def update() -> None:
        with store.transaction() as transaction:
            job = transaction.get(size // 2)
            transaction.put(job.evolve(priority=(job.priority + 1) % 100))

    def catch_up() -> float:
        other.submit([JOB], actor=ACTOR)
        return median(store.jobs, 1)

    figures = {
        "submit, cold": median(submit_cold, 20),
        "update": median(update, 50),
        "catch up": statistics.median(catch_up() for _ in range(20)),
        "read again": median(store.jobs, 50),
        "open": median(open_and_load, 5),
        "open and read": median(open_and_read, 5),
        "fold": folding,
    }
    for one in (store, other):
        one.close()
    return figures


def stock(path: Path, size: int) -> dict[str, float]:
    """Measure TinyDB without our storage."""
    database = TinyDB(path)
    table = database.table("jobs")
    document = encode_job(JOB)
    table.insert_multiple([document] * size)
    times = 3 if size >= 10_000 else 20
    figures = {
        "submit, cold": median(lambda: TinyDB(path).table("jobs").insert(document), times),
        "update": median(lambda: table.update({"priority": 7}, doc_ids=[size // 2]), times),
        "catch up": median(table.all, times),
        "open and read": median(lambda: TinyDB(path).table("jobs").all(), times),
    }
    database.close()
    return figures


def main() -> None:
    """Print one line for each size and cost."""
    sizes = [int(word) for word in sys.argv[1:]] or SIZES
    print(f"{'jobs':>7} {'cost':<14} {'gputui ms':>10} {'tinydb ms':>10} {'ratio':>7}")
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            mine = ours(Path(place) / "state", size)
            theirs = stock(Path(place) / "stock.json", size)
        for cost, spent in mine.items():
            other = theirs.get(cost)
            beside = f"{other:>10.2f} {other / spent:>6.0f}x" if other is not None else f"{'-':>10} {'-':>7}"
            print(f"{size:>7} {cost:<14} {spent:>10.3f} {beside}", flush=True)


if __name__ == "__main__":
    main()
