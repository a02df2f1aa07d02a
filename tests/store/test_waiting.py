"""A lock that somebody keeps: what is waited for is told, and not for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.errors import StoreBusyError
from gputui.domain.settings import StoreSettings
from gputui.store import TinyJobStore, lock
from tests.factories import ACTOR, NOW, job

BRIEF = StoreSettings(lock_timeout=timedelta(seconds=0.1))


@contextmanager
def held(directory: Path) -> Iterator[int]:
    """Have another process hold the lock; its id."""
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
    monkeypatch.setattr(lock, "TELL_AFTER", 0.01)
    told: list[str] = []
    has_told = threading.Event()

    def waiting(sentence: str) -> None:
        told.append(sentence)
        has_told.set()

    store = TinyJobStore(directory, waiting=waiting)
    with held(directory) as pid:
        writer = threading.Thread(target=lambda: store.submit([job()], actor=ACTOR))
        writer.start()
        assert has_told.wait(30)
    writer.join(30)
    [sentence] = told
    assert sentence.startswith(f"waiting for {directory}/queue.json.lock, which is locked by process {pid} (flock ")
    assert list(tiny.jobs()) == [1]
    store.close()


def test_a_stopped_holder_is_called_so(tiny: TinyJobStore, directory: Path) -> None:
    store = TinyJobStore(directory, BRIEF)
    with held(directory) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(StoreBusyError, match=rf"process {pid} \(.*, stopped\)"):
            store.submit([job()], actor=ACTOR)
    store.close()


def test_a_thread_in_a_hurry_does_not_wait_for_another_that_does(tiny: TinyJobStore, directory: Path) -> None:
    is_waiting = threading.Event()
    store = TinyJobStore(directory, StoreSettings(lock_timeout=timedelta(seconds=30)), lambda _: is_waiting.set())
    patience = lock.TELL_AFTER
    lock.TELL_AFTER = 0.0
    try:
        with held(directory):
            writer = threading.Thread(target=lambda: store.submit([job()], actor=ACTOR))
            writer.start()
            assert is_waiting.wait(30)
            begun = time.monotonic()
            with store.lock_timeout(0.05), pytest.raises(StoreBusyError, match="another thread"):
                store.submit([job()], actor=ACTOR)
            assert time.monotonic() - begun < 20
    finally:
        lock.TELL_AFTER = patience
    writer.join(30)
    assert list(store.jobs()) == [1]
    store.close()


def test_the_backup_of_the_documents_holds_the_lock_for_the_queue_alone(tmp_path: Path) -> None:
    """The lines of docs/operations.md, run as they are but for the places."""
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    _, _, after = text.partition("## Backups")
    script = after.split("```\n")[1]
    state, backup = tmp_path / "state", tmp_path / "backup"
    backup.mkdir()
    store = TinyJobStore(state)
    store.submit([job(), job()], actor=ACTOR)
    (state / "logs" / "1").mkdir(parents=True)
    (state / "logs" / "1" / "1.log").write_text("output")
    script = script.replace("/var/lib/gputui", str(state)).replace("/backup/", f"{backup}/")
    subprocess.run(["sh", "-ec", script], check=True)
    [copy] = backup.iterdir()
    assert (copy / "logs" / "1" / "1.log").read_text() == "output"
    copied = TinyJobStore(copy)
    assert copied.submit([job()], actor=ACTOR) == (3,)
    copied.maintain(NOW)
    for one in (store, copied):
        one.close()
