"""Waits for a lock that another process holds: reported, and limited."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.errors import StoreBusyError
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore, files
from tests.cases import cases
from tests.factories import ACTOR, NOW, job

BRIEF = StoreSettings(lock_timeout=timedelta(seconds=0.1))


@contextmanager
def held(directory: Path) -> Iterator[int]:
    """Hold the lock in another process; yield its id."""
    command = ["flock", str(directory / "queue.json.lock"), "sh", "-c", "echo held; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder.pid
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


def test_a_writer_gives_up_and_names_the_holder(tiny: TinyJobStore, directory: Path) -> None:
    tiny.submit([job()], actor=ACTOR)
    store = TinyJobStore(directory, BRIEF)
    with held(directory) as pid:
        for call in (lambda: store.submit([job()], actor=ACTOR), store.storage.checkpoint):
            with pytest.raises(StoreBusyError, match=rf"\.lock.*process {pid} \(flock .*store\.lock_timeout"):
                call()
        assert list(store.jobs()) == [1]
        TinyJobStore(directory).close()
    assert store.submit([job()], actor=ACTOR) == (2,)
    store.close()


def test_a_long_wait_is_reported_and_ends_with_the_holder(
    tiny: TinyJobStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "TELL_AFTER", 0.01)
    told: list[str] = []
    has_told = threading.Event()

    def waiting(sentence: str) -> None:
        told.append(sentence)
        has_told.set()

    store = TinyJobStore(directory, waiting=waiting)
    with held(directory) as pid:
        writer = threading.Thread(target=lambda: store.submit([job()], actor=ACTOR))
        writer.start()
        assert has_told.wait(60)
    writer.join(60)
    [sentence] = told
    assert sentence.startswith(f"waiting for {directory}/queue.json.lock, which is locked by process {pid} (flock ")
    assert list(tiny.jobs()) == [1]
    store.close()


def test_a_stopped_holder_is_reported_as_stopped(tiny: TinyJobStore, directory: Path) -> None:
    store = TinyJobStore(directory, BRIEF)
    with held(directory) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(StoreBusyError, match=rf"process {pid} \(.*, stopped\)"):
            store.submit([job()], actor=ACTOR)
    store.close()


@cases(
    ("locks", "holder"),
    [
        (None, "another process"),
        ("7: POSIX  ADVISORY  WRITE 4711 08:01:{inode} 0 EOF\n", "another process"),
        ("7: FLOCK  ADVISORY  WRITE 4711 08:01:1{inode} 0 EOF\n", "another process"),
        ("7: FLOCK  ADVISORY  WRITE -1 08:01:{inode} 0 EOF\n", "another process"),
        ("6: cut\n7: -> FLOCK  ADVISORY  WRITE 9 08:01:{inode} 0 EOF\n", "another process"),
        ("7: FLOCK  ADVISORY  WRITE 4712 08:01:{inode} 0 EOF\n", "process 4712"),
        ("7: FLOCK  ADVISORY  WRITE 4711 08:01:{inode} 0 EOF\n", f"process 4711 (rsync -a {'x' * 50}…)"),
    ],
)
def test_a_holder_is_described_as_far_as_the_kernel_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: str | None, holder: str
) -> None:
    """Hidden where /proc is not mounted, of another container or of a network file system, or ended just now."""
    monkeypatch.setattr(files, "PROC", tmp_path)
    (tmp_path / "4711").mkdir()
    (tmp_path / "4711" / "cmdline").write_text("rsync\0-a\0" + "x" * 99 + "\0")
    with (tmp_path / "queue.json.lock").open("w") as file:
        if locks is not None:
            (tmp_path / "locks").write_text(locks.format(inode=os.fstat(file.fileno()).st_ino))
        assert files.holder_of(file.fileno()) == holder


def test_a_long_wait_is_logged_where_nobody_else_hears_of_it(
    tiny: TinyJobStore, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "TELL_AFTER", 0.0)
    with (directory / "queue.json.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with tiny.lock_timeout(0.001), pytest.raises(StoreBusyError):
            tiny.submit([job()], actor=ACTOR)
    [message] = caplog.messages
    assert message.startswith(f"waiting for {directory}/queue.json.lock, which is locked by process {os.getpid()} (")


def test_a_lock_on_a_file_that_was_replaced_keeps_no_writer_out(tiny: TinyJobStore, directory: Path) -> None:
    path = directory / "queue.json.lock"
    tiny.submit([job()], actor=ACTOR)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        with tiny.lock_timeout(5):
            assert tiny.submit([job()], actor=ACTOR) == (2,)


def test_a_thread_with_a_short_timeout_does_not_wait_behind_a_patient_one(tiny: TinyJobStore, directory: Path) -> None:
    is_waiting = threading.Event()
    store = TinyJobStore(directory, StoreSettings(lock_timeout=timedelta(seconds=30)), lambda _: is_waiting.set())
    patience = files.TELL_AFTER
    files.TELL_AFTER = 0.0
    try:
        with held(directory):
            writer = threading.Thread(target=lambda: store.submit([job()], actor=ACTOR))
            writer.start()
            assert is_waiting.wait(60)
            begun = time.monotonic()
            with store.lock_timeout(0.05), pytest.raises(StoreBusyError, match="another thread"):
                store.submit([job()], actor=ACTOR)
            assert time.monotonic() - begun < 20
    finally:
        files.TELL_AFTER = patience
    writer.join(60)
    assert list(store.jobs()) == [1]
    store.close()


def test_the_documented_backup_commands_work(tmp_path: Path) -> None:
    """The lines of docs/operations.md, run as they are except for the paths and the date."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    _, _, after = text.partition("## Backups")
    backup, verify, restore = after.split("```\n")[1].splitlines()
    state, place, other = tmp_path / "state", tmp_path / "backup", tmp_path / "other"
    place.mkdir()
    store = TinyJobStore(state)
    store.submit([job(), job()], actor=ACTOR)
    (state / "logs" / "1").mkdir(parents=True)
    (state / "logs" / "1" / "1.log").write_text("output")
    lines = [backup.replace("/var/lib/gputui", str(state)), verify, restore.replace("/var/lib/gputui", str(other))]
    script = "\n".join(lines).replace("$(date +%F)", "2026-03-02").replace("/backup/", f"{place}/")
    program = f'gputui() {{ {shlex.quote(sys.executable)} -m gputui "$@"; }}\n'
    subprocess.run(["sh", "-ec", program + script], check=True)
    assert (other / "logs" / "1" / "1.log").read_text() == "output"
    restored = TinyJobStore(other)
    assert restored.submit([job()], actor=ACTOR) == (3,)
    restored.maintain(NOW)
    for one in (store, restored):
        one.close()
