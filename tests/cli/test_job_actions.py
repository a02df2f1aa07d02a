"""Commands that act on jobs, GPUs or the scheduler."""

from __future__ import annotations

import json

import pytest

from gputui import bootstrap
from gputui.bootstrap import backend
from gputui.domain.state import JobState
from gputui.ports.backend import LogRequest
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.factories import NOW, job, running, snapshot, uuid


def test_actions_are_carried_into_the_store(run: Run, store: KeptStore) -> None:
    put(store, job(), running(), job())
    for command, ids in (("cancel", "2"), ("requeue", "2"), ("hold", "1,3"), ("release", "3")):
        result = run(command, ids)
        assert (result.code, result.out) == (0, "")
    assert (store.get(1).held, store.get(3).held) == (True, False)
    assert (store.get(2).requeue_requested, store.get(2).cancel_requested) == (True, False)
    assert [entry.verb for entry in store.audit_log("job 2")] == ["cancel", "requeue"]


@cases("ids", [["1", "2"], ["1,2"], ["1-2"], ["2", "1-2"]])
def test_actions_apply_to_several_ids(run: Run, store: KeptStore, ids: list[str]) -> None:
    store.clear()
    put(store, job(), job(), job())
    assert run("cancel", *ids).code == 0
    assert [each.cancel_requested for each in store.jobs().values()] == [True, True, False]


def test_actions_apply_to_all_ids_or_none(run: Run, store: KeptStore) -> None:
    put(store, job())
    result = run("cancel", "1", "2")
    assert (result.code, result.out) == (3, "")
    assert "no job 2" in result.err
    assert not store.get(1).cancel_requested


@cases("command", ["cancel", "hold", "release", "requeue", "show", "logs"])
@cases(("given", "code"), [(["x"], 2), (["0"], 2), (["-1"], 2), (["9" * 400], 2), (["7"], 3), ([], 2)])
def test_invalid_ids_are_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str, given: list[str], code: int
) -> None:
    monkeypatch.setattr(backend, "open_logs", lambda options, store: _Finds(store))
    result = run(command, *given)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("gputui: error: ")
    assert len(result.err) < 300


class _Finds:
    def __init__(self, store: KeptStore) -> None:
        self._store = store

    def open(self, job_id: int, request: LogRequest) -> object:
        return self._store.get(job_id)


def test_impossible_actions_are_refused_with_the_reason(run: Run, store: KeptStore) -> None:
    put(store, running(), job())
    for command, job_id in (("hold", "1"), ("requeue", "2")):
        result = run(command, job_id)
        assert (result.code, result.out) == (1, "")
        assert f"job {job_id} is " in result.err


def test_a_job_names_who_held_it_and_when_and_who_changed_its_priority(run: Run, store: KeptStore) -> None:
    put(store, job())
    run("hold", "1")
    run("priority", "1", "+20")
    held = store.get(1)
    assert (held.held_by, held.held_at, held.ranked_by) == ("alice", NOW, "alice")
    told = json.loads(run("show", "1", "--json").out)
    assert (told["held_by"], told["held_at"], told["priority_by"]) == ("alice", "2026-03-02T12:00:00Z", "alice")
    shown = run("show", "1").out
    assert f"yes by alice, {NOW.astimezone():%Y-%m-%d %H:%M}" in shown
    assert "70, by alice" in shown
    assert "held by alice" in run("queue").out
    run("release", "1")
    assert (store.get(1).held_by, store.get(1).held_at) == ("", None)


@cases(("value", "priority"), [("70", 70), ("+20", 70), ("-10", 40), ("-100", 0), ("+100", 100), ("0", 0)])
def test_priorities_are_absolute_or_relative(run: Run, store: KeptStore, value: str, priority: int) -> None:
    store.clear()
    put(store, job(), job())
    assert run("priority", "1", value).code == 0
    assert store.get(1).priority == priority
    assert store.get(2).priority == 50


@cases("value", ["70", "+5", "top"])
def test_a_job_that_has_ended_keeps_its_priority(run: Run, store: KeptStore, value: str) -> None:
    store.clear()
    put(store, job().evolve(state=JobState.CANCELLED, ended_at=NOW))
    before = store.get(1)
    refused = run("priority", "1", value)
    assert (refused.code, store.get(1)) == (1, before)
    assert "job 1 is CANCELLED: it no longer has a place in the queue (requeue it)" in refused.err


def test_a_cancel_of_jobs_that_have_ended_says_so(run: Run, store: KeptStore) -> None:
    put(store, *(job(i).evolve(state=JobState.CANCELLED, ended_at=NOW) for i in (1, 2, 3)))
    done = run("cancel", "1")
    assert (done.code, done.out, done.err) == (0, "", "job 1 has ended already: it is CANCELLED\n")
    assert run("cancel", "1-3").err == "3 jobs have ended already: 1, 2 and 3\n"


def test_top_puts_a_job_first(run: Run, store: KeptStore) -> None:
    put(store, job(), job())
    assert run("priority", "1-2", "top").code == 0
    assert {each.topped_at for each in store.jobs().values()} == {NOW}


@cases("value", ["101", "up", "+", "--top", "1e3", "-101", "+1000"])
def test_invalid_priorities_are_refused(run: Run, store: KeptStore, value: str) -> None:
    put(store, job())
    result = run("priority", "1", value)
    assert (result.code, result.out) == (2, "")
    assert store.get(1).priority == 50


def test_pause_and_unpause(run: Run, store: KeptStore) -> None:
    assert run("pause", "driver", "update").code == 0
    assert (store.controls().paused, store.controls().pause_reason) == (True, "driver update")
    assert store.controls().paused_by == "alice"
    assert run("unpause").code == 0
    assert not store.controls().paused
    assert run("pause").code == 0
    assert run("pause", "\x1b[2J").code == 2


def test_drain_and_resume_by_index_uuid_or_beginning(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=4)))
    assert run("drain", "1", uuid(2), uuid(3)[:14], "--reason", "fan broken").code == 0
    assert set(store.controls().drains) == {uuid(1), uuid(2), uuid(3)}
    assert store.controls().drains[uuid(1)].reason == "fan broken"
    assert run("resume", "2", uuid(1)).code == 0
    assert set(store.controls().drains) == {uuid(3)}


@cases("gpu", ["9", "x", "GPU-ffff", "-1", ""])
@cases("command", ["drain", "resume"])
def test_invalid_gpus_are_refused(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch, command: str, gpu: str
) -> None:
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=4)))
    result = run(command, "0", "--", gpu)
    assert (result.code, result.out) == (3, "")
    assert not store.controls().drains


def test_a_drained_gpu_that_cannot_be_read_is_resumed(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=4)))
    assert run("drain", "1").code == 0
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(snapshot(gpus=0)))
    assert run("resume", uuid(1)).code == 0
    assert not store.controls().drains


def test_a_finished_job_stays_as_it_is(run: Run, store: KeptStore) -> None:
    put(store, running().evolve(state=JobState.COMPLETED, ended_at=NOW))
    assert run("cancel", "1").code == 0
    assert store.get(1).state is JobState.COMPLETED
