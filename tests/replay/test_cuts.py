"""The rule by which large traces are cut for small sites."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

from bench.cuts import DAY, DEMAND, GAP, LARGEST_PART, WINDOW, bursts, cut, write
from gputui.replay.trace import TraceJob, generate, read


@cache
def trace() -> list[TraceJob]:
    return generate(20_000, 1, days=30)


def shape(job: TraceJob) -> tuple[float, int, str]:
    return (job.duration, job.gpus, job.tenant)


def test_cuts_of_a_trace() -> None:
    # bursts are a tenants jobs without a gap
    moments = [("a", 0.0), ("b", 10.0), ("a", GAP - 1), ("a", 2 * GAP - 1), ("b", 20.0 + GAP)]
    found = sorted(
        [job.submit for job in burst] for burst in bursts(TraceJob(0, at, 60, 1, who) for who, at in moments)
    )
    assert found == [[0.0, GAP - 1], [10.0], [20.0 + GAP], [2 * GAP - 1]]
    # a cut keeps to its window widths times and demand
    jobs = cut(trace(), 8, 1, 0)
    assert jobs == cut(trace(), 8, 1, 0)
    assert jobs[0].submit == 0
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    assert all(job.submit <= WINDOW and job.gpus <= 8 and 30 <= job.duration <= 3 * DAY for job in jobs)
    work = Counter[str]()
    for job in jobs:
        work[job.tenant] += int(job.duration * job.gpus)
    assert max(work.values()) <= LARGEST_PART * DEMAND * 8 * WINDOW
    assert 0.5 < work.total() / (DEMAND * 8 * WINDOW) <= 1 + LARGEST_PART
    # the two cuts of a window share no burst
    told_apart = [replace(job, duration=1000.0 + job.number) for job in trace()]
    one, other = ({job.duration for job in cut(told_apart, 8, 1, half)} for half in (0, 1))
    assert min(len(one), len(other)) > 100
    assert not one & other
    # each salt gives another cut
    assert cut(trace(), 8, 1, 0, "one") == cut(trace(), 8, 1, 0, "one")
    told_apart = [replace(job, duration=1000.0 + job.number) for job in trace()]
    cuts = [{job.duration for job in cut(told_apart, 8, 1, 0, salt)} for salt in ("", "one", "two")]
    assert all(one != other for one, other in zip(cuts, cuts[1:] + cuts[:1], strict=True))


def test_a_written_cut_is_read_back(tmp_path: Path) -> None:
    whole = [job for job in cut(trace(), 8, 1, 0) if job.submit < DAY]
    write(tmp_path / "cut.csv", whole)
    jobs, _ = read(tmp_path / "cut.csv")
    assert sorted(map(shape, jobs)) == sorted(map(shape, whole))
    assert max(abs(a.submit - b.submit) for a, b in zip(jobs, whole, strict=True)) <= 0.5
