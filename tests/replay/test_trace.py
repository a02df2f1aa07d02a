"""Traces: what is read, refused, stretched and made up."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from gputui.domain.errors import InputError
from gputui.replay.generator import digest, generate
from gputui.replay.trace import HOUR, Site, limit, offered, parse, prepare, read

HEAD = "submit_time_s,duration_s,gpus,vc\n"


def test_a_trace_is_read_by_submit_time_and_begins_at_zero(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "70,10,2,b\n50,20,1,a\n")
    jobs, sha = read(file)
    assert [(job.number, job.submit, job.duration, job.gpus, job.tenant) for job in jobs] == [
        (0, 0, 20, 1, "a"),
        (1, 20, 10, 2, "b"),
    ]
    assert sha == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column submit_time_s"),
        (HEAD, "holds no job"),
        (HEAD + "x,1,1,a\n", "line 2: submit_time_s: expected a number"),
        (HEAD + "1,nan,1,a\n", "line 2: duration_s: expected a number"),
        (HEAD + "1,1,1,a\n1,-1,1,a\n", "line 3: expected a duration"),
        (HEAD + "1,1,0,a\n", "GPUs from 1"),
        (HEAD + "1,1,1.5,a\n", "whole number of GPUs"),
        (HEAD + "1\n", "line 2: duration_s: expected a number"),
    ],
)
def test_what_is_no_trace_is_refused_by_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse(text, "trace.csv")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.csv")


def test_submissions_are_stretched_to_the_load() -> None:
    jobs = parse(HEAD + "0,3600,4,a\n1800,3600,20,b\n", "t")
    ready = prepare(jobs, Site(8), load=0.5)
    assert ready[1].gpus == 8
    assert offered(ready, Site(8)) == pytest.approx(0.5)
    assert [job.submit for job in prepare(jobs, Site(8))] == [0, 1800]


def test_durations_are_capped_and_limits_are_made() -> None:
    [job] = prepare(parse(HEAD + "0,999999,1,a\n", "t"), Site(8), limits="exact", max_time=5 * HOUR)
    assert (job.duration, job.limit) == (5 * HOUR, 5 * HOUR)
    assert [limit(duration, "bucket") / HOUR for duration in (60, 0.5 * HOUR, 2.1 * HOUR, 30 * HOUR, 50 * HOUR)] == [
        0.25,
        1,
        12,
        72,
        72,
    ]
    assert (limit(60, "none"), limit(60, "exact")) == (72 * HOUR, 60)


def test_made_up_traces_are_the_same_for_the_same_seed_and_look_as_measured() -> None:
    jobs = generate(5000, 3)
    assert jobs == generate(5000, 3)
    assert digest(jobs) == digest(generate(5000, 3)) != digest(generate(5000, 4))
    widths = Counter(job.gpus for job in jobs)
    assert 0.85 < widths[1] / len(jobs) < 0.98
    work = Counter[int]()
    for job in jobs:
        work[job.gpus] += job.gpus * round(job.duration)
    assert sum(work[width] for width in work if width >= 4) > 0.4 * work.total()


def test_the_last_node_may_be_smaller() -> None:
    assert Site(20, 8).nodes == (8, 8, 4)
