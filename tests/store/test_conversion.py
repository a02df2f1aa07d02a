"""A directory that a group shared becomes one of a single account: proofs, holds, modes, files that are open."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.access import Actor
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobSpec
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore
from gputui.store.repair import verify_directory
from gputui.store.transfer import HELD, convert, is_shared
from tests.needs import need
from tests.store.shared_directory import share, with_warrant

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ALICE, BOB = 64_001, 64_002


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[TinyJobStore]:
    need("root")
    with closing(TinyJobStore(tmp_path / "state")) as store:
        yield store


def submit(store: TinyJobStore, spec: JobSpec) -> int:
    [number] = store.submit([Job(0, spec, NOW, submitted_by="alice")], actor=Actor(0, "root"))
    return number


def proven(store: TinyJobStore, uid: int, *command: str) -> int:
    return submit(store, vouched(store, uid, *command))


def vouched(store: TinyJobStore, uid: int, *command: str) -> JobSpec:
    return with_warrant(JobSpec(image="busybox", command=command), directory_of(store), store.store_id, uid)


def directory_of(store: TinyJobStore) -> Path:
    return Path(f"/proc/self/fd/{store.storage.lock.fd}").readlink().parent


def state_of(tmp_path: Path) -> Path:
    return tmp_path / "state"


def after(shared: TinyJobStore, tmp_path: Path) -> TinyJobStore:
    shared.close()
    share(state_of(tmp_path))
    convert(state_of(tmp_path), StoreSettings(), NOW)
    return TinyJobStore(state_of(tmp_path))


def test_what_a_warrant_proves_is_recorded(shared: TinyJobStore, tmp_path: Path) -> None:
    first, second = proven(shared, ALICE, "true"), proven(shared, BOB, "true")
    with closing(after(shared, tmp_path)) as store:
        jobs = [store.get(first), store.get(second)]
        assert [store.run_as(job.spec, job.submitted_uid) for job in jobs] == [ALICE, BOB]
    assert [(job.submitted_uid, job.submitted_by, job.held) for job in jobs] == [
        (ALICE, str(ALICE), False),
        (BOB, str(BOB), False),
    ]
    assert [entry.verb for entry in store.audit_log()][-1] == "convert"


def test_a_job_that_nothing_proves_is_held_and_starts_for_nobody(shared: TinyJobStore, tmp_path: Path) -> None:
    of_alice = vouched(shared, ALICE, "true")
    forged = submit(shared, replace(of_alice, command=("rm", "-rf", "/")))
    unnamed = submit(shared, JobSpec(image="busybox", command=("true",)))
    with closing(after(shared, tmp_path)) as store:
        for number in (forged, unnamed):
            job = store.get(number)
            assert (job.held, job.hold_reason, job.submitted_uid) == (True, HELD, None)
            with pytest.raises(InputError, match="nothing proves any more"):
                store.run_as(job.spec)


@pytest.mark.parametrize("uid", [0, ALICE])
def test_a_submitter_whom_a_member_wrote_into_the_queue_is_not_believed(
    shared: TinyJobStore, tmp_path: Path, uid: int
) -> None:
    number = submit(shared, JobSpec(image="busybox", command=("id",)))
    of_bob = proven(shared, BOB, "true")
    with shared.transaction() as transaction:
        for each in (number, of_bob):
            transaction.put(transaction.get(each).evolve(submitted_uid=uid))
    with closing(after(shared, tmp_path)) as store:
        assert (store.get(number).held, store.get(number).submitted_uid) == (True, None)
        assert store.get(of_bob).submitted_uid == BOB


@pytest.mark.parametrize("fault", ["mode", "owner", "link", "folder"])
def test_a_warrant_that_others_can_have_written_proves_nothing(
    shared: TinyJobStore, tmp_path: Path, fault: str
) -> None:
    number = proven(shared, ALICE, "true")
    [warrant] = (state_of(tmp_path) / "warrants" / str(ALICE)).iterdir()
    if fault == "mode":
        warrant.chmod(0o620)
    elif fault == "owner":
        os.chown(warrant, BOB, -1)
    elif fault == "link":
        warrant.with_name("more").hardlink_to(warrant)
    else:
        warrant.parent.chmod(0o777)
    with closing(after(shared, tmp_path)) as store:
        assert store.get(number).hold_reason == HELD


def test_everything_belongs_to_its_new_owner_alone(shared: TinyJobStore, tmp_path: Path) -> None:
    state = state_of(tmp_path)
    number = proven(shared, ALICE, "true")
    (state / "logs" / str(number)).mkdir(parents=True)
    log = state / "logs" / str(number) / "1.log"
    log.write_text("hello\n")
    os.chown(log, ALICE, -1)
    with closing(after(shared, tmp_path)):
        pass
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (state, *state.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert {path.lstat().st_uid for path in modes} == {os.geteuid()}
    assert not is_shared(state)


def test_a_file_that_a_member_has_open_is_no_longer_the_queues(shared: TinyJobStore, tmp_path: Path) -> None:
    number = proven(shared, ALICE, "true")
    before = {path.name: path.open("ab") for path in state_of(tmp_path).iterdir() if path.is_file()}
    with closing(after(shared, tmp_path)) as store:
        for file in before.values():
            file.write(b"forged\n")
            file.close()
        assert store.get(number).submitted_uid == ALICE
        store.check()
        assert store.damage() == ()


def test_another_name_of_a_foreign_file_is_left_alone(shared: TinyJobStore, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("secret")
    foreign.chmod(0o640)
    (state_of(tmp_path) / "logs").mkdir()
    (state_of(tmp_path) / "logs" / "planted").hardlink_to(foreign)
    (state_of(tmp_path) / "logs" / "linked").symlink_to(foreign)
    shared.close()
    share(state_of(tmp_path))
    found = convert(state_of(tmp_path), StoreSettings(), NOW)
    assert stat.S_IMODE(foreign.stat().st_mode) == 0o640
    assert len(found.left) == 2


class Killed(BaseException):
    """End of the process in the middle of a conversion."""


def test_it_may_be_repeated_from_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its calls that change something may be its last one."""
    need("root")
    calls = ("chown", "fchown", "fchmod", "fsync", "fdatasync", "unlink", "rename", "replace", "ftruncate", "rmdir")
    originals = {name: getattr(os, name) for name in calls}
    for last in range(1000):
        state = tmp_path / str(last)
        with closing(TinyJobStore(state)) as store:
            kept, lost = proven(store, ALICE, "true"), submit(store, JobSpec(image="busybox"))
        share(state)
        left = [last]

        def counted(name: str, *arguments: Any, left: list[int] = left, **more: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return originals[name](*arguments, **more)

        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, partial(counted, name))
            try:
                convert(state, StoreSettings(), NOW)
                is_whole = True
            except Killed:
                is_whole = False
        convert(state, StoreSettings(), NOW)
        with closing(TinyJobStore(state)) as store:
            assert (store.get(kept).submitted_uid, store.get(kept).held) == (ALICE, False), last
            assert store.get(lost).hold_reason == HELD
            store.check()
        assert [finding for finding in verify_directory(state) if not finding.is_harmless] == []
        assert not is_shared(state)
        if is_whole:
            break
    assert last > 20
