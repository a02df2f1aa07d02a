"""`gputui replay`: its output and its refusals."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.cli import replay, terminal
from gputui.cli.main import run
from gputui.config import resolve
from gputui.domain.job import Attempt, Job
from gputui.domain.settings import PolicySettings
from gputui.domain.state import JobState
from gputui.replay import policies, trace
from gputui.replay.simulation import figures
from gputui.replay.trace import Ran, TraceJob
from tests.cases import cases
from tests.factories import ACTOR, spec, uuid

MADE_UP = ["replay", "--synthetic", "5"]
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


def test_a_replay_uses_changed_settings(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", str(file), "-p", "plan", "--set", "policy.preemption=on", "--set", "half_life=12h"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {"policy.preemption": True, "policy.half_life": 43200.0}
    assert "variants" not in found
    assert run(arguments) == 0
    assert "set: preemption=on half_life=12h" in capsys.readouterr().out


def test_values_are_compared_in_all_combinations(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", str(file), "--compare", "tenants.b.weight=1,50", "--compare", "half_life=7d,1h"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = [f"tenants.b.weight={weight} half_life={life}" for weight in (1, 50) for life in ("7d", "1h")]
    assert list(found["policies"]) == ["plan", *names]
    assert found["variants"][names[3]] == {"policy.tenants.b.weight": 50.0, "policy.half_life": 3600.0}
    assert found["policies"]["plan"] == found["policies"][names[0]]


def test_a_comparison_omits_policies_unless_they_are_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["replay", str(file), "--compare", "tenants.b.weight=1,100"]
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["SETTINGS", "WAIT", "P95", "MAX", "SLOWDOWN", "ALLOCATED", "WORST", "TENANT"]
    assert lines[4].startswith("plan (tenants.b.weight=1) ")
    assert lines[5].startswith("tenants.b.weight=100 ")
    assert all(cell == "=" or cell.endswith("%") for cell in lines[6].split())
    assert not any("fifo" in line for line in lines)
    assert run([*arguments, "-p", "fifo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("fifo", "plan"))] == ["fifo", "plan", "plan"]


def test_differences_are_in_per_cent_of_the_settings_as_they_are() -> None:
    base = replay.changed(PolicySettings(), ["half_life=7d"])
    tried = replay.compared(base.settings, ["half_life=7d,36h"])
    one = figures([Ran(TraceJob(0, 0.0, 60.0, 1, "a"), 3600.0, 3660.0, 1)], 8)
    other = replace(one, wait_mean=1800.0, wait_p95=3599.9, wait_max=3780.0, worst_tenant_wait_mean=0.0)
    found = {"plan": one, "half_life=7d": one, "half_life=36h": other}
    lines = replay.comparison_table(base, tried, found)
    _, _, *rows = lines[:5]
    assert [row.split() for row in rows] == [
        ["plan", "(half_life=7d)", "1.0h", "1.0h", "1.0h", "61.0", "0.0%", "1.0h"],
        ["half_life=36h", "30m00s", "59m59s", "1.1h", "61.0", "0.0%", "0s"],
        ["-50%", "=", "+5.0%", "=", "=", "-100%"],
    ]
    assert not any("HIGH WAIT" in line for line in lines)


def test_names_too_long_for_the_terminal_are_numbered(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "width", lambda: 80)
    assert run(["replay", str(file), "--compare", "half_life=7d,1d", "--compare", "predict=on,off"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:7] == [
        "plan (half_life=7d predict=true)",
        "   1 half_life=7d predict=off",
        "   2 half_life=1d predict=on",
        "   3 half_life=1d predict=off",
    ]
    assert [line.split()[0] for line in lines[9:15:2]] == ["plan", "=", "="]
    assert [line.split()[0] for line in lines[10:15:2]] == ["1", "2", "3"]
    assert max(map(len, lines)) <= 80


def test_a_setting_without_effect_on_the_trace_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit_time_s,duration_s,gpus,name,limit,preemptible\n0,60,1,a,90,0\n9,60,1,a,,1\n")
    arguments = ["replay", str(path), "--set", "preemption=on", "--compare", "predict=on,off", "--json"]
    assert run([*arguments, "--limits", "none"]) == 0
    assert "notes" not in json.loads(capsys.readouterr().out)
    path.write_text("submit_time_s,duration_s,gpus,name,limit\n0,60,1,a,90\n9,60,1,,\n")
    assert run([*arguments, "--limits", "none"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [
        "No job here may be preempted, so policy.preemption changes nothing.",
        "No job here has a name and no limit, so policy.predict changes nothing.",
    ]


def test_differences_of_waits_by_class_and_preemptions_are_shown() -> None:
    base = replay.changed(PolicySettings(), ["preemption=off"])
    tried = replay.compared(base.settings, ["preemption=off,on"])
    one = figures([Ran(TraceJob(0, 0.0, 60.0, 1, "a"), 3600.0, 3660.0, 1)], 8)
    one = replace(one, wait_mean_low=7200.0)
    other = replace(one, wait_mean_low=14400.0, preemptions=3, gpu_seconds_lost=5400.0)
    lines = replay.comparison_table(base, tried, {"plan": one, "preemption=off": one, "preemption=on": other})
    assert [line.split() for line in lines[6:10]] == [
        ["SETTINGS", "HIGH", "WAIT", "NORMAL", "LOW", "PREEMPTED", "LOST"],
        ["plan", "(preemption=false)", "-", "1.0h", "2.0h", "0", "0.0", "GPU-h"],
        ["preemption=on", "-", "1.0h", "4.0h", "3", "1.5", "GPU-h"],
        ["=", "=", "+100%"],
    ]


def test_waits_by_class_are_shown_where_jobs_have_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("submit_time_s,duration_s,gpus,priority\n0,7200,8,50\n1,60,8,0\n2,60,8,\n3,60,8,90\n")
    assert run(["replay", str(path), "-p", "fifo,plan"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    table = rows[rows.index(["POLICY", "HIGH", "WAIT", "NORMAL", "LOW"]) :]
    assert table[1:3] == [["fifo", "2.0h", "1.0h", "2.0h"], ["plan", "2.0h", "1.0h", "2.0h"]]


def test_a_cap_that_forbids_every_job_is_widened_in_a_replay(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", str(file), "-p", "plan", "--set", "tenants.a.gpus=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"]["plan"]["makespan"] > 0


def test_made_up_jobs_need_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--synthetic", "50", "--seed", "3", "--json", "-p", "plan"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == 50


def test_simultaneous_jobs_have_no_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "backlog.csv"
    path.write_text("submit_time_s,duration_s,gpus\n0,10,1\n0,10,1\n")
    assert run(["replay", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["load"] is None


def test_jobs_that_are_replayed_otherwise_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("submit_time_s,duration_s,gpus\n0,10,9\n5,10,8\n6,260000,16\n")
    assert run(["replay", str(path), "-p", "plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [
        "2 jobs that asked for more GPUs than there are: replayed with 8 GPUs.",
        "1 job that ran longer than 3d: replayed with that.",
    ]


@cases(
    ("arguments", "words"),
    [
        (["replay"], "expected a trace, --synthetic or --history"),
        (["replay", "none.csv"], "none.csv: cannot be read"),
        (["replay", "--synthetic", "5", "-p", "best"], "'best' is not a policy"),
        (["replay", "--synthetic", "5", "--max-time", "0"], "--max-time"),
        (["replay", "--synthetic", "5", "--limits", "guess"], "guess"),
        (["replay", "--synthetic", "5", "--load", "0"], "--load"),
        (["replay", "--synthetic", "5", "--load", "nan"], "'--load': nan is not a number"),
        ([*MADE_UP, "--set", "half_life"], "--set: expected SETTING=VALUE, found 'half_life'"),
        (
            [*MADE_UP, "--set", "half_live=1d"],
            "--set half_live: 'half_live' is not a setting (did you mean half_life?)",
        ),
        ([*MADE_UP, "--set", "half_life=0"], "--set half_life: expected a duration above 0"),
        ([*MADE_UP, "--compare", "foo=1"], "--compare foo: 'foo' is not a setting (known: promote_after, age_unit, "),
        ([*MADE_UP, "--set", "share=all"], "--set share: changes nothing in a replay (those that do: "),
        ([*MADE_UP, "--set", "tenants.a.pending=3"], "is not a setting of a tenant"),
        ([*MADE_UP, "--compare", "tenants.a.weight=1,x"], "--compare tenants.a.weight: expected a number"),
        ([*MADE_UP, "--compare", "tenants.a.weight=1,"], "--compare tenants.a.weight: expected a number"),
        ([*MADE_UP, "--compare", "half_life=1", "--compare", "policy.half_life=2"], "half_life is given twice"),
        (
            [*MADE_UP, "--compare", "tenants.a.weight=" + ",".join(map(str, range(1, 66)))],
            "65 combinations are more than 64",
        ),
    ],
)
def test_contradictory_options_are_bad_usage(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert words in capsys.readouterr().err


def test_offered_policies_exist() -> None:
    assert tuple(policies.POLICIES) == replay.POLICY_NAMES
    assert replay.LIMITS == trace.LIMITS


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """State directory in which jobs of two tenants have ended, one of them long ago."""
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
    store.maintain(now)
    assert len(list(store.past())) == 1
    store.close()
    return tmp_path


def test_the_replayed_history_is_compared_with_the_real_one(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--history", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in ("gpus", "gpus_per_node", "limits", "jobs")} == {
        "gpus": 2,
        "gpus_per_node": 2,
        "limits": "none",
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


def test_the_meaning_and_the_size_of_the_history_are_stated(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--history", "-p", "plan,static-equal", "--limits", "bucket"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("4 jobs on 2 GPUs, load 0.00, bucket limits")
    assert "as they had none: 4 jobs." in out
    assert "split equally between the tenants these jobs would have waited" in out
    assert "4 jobs over 19d00h is a small sample" in out
    assert run(["replay", "--history", "-p", "fifo"]) == 0
    out = capsys.readouterr().out
    assert "split equally" not in out
    assert "as there was none" not in out


def test_changed_gpus_or_load_are_not_compared_with_the_real_history(
    server: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for changed in (["--gpus", "8"], ["--load", "1.5"], ["--max-time", "30m"]):
        assert run(["replay", "--history", "--json", *changed]) == 0
        found = json.loads(capsys.readouterr().out)
        assert "as-it-was" not in found["policies"]
    assert found["policies"]["plan"]["makespan"] < 20 * 86400


def test_a_cap_set_after_the_jobs_excludes_none(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_page_names_every_policy_column_and_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "replay.md").read_text(encoding="utf-8")
    names = {*policies.POLICIES, *trace.REQUIRED, *trace.OPTIONAL, *replay.REPLAYED}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []
    listed = re.findall(r"`([a-z_]+)`", page.partition("### Settings that can be tried")[2].partition("## The jobs")[0])
    assert [name for name in listed if name not in ("none", *replay.REPLAYED)] == []
