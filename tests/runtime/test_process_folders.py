"""The attempts' directory: damage, foreign files, a full disk, and many attempts."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.container import ContainerState
from gputui.domain.errors import CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.process.attempt_folder import AttemptFolder, Manifest
from gputui.runtime.process.runtime import ExitWatch, ProcessRuntime
from gputui.runtime.process.wrapper import SECTOR
from tests.factories import FakeClock
from tests.runtime.contract import PATIENCE, SLEEP, STORE, Harness, record
from tests.runtime.test_process import process_harness
from tests.waiting import until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "attempts"


@pytest.fixture
def harness(root: Path) -> Iterator[Harness]:
    harness = process_harness(root.parent)
    yield harness
    harness.clean()


def test_a_damaged_manifest_does_not_hide_a_running_attempt(harness: Harness, root: Path) -> None:
    runtime = harness.open()
    created = runtime.create(harness.launch(SLEEP, gpus=harness.gpus[:1]))
    runtime.start(created.id)
    (root / created.id / "launch.json").write_bytes(b"\xff{")
    (found,) = harness.open().containers()
    assert (found.id, found.state, found.gpus) == (created.id, ContainerState.RUNNING, ())


def test_a_damaged_record_does_not_hide_a_running_attempt(harness: Harness, root: Path) -> None:
    runtime = harness.open()
    created = runtime.create(harness.launch(SLEEP))
    runtime.start(created.id)
    path = root / created.id / "state"
    path.write_bytes(b"garbage".ljust(2 * SECTOR))
    later = harness.open()
    assert record(later, created.id).state is ContainerState.RUNNING
    later.kill(created.id)
    until(lambda: path.read_bytes()[SECTOR:].strip() != b"", "the wrapper wrote how it ended")
    path.write_bytes(b"garbage".ljust(2 * SECTOR))
    cause = record(harness.open(), created.id).cause
    assert cause is not None
    assert (cause.code, "damaged" in cause.text) == (CauseCode.END_UNKNOWN, True)


def test_foreign_entries_in_the_directory_are_skipped(harness: Harness, root: Path) -> None:
    runtime = harness.open()
    created = runtime.create(harness.launch(SLEEP))
    for name in (f".gputui-{STORE}-8-1.abcd.new", "lost+found", f"gputui-{STORE}-x-1", f"gputui-{STORE}-9-1"):
        (root / name).mkdir()
    (root / f"gputui-{STORE}-10-1").write_text("a file")
    assert [each.id for each in runtime.containers()] == [created.id]
    for name in ("../../etc", "", ".", f"gputui-{STORE}-1-1/../x"):
        assert runtime.inspect(name) is None


def test_incomplete_folders_of_a_crash_are_removed_later(harness: Harness, root: Path) -> None:
    runtime = ProcessRuntime(STORE, root.parent, RuntimeSettings(), clock := FakeClock(datetime.now(UTC)))
    created = runtime.create(harness.launch(SLEEP))
    left = root / f".{created.id}.abcd.new"
    left.mkdir()
    runtime.check()
    assert left.exists()
    clock.advance(3700)
    runtime.check()
    assert not left.exists()
    assert [each.id for each in runtime.containers()] == [created.id]


def test_an_unreadable_directory_is_blamed_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "attempts").write_text("not a directory")
    runtime = ProcessRuntime(STORE, tmp_path, RuntimeSettings(), SystemClock())
    launch = process_harness(tmp_path).launch(SLEEP)
    with pytest.raises(RuntimeUnavailableError):
        runtime.containers()
    with pytest.raises(RuntimeUnavailableError):
        runtime.create(launch)
    runtime.watch(lambda: None)
    runtime.close()


def test_a_full_disk_leaves_no_incomplete_folder(harness: Harness, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = harness.open()
    launch = harness.launch(SLEEP)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RuntimeFault) as fault:
            runtime.create(launch)
    assert fault.value.cause.code is CauseCode.DISK_FULL
    assert list(root.iterdir()) == []
    assert not runtime.create(launch).adopted


def test_constant_facts_of_attempts_are_read_once(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []
    manifest = AttemptFolder.manifest

    def counted(folder: AttemptFolder) -> Manifest | None:
        reads.append(folder.path)
        return manifest(folder)

    runtime = harness.open()
    launches = [harness.launch(SLEEP) for _ in range(100)]
    for launch in reversed(launches):
        runtime.create(launch)
    monkeypatch.setattr(AttemptFolder, "manifest", counted)
    for _ in range(3):
        assert [each.job_id for each in runtime.containers()] == [each.job_id for each in launches]
    assert len(reads) == 100


def test_ends_are_noticed_without_pidfds(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", missing)
    runtime = harness.open()
    woken = threading.Event()
    runtime.watch(woken.set)
    created = runtime.create(harness.launch(SLEEP))
    runtime.start(created.id)
    runtime.kill(created.id)
    assert woken.wait(PATIENCE)


def test_a_failing_listener_does_not_silence_the_others() -> None:
    watch = ExitWatch()
    woken = threading.Event()

    def fail() -> None:
        raise RuntimeError("the loop is closed")

    watch.subscribe(fail)
    watch.subscribe(woken.set)
    watch.add(2**22 + 1)  # no process has that pid: it has ended
    assert woken.wait(PATIENCE)
    watch.close()


def test_after_close_no_listener_is_called_and_no_file_is_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    watch = ExitWatch()
    watch.subscribe(lambda: None)
    watch.add(os.getpid())
    watch.close()
    watch.close()
    watch.add(os.getpid())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
