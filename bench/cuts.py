"""Cuts of a large trace for a small site, by a fixed rule that depends on nothing but the trace.

`python -m bench.cuts philly_82k.csv FOLDER` writes philly_8gpu_{b..i}.csv and philly_64gpu_{b..e}.csv, from windows of
28 days from days 1, 29, 57 and 81 of the trace; jobs of at least 30 seconds and at most as many GPUs as the site has,
durations capped at 72 hours; whole bursts (one tenant's jobs with gaps under 30 minutes), so that sweeps stay whole, in
the order of the SHA-256 of tenant and first second; a burst is left out when its tenant would hold more than a fifth of
the demand wanted, which is 1.2 times the site. For 8 GPUs each window gives two cuts that have no burst in common.

`python -m bench.cuts philly_82k.csv FOLDER SALT...` writes other cuts by the same rule for each salt, which goes before
the tenant into the SHA-256: philly_8gpu_{SALT}{b..i}.csv and philly_64gpu_{SALT}{b..e}.csv.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gputui.replay.trace import HOUR, MAX_TIME, TraceJob, read, rebased

DAY = 24 * HOUR
FIRST_DAYS = (1, 29, 57, 81)
WINDOW = 28 * DAY
SHORTEST = 30.0
GAP = 1800.0
DEMAND = 1.2
LARGEST_PART = 0.2
HALVES = {8: 2, 64: 1}
"""Number of cuts among which the bursts of a window are distributed, by the site's GPUs."""


def cut(trace: Sequence[TraceJob], gpus: int, first_day: int, half: int, salt: str = "") -> list[TraceJob]:
    """Return one cut, by submit time."""
    begins, wanted = first_day * DAY, DEMAND * gpus * WINDOW
    jobs = [
        replace(job, duration=min(job.duration, MAX_TIME))
        for job in trace
        if begins <= job.submit < begins + WINDOW and job.gpus <= gpus and job.duration >= SHORTEST
    ]
    held, kept = Counter[str](), list[TraceJob]()
    for key, burst in sorted((_digest(burst, salt), burst) for burst in bursts(jobs)):
        work = sum(job.duration * job.gpus for job in burst)
        tenant = burst[0].tenant
        mine = int(key[-1], 16) % HALVES[gpus] == half
        if mine and held.total() < wanted and held[tenant] + work <= LARGEST_PART * wanted:
            held[tenant] += int(work)
            kept += burst
    return rebased(sorted(kept, key=lambda job: (job.submit, job.number)))


def bursts(jobs: Iterable[TraceJob]) -> Iterator[list[TraceJob]]:
    """Yield jobs of one tenant, each submitted within half an hour of the last."""
    open_ones: dict[str, list[TraceJob]] = {}
    for job in jobs:
        burst = open_ones.setdefault(job.tenant, [])
        if burst and job.submit - burst[-1].submit >= GAP:
            yield burst
            burst = open_ones[job.tenant] = []
        burst.append(job)
    yield from open_ones.values()


def _digest(burst: Sequence[TraceJob], salt: str) -> str:
    words = ([salt] if salt else []) + [burst[0].tenant, f"{burst[0].submit:.0f}"]
    return hashlib.sha256(":".join(words).encode()).hexdigest()


def write(path: Path, jobs: Sequence[TraceJob]) -> None:
    """Write the jobs as CSV."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("submit_time_s", "duration_s", "gpus", "vc"))
        rows.writerows((f"{job.submit:.0f}", f"{job.duration:.0f}", job.gpus, job.tenant) for job in jobs)


def write_all(trace: Sequence[TraceJob], folder: Path, salt: str) -> None:
    """Write the cuts of one salt and print their names; the empty salt writes the standard ones."""
    for gpus, halves in HALVES.items():
        letters = iter("bcdefghi")
        for first_day in FIRST_DAYS:
            for half in range(halves):
                path = folder / f"philly_{gpus}gpu_{salt}{next(letters)}.csv"
                jobs = cut(trace, gpus, first_day, half, salt)
                write(path, jobs)
                print(f"{path.name}: day {first_day}, {len(jobs)} jobs of {len({job.tenant for job in jobs})} tenants")


def main() -> None:
    """Write all cuts."""
    trace, sha = read(Path(sys.argv[1]))
    print(f"from {sys.argv[1]}, sha256 {sha[:12]}")
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for salt in sys.argv[3:] or [""]:
        write_all(trace, folder, salt)


if __name__ == "__main__":
    main()
