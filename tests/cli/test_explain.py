"""`explain` and `--dry-run`: reasons of waiting, and effects of changes before they are made."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli.main import run
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState
from gputui.domain.job import Attempt, Job
from gputui.domain.policy.plan import plan
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.engine.tick.snapshot_builder import with_plan
from gputui.ports import JobStore
from tests.cases import cases
from tests.factories import ACTOR, NOW, spec, uuid, view
from tests.memory_store import MemoryJobStore

Captured: TypeAlias = pytest.CaptureFixture[str]


class LastingStore(MemoryJobStore):
    def close(self) -> None:
        """Keep the store open, as other commands of the test use it."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> JobStore:
    """Two GPUs, held for another hour by job 1; jobs 2 and 3 wait, one behind the other."""
    found = LastingStore()
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    jobs = [Job(0, replace(spec(2, name=name), time_limit=hour), now) for name in ("runs", "first", "second")]
    found.submit(jobs, actor=ACTOR)
    with found.transaction() as transaction:
        attempt = Attempt(1, (uuid(0), uuid(1)), now, "c1", now)
        started = transaction.get(1).to(JobState.CONFIGURING, attempts=(attempt,)).to(JobState.RUNNING, started_at=now)
        transaction.put(started)

    def picture(options: object, store: JobStore, *, planned: bool = True) -> Snapshot:
        rows = tuple(view(i, GpuState.ALLOCATED, job_id=1) for i in range(2))
        node = Node("here", rows, runtimes=(RuntimeStatus("docker", up=True, text="up"),))
        snapshot = Snapshot(taken_at=now, nodes=(node,), jobs=tuple(store.jobs().values()))
        return with_plan(snapshot, plan(snapshot, Settings(), now))

    monkeypatch.setattr(bootstrap, "open_store", lambda options, waiting=None: found)
    monkeypatch.setattr(bootstrap, "current_snapshot", picture)
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path))
    return found


def test_explain_shows_place_score_reason_and_expected_start(store: JobStore, capsys: Captured) -> None:
    assert run(["explain", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["position"], told["waiting"], told["waits_for"]) == (2, 2, [1])
    score = told["score"]
    assert (score["level"], score["promoted"], score["planned"]) == (50, False, 3600)
    assert score["expansion"] == pytest.approx((score["waited"] + score["credited"] + 3600) / 3600)
    assert score["age"] == pytest.approx(score["waited"] / (36 * 3600))
    assert score["total"] == pytest.approx(score["expansion"] + score["age"])
    expected = datetime.fromisoformat(told["expected_start_at"])
    assert abs(expected - (datetime.now(UTC) + timedelta(hours=2))) < timedelta(seconds=30)
    assert told["certainty"].startswith("at the latest")
    assert run(["explain", "3"]) == 0
    shown = capsys.readouterr().out
    assert "number 2 of 2 waiting" in shown
    assert "(waited 0s + planned 1h00m) / planned 1h00m" in shown


def test_explain_names_the_limits_of_the_forecast(store: JobStore, capsys: Captured) -> None:
    first = store.get(2)
    with store.transaction() as transaction:
        transaction.put(replace(first, topped_at=NOW, spec=replace(first.spec, tenant="bob", time_limit=None)))
    assert run(["explain", "3"]) == 0
    shown = capsys.readouterr().out
    shifting = "scores that grow at different paces may change the order"
    assert f"rough: 1 job ahead of it without a limit, taken alike; {shifting}" in shown


def test_explain_of_a_job_that_does_not_wait_says_so(store: JobStore, capsys: Captured) -> None:
    assert run(["explain", "1"]) == 1
    assert "job 1 is RUNNING" in capsys.readouterr().err
    assert run(["explain", "99"]) == 3


def test_explain_mentions_a_long_wait(store: JobStore, capsys: Captured) -> None:
    with store.transaction() as transaction:
        old = transaction.get(3)
        transaction.put(replace(old, submitted_at=old.submitted_at - timedelta(days=8)))
    assert run(["explain", "3"]) == 0
    shown = capsys.readouterr().out
    assert "number 1 of 2" in shown
    assert "age            5.333  waited 8d00h" in shown


def test_dry_runs_show_who_starts_when_and_change_nothing(store: JobStore, capsys: Captured) -> None:
    assert run(["priority", "3", "+20", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop(0) == "job 3 moves from place 2 to 1 of 2 in the queue"
    assert [line.split()[0] for line in lines] == ["ID", "3", "2"]
    assert lines[1].endswith("1h earlier")
    assert lines[2].endswith("1h later")
    assert store.get(3).priority == 50
    assert run(["cancel", "2", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "1h earlier" in shown
    assert shown.splitlines()[-1].endswith("-> cancelled")
    assert not store.get(2).cancel_requested
    assert run(["resume", "0", "--dry-run"]) == 0
    assert capsys.readouterr() == ("no other job would start earlier or later\n", "")
    assert not list(store.audit_log("resume"))
    assert run(["submit", "--dry-run", "--gpus", "2", "--priority", "90", "--time-limit", "1h", "busybox", "true"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["4", "2", "3"]
    assert len(store.jobs()) == 3
    assert run(["priority", "2", "+20", "--dry-run"]) == 0
    assert capsys.readouterr().out == "no other job would start earlier or later\n"
    assert run(["submit", "--dry-run", "--gpus", "9", "busybox", "true"]) == 0
    assert capsys.readouterr().out == "job 4 would never start: needs 9 GPUs, this server has 2\n"
    assert run(["submit", "--dry-run", "--gpus", "1", "--gpu-model", "B200", "busybox", "true"]) == 0
    assert capsys.readouterr().out == "job 4 would never start: needs 1 GPU, none of 2 here is suitable\n"


def test_a_dry_run_names_the_victims(store: JobStore, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUTUI_POLICY_PREEMPTION", "on")
    monkeypatch.setenv("GPUTUI_POLICY_PREEMPTION_MIN_RUN", "0")
    with store.transaction() as transaction:
        victim = transaction.get(1)
        transaction.put(victim.evolve(spec=replace(victim.spec, preemptible=True)))
    assert run(["priority", "3", "100", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [told] = [line for line in lines if line.split()[0] == "1"]
    assert "runs now -> 20" in told
    assert store.get(1).state is JobState.RUNNING


@cases(
    ("words", "first", "last"),
    [
        (["cancel", "1-3"], "would cancel: 3 jobs: 1 2 3", "-> cancelled"),
        (["hold", "2"], "would hold: job 2", "release it to let it start"),
        (["hold", "1"], "nothing would be changed", "no other job would start earlier or later"),
        (["release", "2"], "nothing would be changed", "no other job would start earlier or later"),
    ],
)
def test_a_dry_run_names_the_jobs_that_would_change(
    store: JobStore, capsys: Captured, words: list[str], first: str, last: str
) -> None:
    before = dict(store.jobs())
    assert run([*words, "--dry-run"]) == 0
    told, *_, end = capsys.readouterr().out.splitlines()
    assert told == first
    assert end.endswith(last)
    assert dict(store.jobs()) == before


def test_a_dry_run_says_why_there_is_no_forecast(store: JobStore, capsys: Captured) -> None:
    assert run(["submit", "--dry-run", "--hold", "busybox", "true"]) == 0
    shown, me = capsys.readouterr().out, bootstrap.actor().user
    assert shown.startswith(f"job 4 would have no known start: JobHeldUser: held by {me} at ")


def test_explain_says_never_for_an_impossible_job(store: JobStore, capsys: Captured) -> None:
    store.submit([Job(0, spec(9), datetime.now(UTC))], actor=ACTOR)
    assert run(["explain", "4"]) == 0
    shown = capsys.readouterr().out
    assert "needs 9 GPUs (only 2 suitable here): 0 free, 2 held by jobs" in shown
    assert "never: needs 9 GPUs, this server has 2" in shown


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone to nine hours ahead of UTC."""
    monkeypatch.setenv("TZ", "XYZ-9")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_texts_have_local_times_and_json_utc(store: JobStore, capsys: Captured) -> None:
    assert run(["explain", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    at = datetime.fromisoformat(told["expected_start_at"])
    assert f"expected {at:%H:%M} UTC" in told["reason"]["text"] or f" {at:%H:%M} UTC" in told["reason"]["text"]
    for command in (["explain", "2"], ["queue"], ["show", "2"]):
        assert run(command) == 0
        shown = capsys.readouterr().out
        assert "UTC" not in shown
        assert f"{at.astimezone():%H:%M} when job 1 ends by its limit" in shown


def test_a_time_in_the_reason_is_not_repeated(store: JobStore, capsys: Captured) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=30)
    store.submit([Job(0, replace(spec(0, name="later"), begin_at=soon), datetime.now(UTC))], actor=ACTOR)
    assert run(["queue"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "begins at" in lines["4"]
    assert "about" not in lines["2"]
    assert "about" not in lines["4"]
    assert "about" in lines["3"]


def test_a_dry_run_of_a_long_array_keeps_to_its_limit_and_is_short(store: JobStore, capsys: Captured) -> None:
    array = ["--array", "0-199%1", "--gpus", "1", "--time-limit", "1m", "busybox", "true"]
    assert run(["submit", "--dry-run", "--priority", "90", *array]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "... and 103 more"
    starts = [line.split("-> ")[1].split("  ")[0] for line in lines if "the new job" in line]
    assert len(set(starts)) == len(starts) > 90
