"""Traces: reading, refusals, stretching and generation."""

from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputui.domain.errors import InputError
from gputui.replay.trace import HOUR, LIMITS, Site, digest, generate, limit, offered, parse, prepare, read
from tests.cases import cases

HEAD = "submit_time_s,duration_s,gpus,vc\n"
MORE = "submit_time_s,duration_s,gpus,priority,name,limit,preemptible\n"


def test_a_trace_is_read_by_submit_time_and_begins_at_zero(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(HEAD + "70,10,2,b\n50,20,1,a\n")
    jobs, sha = read(file)
    assert [(job.number, job.submit, job.duration, job.gpus, job.tenant) for job in jobs] == [
        (0, 0, 20, 1, "a"),
        (1, 20, 10, 2, "b"),
    ]
    assert sha == hashlib.sha256(file.read_bytes()).hexdigest()


@cases(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "no column submit_time_s"),
        (HEAD, "holds no job"),
        (HEAD + "x,1,1,a\n", "line 2: submit_time_s: expected a number"),
        (HEAD + "1,nan,1,a\n", "line 2: duration_s: expected a number, found"),
        (HEAD + "1,inf,1,a\n", "line 2: duration_s: expected a number, found"),
        (HEAD + "1e18,1,1,a\n", "line 2: submit_time_s: expected a number of at most 1,000,000,000,000, found '1e18'"),
        (HEAD + "1,1,1,a\n1,-1,1,a\n", "line 3: expected a duration"),
        (HEAD + "1,1,0,a\n", "GPUs from 1"),
        (HEAD + "1,1,1.5,a\n", "whole number of GPUs"),
        (HEAD + "1\n", "line 2: duration_s: expected a number, found an empty cell"),
        (HEAD + "1,1,1,a,b\n", "line 2: has 5 cells, but the first line names 4 columns"),
        (HEAD + '1,1,1,"a\n', "line 3: is not CSV: unexpected end of data|line 2: is not CSV"),
        (HEAD.replace("vc", "gpus") + "1,1,1,1\n", "line 1: has the column gpus twice"),
        (HEAD.replace(",", ";"), "no column submit_time_s .columns are separated by commas"),
        ("", "no column submit_time_s"),
        (MORE + "1,1,1,high,,,\n", "line 2: priority: expected a whole number from 0 to 100, found 'high'"),
        (MORE + "1,1,1,101,,,\n", "line 2: priority: expected a whole number from 0 to 100, found '101'"),
        (MORE + "1,1,1,50,x,soon,\n", "line 2: limit: .*is not a duration"),
        (MORE + "1,1,1,50,x,0,\n", "line 2: limit: expected a duration above 0, found '0'"),
        (MORE + "1,1,1,50,x,,perhaps\n", "line 2: preemptible: expected 1 or 0, true or false, found 'perhaps'"),
        (MORE + "1,1,\x1b[31m,50,x,,\n", "line 2: gpus: expected a number, found ''"),
    ],
)
def test_invalid_traces_are_refused_by_line_and_column(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse(text, "trace.csv")


def test_existing_columns_are_read() -> None:
    text = MORE + "0,10,2,80,train,1h30m,yes\n\n5,10,1,,,,\n6,10,1\n"
    first, second, third = parse(text, "t")
    assert (first.priority, first.name, first.stated, first.preemptible) == (80, "train", 5400, True)
    assert (second.priority, second.name, second.stated, second.preemptible) == (50, "", None, False)
    assert (third.priority, third.tenant, third.ended_well) == (50, "", True)


def test_spaces_may_follow_the_commas() -> None:
    assert parse('submit_time_s, "duration_s", gpus\n0, "10", 2\n', "trace.csv")[0].duration == 10


def test_columns_have_other_names_and_cells_may_be_quoted() -> None:
    text = 'GPUs, Submit_Time_s,duration_s,tenant,limit_s,status,note\r\n1,0,5,"a, b",60,Failed,"two\nlines"\r\n'
    [job] = parse(text, "t")
    assert (job.gpus, job.tenant, job.stated, job.ended_well) == (1, "a, b", 60, False)
    assert parse("submit_time_s,duration_s,gpus,tenant,vc\n0,5,1,a,b\n", "t")[0].tenant == "b"


def test_a_stated_limit_overrides_a_generated_one() -> None:
    jobs = parse(MORE + "0,100,1,50,x,2h,\n0,100,1,50,x,,\n", "t")
    found = {how: prepare(jobs, Site(8), limits=how) for how in LIMITS}
    assert [job.limit for job in found["bucket"]] == [2 * HOUR, 0.25 * HOUR]
    assert [job.is_limited for job in found["bucket"]] == [True, True]
    assert [job.limit for job in found["none"]] == [2 * HOUR, 72 * HOUR]
    assert [job.is_limited for job in found["none"]] == [True, False]


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(f"{HEAD}1,1,1,a\n".encode()))
    with pytest.raises(InputError, match="it is compressed"):
        read(tmp_path / "trace.csv.gz")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.csv")


def test_submissions_are_stretched_to_the_load() -> None:
    jobs = parse(HEAD + "0,3600,4,a\n1800,3600,20,b\n", "t")
    ready = prepare(jobs, Site(8), load=0.5)
    assert ready[1].gpus == 8
    assert offered(ready, Site(8)) == pytest.approx(0.5)
    assert [job.submit for job in prepare(jobs, Site(8))] == [0, 1800]


@cases(
    ("rows", "words"),
    [
        ("0,60,1,a\n0,60,1,b\n", "all jobs arrive at the same time: no stretch leads to load 0.5"),
        ("0,0,1,a\n9,0,1,b\n", "no job"),
    ],
)
def test_a_trace_that_cannot_be_stretched_is_refused(rows: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        prepare(parse(HEAD + rows, "t"), Site(8), load=0.5)


@given(st.text(st.sampled_from('0159.-e,"\n \x00aé;')), st.booleans())
def test_any_text_is_read_or_refused(text: str, has_head: bool) -> None:
    with suppress(InputError):
        jobs = parse((MORE if has_head else "") + text, "t")
        assert jobs[0].submit == 0
        assert all(job.duration >= 0 and job.gpus >= 1 for job in jobs)


def test_durations_are_capped_and_limits_are_generated() -> None:
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


def test_generated_traces_are_reproducible_and_realistic() -> None:
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
