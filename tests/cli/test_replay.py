"""`gputui replay`: what it prints, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from gputui.cli import replay
from gputui.cli.main import run
from gputui.replay import policies, trace

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
        (["replay"], "expected a trace or --synthetic"),
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
