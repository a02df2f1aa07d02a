"""`gputui tenant`: weights and caps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.domain.settings import TenantSettings
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.domain.policy.test_decide import seen
from tests.factories import job, running, uuid

FILE = '[[policy.tenants]]\nname = "bob"\nweight = 2\ngpus = 6\n\n[[policy.tenants]]\nname = "eve"\nrunning = 1\n'


@pytest.fixture(autouse=True)
def file(store: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(FILE)
    monkeypatch.setenv("GPUTUI_CONFIG", str(tmp_path / "config.toml"))


def test_set_changes_given_values_and_keeps_the_others(run: Run, store: KeptStore) -> None:
    for words in (["--pending", "5"], ["--weight", "0.5"], ["--gpus", "none"]):
        result = run("tenant", "set", "bob", *words)
        assert (result.code, result.out, result.err) == (0, "", f"tenant bob: {words[0][2:]} {words[1]}\n")
    assert store.controls().tenants == (TenantSettings("bob", 0.5, None, None, 5),)
    run("tenant", "set", "bob", "--clear", "--running", "0")
    assert store.controls().tenants == (TenantSettings("bob", 1.0, None, 0, None),)
    entries = list(store.audit_log("tenant bob"))
    assert (entries[0].before, entries[0].after) == (
        "weight 2, at most 6 GPUs",
        "weight 2, at most 6 GPUs, at most 5 pending",
    )
    assert (entries[-1].verb, entries[-1].user, entries[-1].after) == ("tenant", "alice", "weight 1, at most 0 running")


@cases(
    "words",
    [
        [],
        ["--weight", "0"],
        ["--weight", "-1"],
        ["--weight", "nan"],
        ["--gpus", "-1"],
        ["--running", "1.5"],
        ["--pending", "x"],
        ["--max-priority", "101"],
        ["--max-priority", "high"],
        ["--users", "ann,"],
        ["--users", "two words"],
    ],
)
def test_invalid_weights_and_caps_are_refused(run: Run, store: KeptStore, words: list[str]) -> None:
    assert run("tenant", "set", "bob", *words).code == 2
    assert run("tenant", "set", "b\nob", "--gpus", "1").code == 2
    assert store.controls().tenants == ()


def test_a_higher_priority_than_the_tenants_highest_is_refused_with_the_number(run: Run, store: KeptStore) -> None:
    assert run("tenant", "set", "bob", "--max-priority", "60").code == 0
    assert list(store.audit_log("tenant bob"))[-1].after == "weight 2, at most 6 GPUs, at most priority 60"
    refused = run("submit", "--tenant", "bob", "--priority", "70", "busybox", "true")
    assert (refused.code, refused.out) == (2, "")
    assert "tenant bob may have at most priority 60, and 70 is more" in refused.err
    job_id = run("submit", "--tenant", "bob", "--priority", "60", "busybox", "true").out.strip()
    for words in (["+1"], ["top"], ["61"], ["+1", "--dry-run"], ["top", "--dry-run"]):
        assert run("priority", job_id, *words).code == 2
    assert run("edit", job_id, "--priority", "61").code == 2
    assert run("tenant", "set", "bob", "--max-priority", "none").code == 0
    assert run("priority", job_id, "top").code == 0


def test_users_are_set_and_removed(run: Run, store: KeptStore) -> None:
    assert run("tenant", "set", "prof", "--users", "ann@site,@domain users").code == 0
    assert [tenant.users for tenant in store.controls().tenants] == [("ann@site", "@domain users")]
    assert list(store.audit_log("tenant prof"))[-1].after == "weight 1, for ann@site, @domain users alone"
    assert json.loads(run("tenant", "list", "--json").out)[-1]["users"] == ["ann@site", "@domain users"]
    assert run("tenant", "set", "prof", "--users", "none").code == 0
    assert [tenant.users for tenant in store.controls().tenants] == [()]


def test_list_shows_use_and_caps_with_their_source(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, running(1, on=[uuid(0), uuid(1)], tenant="bob"), job(2, tenant="bob"), job(3, tenant="ann"))
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(seen(list(store.jobs().values()))))
    run("tenant", "set", "bob", "--pending", "5")
    ann, bob, eve = json.loads(run("tenant", "list", "--json").out)
    assert (ann["name"], ann["source"], ann["pending"], ann["pending_max"]) == ("ann", None, 1, None)
    used = bob.pop("gpu_seconds")
    assert used == pytest.approx(120, abs=0.1)
    assert bob == {
        "name": "bob",
        "weight": 2.0,
        "gpus_max": 6,
        "running_max": None,
        "pending_max": 5,
        "priority_max": None,
        "users": [],
        "gpus": 2,
        "running": 1,
        "pending": 1,
        "fair_share": pytest.approx(2 ** -(1 / (2 / 3))),
        "source": "command",
    }
    assert (eve["source"], eve["running_max"]) == ("file", 1)
    line = run("tenant", "list").out.splitlines()[2]
    assert line.split() == ["bob", "2", "2/6", "1", "1/5", "-", "0.35", "2m00s", "command"]


def test_remove_restores_the_values_of_the_file(run: Run, store: KeptStore) -> None:
    run("tenant", "set", "bob", "--gpus", "1")
    assert run("tenant", "remove", "bob").code == 0
    assert store.controls().tenants == ()
    assert list(store.audit_log("tenant bob"))[-1].after == "weight 2, at most 6 GPUs"
    assert run("tenant", "remove", "bob").code == 1
    assert run("tenant", "remove", "zoe").code == 3


def test_a_submission_beyond_the_cap_on_waiting_jobs_is_refused_completely(
    run: Run, store: KeptStore, tmp_path: Path
) -> None:
    run("tenant", "set", "alice", "--pending", "3")
    (tmp_path / "jobs.toml").write_text('[[job]]\nimage = "busybox"\n' * 4)
    for words in (["--array", "0-3", "busybox"], ["-f", str(tmp_path / "jobs.toml")]):
        result = run("submit", *words)
        assert (result.code, result.out) == (1, "")
        assert "tenant alice has 0 jobs waiting and may have 3: 4 more are too many" in result.err
    assert not store.jobs()
    assert run("submit", "--tenant", "bob", "--array", "0-3", "busybox").code == 0
    (tmp_path / "config.toml").write_text('[[policy.tenants]]\nname = "eve"\npending = 0\n')
    assert run("submit", "--tenant", "eve", "busybox").code == 1
