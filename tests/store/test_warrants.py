"""Warrants of a shared state directory, and names in its files that root must not take for paths."""

from __future__ import annotations

import json
import os
import pwd
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.container import RunAs
from gputui.domain.errors import InputError, StoreAccessError, StoreFormatError, WarrantError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobSpec
from gputui.store import TinyJobStore, tinydb_store
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
    then = time.time() - tinydb_store.WARRANTS_KEPT - 100
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


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("hard link", "is not a file of .* alone"),
        ("symbolic link", "cannot be read: Too many levels of symbolic links"),
        ("group may write", "is not a file of .* alone"),
        ("torn", "is damaged: Input data was truncated"),
        ("another's job", "it was changed in the queue"),
        ("none", "nothing proves who submitted it"),
    ],
)
def test_a_file_that_others_may_have_written_proves_nothing(state: Path, change: str, sentence: str) -> None:
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
    elif change == "torn":
        os.truncate(path, 20)
    elif change == "none":
        spec = replace(spec, warrant="")
    else:
        spec = replace(spec, command=("false",))
    with pytest.raises(WarrantError, match=sentence):
        store.run_as(spec)
    store.close()


def test_root_submits_no_host_jobs_to_a_shared_queue(state: Path) -> None:
    store = TinyJobStore(state)
    with pytest.raises(InputError, match="--host: host jobs of root do not run in a state directory that a group"):
        store.with_warrant(JobSpec(None, ("id",)), 0)
    store.close()


@pytest.mark.needs("root")
def test_only_members_of_the_group_submit_jobs(state: Path) -> None:
    """Root proves them all, but runs only those of users who may write the queue."""
    member, outsider, unknown = pwd.getpwnam("nobody"), pwd.getpwnam("daemon"), 54321
    os.chown(state, 0, member.pw_gid)
    store = TinyJobStore(state)
    found = {uid: store.with_warrant(JobSpec("busybox"), uid) for uid in (member.pw_uid, outsider.pw_uid, unknown)}
    assert store.run_as(found[member.pw_uid]) == RunAs(member.pw_uid, is_strict=True)
    assert (state / "warrants" / found[unknown].warrant).stat().st_uid == unknown
    for uid in (outsider.pw_uid, unknown):
        with pytest.raises(WarrantError, match="is not in the group of the state directory"):
            store.run_as(found[uid])
    store.close()


@pytest.mark.needs("root")
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
