"""Warrants of a shared state directory, and names in its files that root must not take for paths."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.errors import StoreAccessError, StoreFormatError, WarrantError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobSpec
from gputui.store import TinyJobStore, tinydb_store, warrants
from tests.factories import ACTOR, NOW


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o2770)
    return state


def vouched(store: TinyJobStore, *command: str) -> JobSpec:
    return store.with_warrant(JobSpec(image="busybox", command=command), os.geteuid())


def test_only_old_unused_warrants_are_removed(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TinyJobStore(state)
    kept, old, young = (vouched(store, word) for word in ("kept", "old", "young"))
    store.submit([Job(0, kept, NOW)], actor=ACTOR)
    folder = state / "warrants" / str(os.geteuid())
    (folder / "notes.txt").touch()
    then = time.time() - warrants.KEPT - 100
    for name in (*(each.warrant.partition("/")[2] for each in (kept, old)), "notes.txt"):
        os.utime(folder / name, (then, then))
    store.maintain(NOW)
    assert store.run_as(old).is_strict, "too early for another look"
    monkeypatch.setattr(tinydb_store, "SWEEP_EVERY", 0.0)
    store.maintain(NOW)
    assert store.run_as(kept).is_strict
    assert store.run_as(young).is_strict
    with pytest.raises(WarrantError):
        store.run_as(old)
    assert (folder / "notes.txt").exists()
    store.close()


def test_values_of_a_sweep_are_part_of_the_proof(state: Path) -> None:
    store = TinyJobStore(state)
    spec = store.with_warrant(
        JobSpec(image="busybox", command=("{run}",), sweep=(("run", "true,false"),)), os.geteuid()
    )
    assert store.run_as(spec).is_strict
    with pytest.raises(WarrantError, match="changed in the queue"):
        store.run_as(replace(spec, sweep=(("run", "evil"),)))
    store.close()


@pytest.mark.parametrize("change", ["hard link", "symbolic link", "group may write", "another's job"])
def test_a_file_writable_by_others_proves_nothing(state: Path, change: str) -> None:
    store = TinyJobStore(state)
    spec = vouched(store, "true")
    path = state / "warrants" / spec.warrant
    if change == "hard link":
        path.with_name("0" * 24).hardlink_to(path)
    elif change == "symbolic link":
        path.rename(state / "elsewhere")
        path.symlink_to(state / "elsewhere")
    elif change == "group may write":
        path.chmod(0o620)
    else:
        spec = replace(spec, command=("false",))
    with pytest.raises(WarrantError):
        store.run_as(spec)
    store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
def test_root_does_not_chown_a_directory_planted_by_a_member(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TinyJobStore(state)
    full = state / "logs"
    full.mkdir()
    (full / "1.log").touch()
    real = os.mkdir

    def swapped(path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        real(path, mode, dir_fd=dir_fd)
        if path == "54321":
            (state / "warrants/54321").rmdir()
            full.rename(state / "warrants/54321")

    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(StoreAccessError):
        store.with_warrant(JobSpec(image="busybox"), 54321)
    assert (state / "warrants/54321").stat().st_uid == 0
    store.close()


@pytest.mark.parametrize("store_id", ["", "../../etc", "a/b", "abc\n", "x" * 300])
def test_a_warrant_id_that_is_a_path_is_refused(state: Path, store_id: str) -> None:
    """The store's id becomes part of the names of directories that root makes."""
    TinyJobStore(state).close()
    meta = {"generation": 1, "next_id": 1, "store_id": store_id}
    (state / "queue.json").write_text(json.dumps({"_meta": {"1": meta}}))
    with pytest.raises(StoreFormatError):
        TinyJobStore(state)
