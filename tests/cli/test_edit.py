"""`gputui edit`: changes of waiting jobs by the options of submit or in the user's editor."""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import edit as module
from gputui.cli.main import run as run_command
from gputui.config import resolve
from gputui.domain.access import Caller, Role
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState
from gputui.domain.job import ArrayRef
from gputui.domain.job_spec import ContainerOptions, GpuRequest
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.request.job_options import KEYS
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, picture, put
from tests.factories import GIB, NOW, job, running, uuid, view

OPTIONS = ContainerOptions(env=(("TOKEN", "hunter2"), ("A", "1")), volumes=("/data:/data", "/x:/y"))


@pytest.fixture
def asked(store: KeptStore) -> KeptStore:
    put(store, job(name="train", gpus=2, command=("train", "a b"), time_limit=timedelta(hours=4), options=OPTIONS))
    return store


def test_named_fields_change_and_the_others_stay(run: Run, asked: KeptStore) -> None:
    before = asked.get(1)
    result = run("edit", "1", "--priority", "70", "--time-limit", "2h", "--gpus", "1-2", "--hold")
    assert (result.code, result.out) == (0, "")
    assert result.err == ("edited job 1: gpus 1-2 (was 2), priority 70, time-limit 2h (was 4h), hold yes\n")
    after = asked.get(1)
    wanted = replace(before.spec, priority=70, time_limit=timedelta(hours=2), gpus=GpuRequest(1, 2))
    by = {"held_by": list(asked.audit_log("job 1"))[-1].user, "held_at": after.held_at}
    by["ranked_by"] = by["held_by"]
    assert after == before.evolve(spec=wanted, priority=70, held=True, waiting_since=after.waiting_since, **by)
    assert after.held_at is not None
    assert after.waiting_since is not None, "it asks for more: its wait starts again"
    assert [entry.verb for entry in asked.audit_log("job 1")] == ["edit"]


def test_every_option_of_submit_is_one_of_edit() -> None:
    names = {name for parameter in module.command.params for name in parameter.opts}
    assert {key.option for key in KEYS} <= names


def test_values_are_replaced_added_and_removed(run: Run, asked: KeptStore) -> None:
    assert run("edit", "1", "-e", "A=2", "-e", "NEW=x y", "-v", "/only:/this", "--shm-size=2g").code == 0
    options = asked.get(1).spec.options
    assert options.env == (("TOKEN", "hunter2"), ("A", "2"), ("NEW", "x y"))
    assert (options.volumes, options.shm_size) == (("/only:/this",), 2 * GIB)
    assert run("edit", "1", "--image", "busybox:2", "--", "sh", "-c", "a 'b'").code == 0
    spec = asked.get(1).spec
    assert (spec.image, spec.command) == ("busybox:2", ("sh", "-c", "a 'b'"))
    assert run("edit", "1", "--unset", "time-limit", "--unset", "env", "--preemptible").code == 0
    spec = asked.get(1).spec
    assert (spec.time_limit, spec.options.env, spec.preemptible) == (None, (), True)
    assert run("edit", "1", "--unset", "--preemptible").code == 0
    assert not asked.get(1).spec.preemptible


def test_one_element_of_an_array_is_edited(run: Run, store: KeptStore) -> None:
    put(store, *(job(array=ArrayRef(1, index)) for index in range(3)))
    assert run("edit", "1_2", "--retries", "3").code == 0
    assert [each.spec.retries for each in store.jobs().values()] == [0, 0, 3]


def test_a_whole_array_is_edited_where_its_elements_wait(run: Run, store: KeptStore) -> None:
    put(store, running(array=ArrayRef(1, 0)), *(job(array=ArrayRef(1, index)) for index in (1, 2)))
    assert run("edit", "1_0", "--retries", "3").code == 1
    result = run("edit", "1", "--retries", "3")
    assert (result.code, result.err) == (0, "edited 2 jobs: 1_1 1_2: retries 3\n")
    assert [each.spec.retries for each in store.jobs().values()] == [0, 3, 3]
    assert run("edit", "1", "--time-limit", "1h").err == "edited 3 jobs: 1_0 1_1 1_2: time-limit 1h\n"


def test_json_says_what_was_changed(run: Run, asked: KeptStore) -> None:
    result = run("edit", "1", "--json", "--gpus", "4", "--priority", "50")
    assert json.loads(result.out) == {"id": 1, "changed": ["gpus"]}
    assert json.loads(run("edit", "1", "--json", "--gpus", "4").out) == {"id": 1, "changed": []}


@cases(
    ("given", "words"),
    [
        (["--gpus", "x"], "--gpus: 'x' is not a number of GPUs"),
        (["--priority", "101"], "--priority"),
        (["--time-limit", ""], "--time-limit: needs a value (--unset time-limit removes it)"),
        (["--tenant", "eve"], "--tenant: cannot be changed; a clone may"),
        (["--array", "0-3"], "--array: a job cannot become an array"),
        (["--retry-on", "OOM"], "--retry-on: has no effect without retries"),
        (["--after", "1"], "after: would wait for itself"),
        (["--unset", "nonsense"], "--unset: 'nonsense' is not an option"),
        (["--image", ""], "--image: a container job cannot become a host job"),
        (["--signal", "TERM@5h"], "--signal"),
        ([], "no change given"),
        (["--no-such"], "--no-such"),
    ],
)
def test_errors_are_named_and_nothing_is_written(run: Run, asked: KeptStore, given: list[str], words: str) -> None:
    before = asked.get(1)
    result = run("edit", "1", *given)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert asked.get(1) == before


@cases(("job_id", "code"), [("7", 3), ("x", 2), ("0", 2), ("1-2", 2), ("1_4", 3)])
def test_invalid_ids_are_refused(run: Run, asked: KeptStore, job_id: str, code: int) -> None:
    result = run("edit", job_id, "--gpus", "1")
    assert (result.code, result.out) == (code, "")
    assert run("edit", "1", "--gpus", "1", "--after", "99").code == 3


def test_jobs_that_no_longer_wait_are_refused(run: Run, store: KeptStore) -> None:
    put(store, running(), running().evolve(state=JobState.COMPLETED, ended_at=NOW), job().evolve(cancel_requested=True))
    for job_id, words in (("1", "is RUNNING"), ("2", "is COMPLETED"), ("3", "being cancelled")):
        result = run("edit", job_id, "--gpus", "1")
        assert (result.code, result.out) == (1, "")
        assert words in result.err


def test_whose_job_it_is_is_told_before_its_state(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = job(), running(), running().evolve(state=JobState.COMPLETED, ended_at=NOW)
    put(store, *(each.evolve(submitted_by="alice", submitted_uid=1001) for each in jobs))
    monkeypatch.setattr(bootstrap, "caller", lambda: Caller(1002, 1002, (), "bob", Role.USER))
    for number in (1, 2, 3):
        result = run("edit", str(number), "--gpus", "x")
        assert (result.code, result.out) == (1, "")
        assert f"job {number}: only alice, who submitted it, and operators may edit it" in result.err


def test_a_relative_limit_changes_that_of_a_running_job(run: Run, store: KeptStore) -> None:
    hour = timedelta(hours=1)
    put(store, running(time_limit=hour), running())
    for word, limit in (("+2h", 3), ("-90m", 1.5), ("4h", 4)):
        assert run("edit", "1", "--time-limit", word).code == 0
        assert store.get(1).spec.time_limit == limit * hour
    refused = run("edit", "1", "--time-limit=-4h")
    assert (refused.code, refused.out) == (2, "")
    assert "--time-limit: '-4h' leaves nothing of its limit of 4h\n" in refused.err
    assert "--time-limit: 'x' is not a duration" in run("edit", "1", "--time-limit", "+x").err
    assert "no time limit that '+1h' could change" in run("edit", "2", "--time-limit", "+1h").err
    assert "the limit of 30s has already passed" in run("edit", "1", "--time-limit", "30s").err
    assert "time limit            4h\n" in run("show", "1").out


def test_a_comment_is_written_at_submission_and_while_the_job_runs(run: Run, store: KeptStore) -> None:
    put(store, running())
    assert run("submit", "--comment", "baseline, seed 3", "busybox").code == 0
    assert run("edit", "1", "--comment", "diverged at step 100").code == 0
    assert "diverged at step 100" in run("show", "1").out
    assert json.loads(run("show", "2", "--json").out)["comment"] == "baseline, seed 3"
    found = json.loads(run("queue", "--json", "--filter", "comment~diverged").out)
    assert [each["id"] for each in found] == [1]
    assert [each["id"] for each in json.loads(run("queue", "--json", "--filter", "seed").out)] == [2]
    assert run("edit", "1", "--unset", "comment").code == 0
    assert store.get(1).spec.comment == ""
    assert run("edit", "1", "--comment", "two\nlines").code == 2


def test_a_dry_run_shows_delayed_jobs_and_writes_nothing(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = timedelta(hours=1)
    put(store, running(on=(uuid(0), uuid(1)), time_limit=hour), *(job(gpus=2, time_limit=hour) for _ in range(2)))
    taken = tuple(view(index, GpuState.ALLOCATED, job_id=1) for index in range(2))
    base = Snapshot(taken_at=NOW, nodes=(Node("here", taken, runtimes=(RuntimeStatus("docker", up=True, text="up"),)),))
    monkeypatch.setattr(bootstrap, "current_snapshot", picture(base))
    before = store.get(2)
    result = run("edit", "2", "--time-limit", "10h", "--dry-run")
    assert result.code == 0
    assert "     3  " in result.out
    assert store.get(2) == before
    longer = run("edit", "1", "--time-limit", "+5h", "--dry-run")
    assert longer.code == 0
    assert "     2  " in longer.out
    assert "     3  " in longer.out
    assert store.get(1).spec.time_limit == hour
    assert run("edit", "2", "--after", "2", "--dry-run").code == 2
    assert run("edit", "2", "--after", "77", "--dry-run").code == 3


class TestEditor:
    def script(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
        path = tmp_path / "edit.sh"
        path.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/seen.toml\n{lines}\n')
        path.chmod(0o700)
        monkeypatch.setenv("EDITOR", str(path))
        monkeypatch.delenv("VISUAL", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def test_saved_changes_apply_and_secrets_are_hidden(
        self, run: Run, asked: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.script(tmp_path, monkeypatch, """sed -i 's/^gpus = 2/gpus = 4/; s/^time_limit/# &/' "$1" """)
        result = run("edit", "1", "--editor", "--json", "-e", "NEW=hunter3")
        assert json.loads(result.out) == {"id": 1, "changed": ["gpus", "time_limit", "env"]}
        spec = asked.get(1).spec
        assert (spec.gpus, spec.time_limit) == (GpuRequest(4, 4), None)
        assert spec.options == replace(OPTIONS, env=(*OPTIONS.env, ("NEW", "hunter3")))
        assert "hunter" not in (tmp_path / "seen.toml").read_text()
        assert not list(tmp_path.glob("gputui-*"))

    def test_edit_without_options_opens_the_editor_only_on_a_terminal(
        self, run: Run, asked: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.script(tmp_path, monkeypatch, """sed -i 's/^gpus = 2/gpus = 3/' "$1" """)
        assert run("edit", "1").code == 2
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        assert run("edit", "1").code == 0
        assert asked.get(1).spec.gpus == GpuRequest(3, 3)

    @cases(("lines", "code"), [("true", 0), ("exit 3", 1), ("echo x >> $1", 2)])
    def test_invalid_editor_output_changes_nothing(
        self, run: Run, asked: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, code: int
    ) -> None:
        self.script(tmp_path, monkeypatch, lines)
        before = asked.get(1)
        result = run("edit", "1", "--editor")
        assert (result.code, result.out) == (code, "")
        assert asked.get(1) == before
        assert bool(list(tmp_path.glob("gputui-*/job.toml"))) == bool(code), "what was typed is not lost"

    def test_a_tenant_changed_in_the_editor_is_refused(
        self, run: Run, asked: KeptStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.script(tmp_path, monkeypatch, """sed -i 's/^tenant = .*/tenant = "eve"/' "$1" """)
        result = run("edit", "1", "--editor")
        assert result.code == 2
        assert "--tenant: cannot be changed; a clone may" in result.err


def test_a_real_store_keeps_the_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUTUI_STATE", str(tmp_path / "state"))
    assert run_command(["submit", "--host", "--gpus", "1", "--", "sleep", "60"]) == 0
    monkeypatch.setenv("PATH", os.environ["PATH"] + ":/elsewhere")
    assert run_command(["edit", "1", "--gpus", "2-4", "--retries", "2", "--begin", "+1h"]) == 0
    assert re.search(r"begin (\w+ 20\d\d-\d\d-\d\d )?\d\d:\d\d", capfd.readouterr().err)
    assert run_command(["show", "1", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["gpus_min"], shown["gpus_max"], shown["spec"]["retries"]) == (2, 4, 2)
    assert shown["command"] == ["sleep", "60"]
    assert [entry["verb"] for entry in shown["audit"]] == ["submit", "edit"]
    with_path = bootstrap.open_store(resolve(state=str(tmp_path / "state")))
    env = dict(with_path.get(1).spec.options.env)
    with_path.close()
    assert not env["PATH"].endswith(":/elsewhere"), "a host process finds the programs of who submitted it"
