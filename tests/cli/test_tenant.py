"""`gputui tenant`: weights and caps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.domain.settings import TenantSettings
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.domain.policy.test_decide import seen
from tests.factories import job, running, uuid

FILE = '[[policy.tenants]]\nname = "bob"\nweight = 2\ngpus = 6\n\n[[policy.tenants]]\nname = "eve"\nrunning = 1\n'


@pytest.fixture(autouse=True)
def file(store: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(FILE)
    monkeypatch.setenv("GPUTUI_CONFIG", str(tmp_path / "config.toml"))


def test_set_changes_what_is_given_and_leaves_the_rest(run: Run, store: KeptStore) -> None:
    for words in (["--pending", "5"], ["--weight", "0.5"], ["--gpus", "none"]):
        result = run("tenant", "set", "bob", *words)
        assert (result.code, result.out, result.err) == (0, "", "")
    assert store.controls().tenants == (TenantSettings("bob", 0.5, None, None, 5),)
    run("tenant", "set", "bob", "--clear", "--running", "0")
    assert store.controls().tenants == (TenantSettings("bob", 1.0, None, 0, None),)
    entries = list(store.audit_log("tenant bob"))
    assert (entries[0].before, entries[0].after) == (
        "weight 2, at most 6 GPUs",
        "weight 2, at most 6 GPUs, at most 5 pending",
    )
    assert (entries[-1].verb, entries[-1].user, entries[-1].after) == ("tenant", "alice", "weight 1, at most 0 running")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--weight", "0"],
        ["--weight", "-1"],
        ["--weight", "nan"],
        ["--gpus", "-1"],
        ["--running", "1.5"],
        ["--pending", "x"],
    ],
)
def test_what_is_no_weight_or_cap_is_refused(run: Run, store: KeptStore, words: list[str]) -> None:
    assert run("tenant", "set", "bob", *words).code == 2
    assert run("tenant", "set", "b\nob", "--gpus", "1").code == 2
    assert store.controls().tenants == ()


def test_list_shows_use_beside_caps_and_where_they_come_from(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        "gpus": 2,
        "running": 1,
        "pending": 1,
        "fair_share": pytest.approx(2 ** -(1 / (2 / 3))),
        "source": "command",
    }
    assert (eve["source"], eve["running_max"]) == ("file", 1)
    line = run("tenant", "list").out.splitlines()[2]
    assert line.split() == ["bob", "2", "2/6", "1", "1/5", "0.35", "2m00s", "command"]


def test_remove_lets_the_file_speak_again(run: Run, store: KeptStore) -> None:
    run("tenant", "set", "bob", "--gpus", "1")
    assert run("tenant", "remove", "bob").code == 0
    assert store.controls().tenants == ()
    assert list(store.audit_log("tenant bob"))[-1].after == "weight 2, at most 6 GPUs"
    assert run("tenant", "remove", "bob").code == 1
    assert run("tenant", "remove", "zoe").code == 3


def test_a_submit_beyond_the_cap_on_waiting_jobs_is_refused_whole(run: Run, store: KeptStore, tmp_path: Path) -> None:
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
