"""Sweeps in commands, job files and drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.state import JobState
from gputui.request import draft as drafts
from gputui.request.submitter import Submitter
from gputui.tui.screens.job_form import Purpose
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run
from tests.factories import NOW

SWEEP = ("--sweep", "lr=1e-3,1e-4", "--sweep", "seed=0-9")


@pytest.fixture
def swept(run: Run, store: KeptStore) -> KeptStore:
    """Array 1 of 20 elements."""
    words = ("--name", "train", "-e", "TAG={index}", "busybox", "train", "--lr", "{lr}")
    assert run("submit", *SWEEP, "--sweep-limit", "2", *words).out == "1\n"
    return store


def test_a_sweep_is_one_entry_whose_elements_have_their_values(swept: KeptStore, run: Run) -> None:
    [entry] = swept.jobs().values()
    assert (entry.count, entry.array and entry.array.limit) == (20, 2)
    assert entry.spec.command == ("train", "--lr", "{lr}")
    told = run("show", "1_14").out
    assert "name                  train lr=1e-4 seed=4" in told
    assert "command               train --lr 1e-4" in told
    shown = json.loads(run("show", "1_14", "--json").out)
    assert (shown["sweep"], shown["command"]) == ({"lr": "1e-4", "seed": "4"}, ["train", "--lr", "1e-4"])
    [row] = json.loads(run("queue", "--json").out)
    assert row["sweep"] == {"lr": "1e-3,1e-4", "seed": "0-9"}
    assert "train lr=1e-4 seed=4" in run("queue", "--array").out
    found = json.loads(run("queue", "--json", "--array", "-f", "id:1_3,9,1_14").out)
    assert [job["array"]["index"] for job in found] == [3, 8, 14]
    assert run("queue", "-f", "priority>1_0").code == 2


@cases(
    ("words", "where"),
    [
        (["--sweep", "x=1,2", "--array", "0-9", "busybox"], "--array"),
        (["--sweep", "x=1,2", "busybox", "echo", "{y}"], "COMMAND"),
        (["--sweep", "x=1,2", "-e", "A={y}", "busybox"], "--env"),
        (["--sweep", "x=1,2", "--name", "{y}", "busybox"], "--name"),
        (["--sweep", "x", "busybox"], "--sweep"),
        (["--sweep", "x=1", "--sweep", "X=2", "busybox"], "--sweep"),
        (["--sweep", "x=0-999", "--sweep", "y=0-999", "busybox"], "--sweep"),
        (["--sweep-limit", "2", "busybox"], "--sweep-limit"),
    ],
)
def test_an_impossible_sweep_is_refused(run: Run, store: KeptStore, words: list[str], where: str) -> None:
    refused = run("submit", *words)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"gputui: error: {where}: ")
    assert not store.jobs()


def test_braces_stay_unchanged_without_a_sweep(run: Run, store: KeptStore) -> None:
    run("submit", "--array", "0-1", "busybox", "echo", "{index} {{x}}")
    assert store.get(1).spec.command == ("echo", "{index} {{x}}")


def test_a_job_file_has_sweeps_with_lists(run: Run, store: KeptStore, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[[job]]\nimage = "busybox"\ncommand = ["t", "{lr}", "{text}", "{seed}"]\nsweep_limit = 4\n'
        'sweep = {lr = ["1e-3", 0.5], text = ["a,b"], seed = "0-4"}\n'
    )
    assert run("submit", "-f", str(path)).code == 0
    [entry] = store.jobs().values()
    assert entry.count == 10
    assert json.loads(run("show", "1_9", "--json").out)["command"] == ["t", "0.5", "a,b", "4"]


def test_an_edit_keeps_the_sweep_and_knows_its_names(run: Run, swept: KeptStore) -> None:
    assert run("edit", "1_3", "--time-limit", "2h", "--", "train", "{seed}").code == 0
    assert swept.get(4).spec.sweep == swept.get(1).spec.sweep
    assert json.loads(run("show", "1_3", "--json").out)["command"] == ["train", "3"]
    assert "'{epoch}' is not a name of the sweep" in run("edit", "1_3", "--", "train", "{epoch}").err
    assert "cannot be changed" in run("edit", "1_3", "--sweep", "lr=1").err


def test_a_requeued_element_keeps_its_values(run: Run, swept: KeptStore) -> None:
    with swept.transaction() as transaction:
        element = swept.get(15)
        transaction.put(replace(element, state=JobState.FAILED, ended_at=NOW))
    assert run("requeue", "1_14").code == 0
    assert swept.get(15).name == "train lr=1e-4 seed=4"


def test_a_clone_of_an_element_has_its_values_and_a_clone_of_the_array_its_sweep(swept: KeptStore) -> None:
    one, whole = Purpose.like(swept.get(15), NOW), Purpose.like(next(iter(swept.jobs().values())), NOW)
    assert (one.start["command"], one.start.get("sweep")) == ("train --lr 1e-4", None)
    assert drafts.env_names(one.start) == ("TAG", "GPUTUI_SWEEP_LR", "GPUTUI_SWEEP_SEED")
    assert (whole.start["sweep"], whole.start["sweep_limit"]) == ("lr=1e-3,1e-4 seed=0-9", "2")
    asked = drafts.asked({**whole.start, "env": ""}, Submitter("alice", NOW))
    assert (len(asked.array), asked.array_limit) == (20, 2)
