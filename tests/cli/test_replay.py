"""`gputui replay`: what it prints, and what it refuses."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.cli import replay
from gputui.cli.main import run
from gputui.config import resolve
from gputui.domain.job import Attempt, Job
from gputui.domain.state import JobState
from gputui.replay import policies, trace
from tests.factories import ACTOR, spec, uuid

TRACE = "submit_time_s,duration_s,gpus,vc\n0,100,6,a\n1,100,8,a\n2,50,2,b\n3,300,2,b\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def test_the_json_has_the_promised_keys(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["replay", str(file), "--gpus", "8", "--load", "1.5", "--limits", "exact", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["trace_sha256"] == hashlib.sha256(TRACE.encode()).hexdigest()
    assert {key: found[key] for key in ("gpus", "gpus_per_node", "load", "limits", "jobs")} == {
        "gpus": 8,
        "gpus_per_node": 8,
        "load": 1.5,
        "limits": "exact",
        "jobs": 4,
    }
    assert list(found["policies"]) == list(policies.POLICIES)
    promised = {"allocation_ratio", "wait_mean", "wait_p95", "wait_max", "bounded_slowdown_mean", "makespan"}
    assert all(promised <= figures.keys() for figures in found["policies"].values())


def test_only_the_policies_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(file), "-p", "fifo,plan", "-p", "fifo"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[4:]] == ["fifo", "plan"]
    assert "#####" in out


def test_made_up_jobs_need_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--synthetic", "50", "--seed", "3", "--json", "-p", "plan"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 50


def test_jobs_that_all_come_at_once_have_no_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "backlog.csv"
    path.write_text("submit_time_s,duration_s,gpus\n0,10,1\n0,10,1\n")
    assert run(["replay", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["load"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay"], "expected a trace, --synthetic or --history"),
        (["replay", "none.csv"], "none.csv: cannot be read"),
        (["replay", "--synthetic", "5", "-p", "best"], "'best' is no policy"),
        (["replay", "--synthetic", "5", "--max-time", "0"], "--max-time"),
        (["replay", "--synthetic", "5", "--limits", "guess"], "guess"),
        (["replay", "--synthetic", "5", "--load", "0"], "--load"),
    ],
)
def test_what_makes_no_sense_is_bad_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


def test_the_names_offered_are_those_there_are() -> None:
    assert tuple(policies.POLICIES) == replay.POLICY_NAMES
    assert replay.LIMITS == trace.LIMITS


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory where two tenants' jobs have ended, one of them long ago."""
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("GPUTUI_PROBE", "sim:2")
    store = bootstrap.open_store(resolve())
    now = datetime.now(UTC)
    for number, tenant in enumerate(["a", "a", "a", "b"]):
        at = now - timedelta(days=20 if not number else 1)
        [job_id] = store.submit([Job(0, spec(1, tenant=tenant), at)], actor=ACTOR)
        attempt = Attempt(1, (uuid(number % 2),), at, "c", at, at + timedelta(hours=1))
        with store.transaction() as transaction:
            ran = transaction.get(job_id).to(JobState.CONFIGURING, attempts=(attempt,)).to(JobState.RUNNING)
            done = ran.to(JobState.COMPLETING).to(JobState.COMPLETED, started_at=at, ended_at=attempt.ended_at)
            transaction.put(done)
    store.keep_house(now)
    assert len(list(store.history())) == 1
    store.close()
    return tmp_path


def test_the_history_is_replayed_beside_how_it_was(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--history", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in ("gpus", "gpus_per_node", "limits", "jobs")} == {
        "gpus": 2,
        "gpus_per_node": 2,
        "limits": "bucket",
        "jobs": 4,
    }
    assert list(found["policies"]) == ["as-it-was", *policies.POLICIES]
    assert found["policies"]["as-it-was"]["wait_max"] == 0
    assert found["policies"]["plan"]["wait_max"] == 3600
    assert found["policies"]["fifo"].keys() == found["policies"]["as-it-was"].keys()
    assert found["history"]["tenants"] == 2
    assert found["history"]["without_limit"] == 4
    assert 0 < found["load"] < 1
    assert re.fullmatch(r"[0-9a-f]{64}", found["trace_sha256"])
    assert found["notes"][0].startswith("With the GPUs split equally between the tenants these jobs would have waited")


def test_what_the_history_means_and_how_little_it_is_is_said(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--history", "-p", "plan,static-equal"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 jobs on 2 GPUs, load 0.00, bucket limits")
    assert "split equally between the tenants these jobs would have waited" in out
    assert "4 jobs over 19d00h is little to go by" in out
    assert "as there was none: 4 jobs." in out
    assert run(["replay", "--history", "-p", "fifo"]) == 0
    assert "split equally" not in capsys.readouterr().out


def test_another_number_of_gpus_or_load_is_not_how_it_was(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for changed in (["--gpus", "8"], ["--load", "1.5"], ["--max-time", "30m"]):
        assert run(["replay", "--history", "--json", *changed]) == 0
        found = json.loads(capsys.readouterr().out)
        assert "as-it-was" not in found["policies"]
    assert found["policies"]["plan"]["makespan"] < 20 * 86400


def test_a_cap_younger_than_the_jobs_keeps_none_out(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = server / "config.toml"
    config.write_text('[[policy.tenants]]\nname = "a"\ngpus = 0\nrunning = 0\n')
    assert run(["--config", str(config), "replay", "--history", "--json", "-p", "plan"]) == 0
    plan = json.loads(capsys.readouterr().out)["policies"]["plan"]
    assert plan["wait_max"] == 3600
    assert plan["allocation_ratio"] > 0


def test_without_a_history_there_is_nothing_to_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path / "empty"))
    assert run(["replay", "--history"]) == 1
    assert "no finished job has held a GPU here yet" in capsys.readouterr().err
    assert run(["replay", "--history", "--synthetic", "5"]) == 2
