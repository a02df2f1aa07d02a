"""`gputui queue`: rows, columns, filters and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import output, queue, terminal
from gputui.domain import arrays
from gputui.domain.errors import Cause, CauseCode, InputError
from gputui.domain.filter import parse_states
from gputui.domain.job import ArrayRef
from gputui.domain.job_spec import GpuRequest
from gputui.domain.snapshot import Leader, Node, Notice, Snapshot
from gputui.domain.state import NO_SCHEDULER, JobState, PendingReason, Reason
from gputui.domain.text import width
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.factories import NOW, array, job, running, snapshot, uuid

RESOURCES = Reason(PendingReason.RESOURCES, "needs 4 GPUs, 1 is free")

SERVE = Leader(7, "here", "root", "serve", NOW)


def test_live_jobs_are_listed_in_the_order_of_their_starts(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, job(gpus=4), job(gpus=(1, 2), priority=70, time_limit=timedelta(hours=1)))
    put(store, running(on=[uuid(1), uuid(0)]), running().evolve(state=JobState.COMPLETED, ended_at=NOW))
    seen = snapshot(
        gpus=2,
        order=(2, 1),
        reasons={1: RESOURCES},
        expected_starts={1: NOW + timedelta(hours=2)},
        progress={3: "pulling its image, 45 %"},
    )
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(seen))
    text = f"{RESOURCES.text}; expected 14:00 UTC when job 3 ends by its limit"
    told = replace(RESOURCES, text=text, times=(NOW + timedelta(hours=2),))
    assert "about" not in queue.why(store.get(1), replace(seen, reasons={1: told}))
    result = run("queue")
    header, *rows = [line.split(maxsplit=7) for line in result.out.splitlines()]
    assert header == ["ID", "ST", "PRI", "NAME", "TENANT", "GPUS", "TIME", "REASON"]
    assert [row[0] for row in rows] == ["3", "2", "1"]
    assert rows[0][1:] == ["R", "50", "train", "alice", "2:0,1", "1m00s", "pulling its image, 45 %"]
    assert rows[1][1:] == ["PD", "70", "train", "alice", "1-2", "-/1h"]
    assert rows[2][5:7] == ["4", "-"]
    assert re.fullmatch(r"needs 4 GPUs, 1 is free; about \S+ \(Resources\)", rows[2][7])
    assert (result.code, result.err) == (0, "")


def test_finished_jobs_states_and_tenants(run: Run, store: KeptStore) -> None:
    failed = Cause(CauseCode.NON_ZERO_EXIT, "exit code 3")
    put(store, running().evolve(state=JobState.FAILED, ended_at=NOW, cause=failed), job(tenant="bob"), running())

    def ids(*arguments: str) -> list[str]:
        return [line.split()[0] for line in run("queue", *arguments).out.splitlines()[1:]]

    assert ids() == ["3", "2"]
    assert ids("--all") == ["3", "2", "1"]
    assert ids("--state", "F") == ["1"]
    assert ids("--state", "failed,pd") == ["2", "1"]
    assert ids("--state", "R", "--state", "PD") == ["3", "2"]
    assert ids("--tenant", "bob") == ["2"]
    assert ids("--tenant", "nobody") == []
    assert "exit code 3" in run("queue", "-a").out


def test_an_unknown_state_is_refused(run: Run) -> None:
    result = run("queue", "--state", "SLEEPING")
    assert (result.code, result.out) == (2, "")
    assert "--state" in result.err
    with pytest.raises(InputError):
        parse_states([""])


def test_json_is_an_array_in_the_same_order(run: Run, store: KeptStore) -> None:
    assert json.loads(run("queue", "--json").out) == []
    put(store, job(), running())
    shown = json.loads(run("queue", "--json").out)
    assert [(each["id"], each["state"]) for each in shown] == [(2, "RUNNING"), (1, "PENDING")]


@cases("total", [20, 40, 80, 200])
@cases("name", ["x" * 300, "训" * 300, "🚀" * 300, "é" * 300])
def test_no_row_is_wider_than_the_terminal(total: int, name: str) -> None:
    jobs = [job(1, name=name, tenant=name), job(123456, name="short")]
    seen = snapshot(jobs, reasons={1: Reason(PendingReason.RESOURCES, "why " * 100)})
    lines = output.lines(queue.COLUMNS, [queue.row(each, seen) for each in jobs], total)
    assert all(width(line) <= total for line in lines)
    assert len(lines) == 3


def test_a_long_name_leaves_room_for_the_reason_and_is_cut_in_a_pipe() -> None:
    waiting = job(1, name="a-rather-long-name-of-a-job")
    seen = snapshot([waiting], reasons={1: RESOURCES})
    rows = [queue.row(waiting, seen)]
    assert "a-rather-long-name-of-a…" in output.lines(queue.COLUMNS, rows, 200)[1]
    narrow = output.lines(queue.COLUMNS, rows, 72)[1]
    assert "needs 4 GPUs, 1 is free" in narrow
    assert "a-rather" in narrow
    waiting = job(1, name="x" * 10_000, tenant="y" * 10_000)
    (_, line) = output.lines(queue.COLUMNS, [queue.row(waiting, snapshot([waiting]))], None)
    assert width(line) < 100


def test_columns_are_aligned_in_any_script() -> None:
    jobs = [job(1, name="训练"), job(2, name="train")]
    lines = output.lines(queue.COLUMNS, [queue.row(each, snapshot(jobs)) for each in jobs], None)
    places = {width(line[: line.index("alice")]) for line in lines[1:]}
    assert len(places) == 1


def test_the_table_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal.width() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "133")
    assert terminal.width() == 133
    monkeypatch.setenv("COLUMNS", "wide")
    assert terminal.width() == 80


def test_gpus_times_and_elements_are_shown_in_words() -> None:
    assert queue.request_word(GpuRequest()) == "-"
    assert queue.request_word(GpuRequest(2, 4)) == "2-4"
    assert queue.request_word(GpuRequest(1, 1024, everything=True)) == "all"
    assert queue.request_word(GpuRequest(2, 2, devices=("0", uuid(3)))) == "#0,GPU-0000"
    assert queue.gpus_word(running(on=[uuid(0), uuid(7)]), ()) == "2"
    assert queue.time_word(running(time_limit=timedelta(hours=2)), NOW) == "1m00s/2h"
    done = running().evolve(state=JobState.COMPLETED, ended_at=NOW - timedelta(seconds=20))
    assert queue.time_word(done, NOW) == "40s"
    again = running().evolve(state=JobState.CONFIGURING)
    assert queue.time_word(again, NOW) == "-"
    assert queue.row(job(array=ArrayRef(1, 7)), Snapshot())[0] == "1_7"


def test_reasons_are_shown_with_one_code() -> None:
    assert queue.why(job(held=True), Snapshot()) == "held (JobHeldUser)"
    assert queue.why(job(held=True, hold_reason="image not found"), Snapshot()) == "image not found (JobHeldUser)"
    for asked, words in (
        (job(3, cancel_requested=True), "will be cancelled"),
        (running(3, cancel_requested=True), "will be cancelled"),
        (running(3, requeue_requested=True), "will be run again"),
        (running(3).evolve(suspended=True), "will be suspended"),
    ):
        assert queue.why(asked, Snapshot(leader=SERVE, reasons={3: Reason(PendingReason.RESOURCES, "waits")})) == words
        assert queue.why(asked, Snapshot()) == f"{words}; {NO_SCHEDULER}"
    for code, words in (
        (PendingReason.JOB_HELD_USER, "held by its user (JobHeldUser)"),
        (PendingReason.QUOTA_EXCEEDED, "over a limit of its QOS: GPUs (QOSMaxGRESPerUser)"),
    ):
        assert queue.why(job(3), Snapshot(reasons={3: Reason(code, words)})) == words
    counted = Reason(PendingReason.RESOURCES, "waits for 2 GPUs (1 is free)")
    assert queue.why(job(3), Snapshot(reasons={3: counted})) == "waits for 2 GPUs (1 is free) (Resources)"


def test_obstacles_to_all_starts_are_noted_beside_the_table(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, job())
    assert run("pause", "driver update").code == 0
    assert run("queue").err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run("queue").err == (
        f"{NO_SCHEDULER}\npaused by alice, {NOW.astimezone():%Y-%m-%d %H:%M}: driver update (gputui unpause)\n"
    )
    assert run("queue", "--json").err == ""


def test_a_real_store_is_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    state = str(tmp_path / "state")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run("--state", state, "submit", "--name", "first", "busybox").out == "1\n"
    assert run("--state", state, "queue").out.splitlines()[1].split()[:4] == ["1", "PD", "50", "first"]


def test_waiting_elements_of_an_array_share_a_line(run: Run, store: KeptStore) -> None:
    put(store, job(), running(array=ArrayRef(2, 0, 8)))
    put(store, *(job(array=ArrayRef(2, index, 8)) for index in (1, 2, 3, 7)))
    put(store, job(array=ArrayRef(2, 9, 8), priority=80))
    rows = [line.split(maxsplit=7) for line in run("queue").out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["2_0", "1", "2_[1-3,7%8]", "2_9"]
    assert {row[3] for row in rows} == {"train"}
    unfolded = [line.split()[0] for line in run("queue", "--array").out.splitlines()[1:]]
    assert unfolded == ["2_0", "1", "2_1", "2_2", "2_3", "2_7", "2_9"]
    assert len(json.loads(run("queue", "--json").out)) == 7


@cases(
    ("indices", "words"),
    [
        (range(100_000), "0-99999"),
        ((5,), "5"),
        ((3, 1, 2, 9), "1-3,9"),
        (range(0, 1000, 2), "0-998:2"),
        ([number * number for number in range(30)], "0-1,4,9,16,25,36,49,64,..."),
    ],
)
def test_indices_are_shown_as_ranges(indices: Iterable[int], words: str) -> None:
    assert arrays.indices_word(indices) == words


def test_an_entry_is_one_line_and_one_json_object(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Reason(PendingReason.RESOURCES, "needs 1 GPU: 0 are free")
    entry, running_one = array(range(3, 10), first=5, limit=8), running(4, array=ArrayRef(1, 2, 8))
    shown = Snapshot(taken_at=NOW, jobs=(running_one, entry), order=(5,), reasons={5: waits})
    monkeypatch.setattr(bootstrap, "current_snapshot", lambda options, store: shown)
    rows = [line.split(maxsplit=7) for line in run("queue").out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1_2", "5_[3-9%8]"]
    assert rows[1][-1] == "7 elements: needs 1 GPU: 0 are free (Resources)"
    both = json.loads(run("queue", "--json").out)
    assert [job["array"]["count"] for job in both] == [1, 7]
    assert both[1]["array"] == {"id": 5, "index": 3, "limit": 8, "count": 7, "indices": "3-9"}
    each = json.loads(run("queue", "--json", "--array").out)
    assert [job["id"] for job in each] == [4, *range(5, 12)]
    assert each[-1]["array"] == {"id": 5, "index": 9, "limit": 8, "count": 1, "indices": "9"}
    assert each[-1]["reason"]["code"] == "Resources"
    assert [line.split()[0] for line in run("queue", "-r").out.splitlines()[1:]] == [
        "1_2",
        *(f"5_{n}" for n in range(3, 10)),
    ]


def test_a_filter_chooses_some_elements_of_an_entry(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Snapshot(taken_at=NOW, jobs=(array(range(100)),))
    monkeypatch.setattr(bootstrap, "current_snapshot", lambda options, store: shown)
    for words, found in {"id:10-12": "7_[3-5]", "7_42": "7_42", "array:7": "7_[0-99]"}.items():
        [line] = run("queue", "-f", words).out.splitlines()[1:]
        assert line.split()[0] == found


def test_cancelled_elements_are_one_line(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    over = array(range(99_000)).evolve(
        state=JobState.CANCELLED, ended_at=NOW, cause=Cause(CauseCode.CANCELLED, "cancelled")
    )
    shown = Snapshot(taken_at=NOW, jobs=(over,))
    monkeypatch.setattr(bootstrap, "current_snapshot", lambda options, store: shown)
    assert run("queue").out.splitlines()[1:] == []
    [line] = run("queue", "-a").out.splitlines()[1:]
    assert line.split()[:2] == ["7_[0-98999]", "CA"]
    assert line.endswith("99000 elements: cancelled")


def test_an_array_of_a_hundred_thousand_is_one_line(run: Run, store: KeptStore) -> None:
    assert run("submit", "--array", "0-99999%8", "busybox").code == 0
    [_, line] = run("queue").out.splitlines()
    assert line.split()[0] == "1_[0-99999%8]"


def test_a_filter_chooses_jobs_as_in_the_console(run: Run, store: KeptStore) -> None:
    put(store, job(gpus=4, name="bert"), job(gpus=1, name="bert-small"), job(gpus=8, name="vit"))
    put(store, running().evolve(state=JobState.FAILED, ended_at=NOW, exit_code=3))

    def ids(words: str) -> list[str]:
        return [line.split()[0] for line in run("queue", "--filter", words).out.splitlines()[1:]]

    assert ids("name~bert gpus>=2") == ["1"]
    assert ids("state:f exit!=0") == ["4"]
    refused = run("queue", "--filter", "colour:red")
    assert (refused.code, refused.out) == (2, "")
    assert "--filter: there is no field 'colour' (fields are state, is, id" in refused.err


def test_a_queue_that_the_files_tell_says_so(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, job())
    notice = Notice("warning", "the scheduler (serve of root, pid 7) does not answer; this is what the files say")
    shown = Snapshot(taken_at=NOW, jobs=(job(1),), order=(1,), leader=SERVE)
    for nodes, told in (((), True), ((Node("here"),), False)):
        seen = replace(shown, nodes=nodes, notices=(notice,))
        monkeypatch.setattr(bootstrap, "current_snapshot", lambda options, store, seen=seen: seen)
        assert ("does not answer" in run("queue").err) is told
