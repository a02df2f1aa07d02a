"""Leadership: one scheduler per state directory."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.snapshot import Leader
from gputui.engine import leadership
from gputui.engine.leadership import LOCK_FILE, Leadership, current_leader
from tests.cases import cases
from tests.factories import NOW
from tests.needs import need

ME = Leader(4711, "here", "root", "serve", NOW)


def test_only_one_process_leads_and_others_can_name_it(tmp_path: Path) -> None:
    assert current_leader(tmp_path) is None
    first, second = Leadership(tmp_path), Leadership(tmp_path)
    assert first.acquire(ME)
    assert first.acquire(ME)
    assert not second.acquire(ME)
    assert current_leader(tmp_path) == ME
    first.release()
    assert current_leader(tmp_path) is None
    assert second.acquire(ME)
    second.release()


HOLD = """
import sys, time
from datetime import UTC, datetime
from pathlib import Path
from gputui.domain.snapshot import Leader
from gputui.engine.leadership import Leadership
assert Leadership(Path(sys.argv[1])).acquire(Leader(1, "h", "u", "serve", datetime.now(UTC)))
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_leader_frees_the_lock_at_once(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert not Leadership(tmp_path).acquire(ME)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    mine = Leadership(tmp_path)
    assert mine.acquire(ME)
    mine.release()


def test_the_lock_is_not_inherited_by_children(tmp_path: Path) -> None:
    mine = Leadership(tmp_path)
    assert mine.acquire(ME)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    mine.release()
    try:
        other = Leadership(tmp_path)
        assert other.acquire(ME)
        other.release()
    finally:
        child.kill()
        child.wait()


def test_reading_never_blocks_a_leader(tmp_path: Path) -> None:
    (tmp_path / "scheduler.lock").touch()
    pid = os.fork()
    if pid == 0:
        for _ in range(20_000):
            current_leader(tmp_path)
        os._exit(0)
    mine = Leadership(tmp_path)
    for _ in range(200):
        assert mine.acquire(ME)
        mine.release()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_replaced_lock_file_has_no_leader(tmp_path: Path) -> None:
    leadership = Leadership(tmp_path)
    assert not leadership.holds()
    leadership.acquire(ME)
    assert leadership.holds()
    (tmp_path / LOCK_FILE).rename(tmp_path / "old.lock")
    assert not leadership.holds()
    second = Leadership(tmp_path)
    assert second.acquire(ME)
    assert (leadership.holds(), second.holds()) == (False, True)
    leadership.release()
    second.release()


def test_without_a_directory_there_is_no_leader(tmp_path: Path) -> None:
    assert not Leadership(tmp_path / "gone").acquire(ME)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 16 KiB with a few files."""
    need("mount")
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=5", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        (path / "ballast").write_bytes(b"x" * 65536)


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Advance the clock until a heartbeat is due."""
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + leadership.BEAT_EVERY)


def test_a_leader_on_a_full_disk_writes_its_name_once_there_is_space(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small / LOCK_FILE).touch()
    fill(small)
    mine, before = Leadership(small), descriptors()
    assert mine.acquire(ME)
    found = current_leader(small)
    assert found is not None
    assert found.user == "unknown"
    assert not Leadership(small).acquire(ME)
    (small / "ballast").unlink()
    later(monkeypatch)
    mine.beat()
    assert current_leader(small) == ME
    mine.release()
    assert descriptors() == before
    assert current_leader(small) is None


def test_a_full_disk_removes_neither_name_nor_heartbeat(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Leadership(small)
    assert first.acquire(ME)
    fill(small)
    later(monkeypatch)
    first.beat()
    assert current_leader(small) == ME
    first.release()
    second = Leadership(small)
    assert second.acquire(ME)
    assert current_leader(small) == ME
    second.release()


def test_an_uncreatable_lock_file_is_named_and_the_process_can_lead_later(small: Path) -> None:
    for number in range(4):
        (small / str(number)).touch()
    mine, before = Leadership(small), descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match="No space left") as info:
            mine.acquire(ME)
        assert info.value.filename == str(small / LOCK_FILE)
    assert (mine.is_mine, descriptors()) == (False, before)
    (small / "0").unlink()
    assert mine.acquire(ME)
    mine.release()


@cases("fails", ["flock", "settle"])
def test_every_failure_closes_the_descriptor_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as broken:
        broken.setattr(*((fcntl, "flock", refuse) if fails == "flock" else (leadership, "set_file_mode", refuse)))
        mine, before = Leadership(tmp_path), descriptors()
        with pytest.raises(OSError, match="No locks available") as info:
            mine.acquire(ME)
        assert info.value.filename == str(tmp_path / LOCK_FILE)
        assert descriptors() == before
    assert Leadership(tmp_path).acquire(ME) is True


def test_a_leader_that_gives_no_sign_of_life_does_not_respond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Leadership(tmp_path, patience=30.0)
    assert mine.acquire(ME)
    monotonic = time.monotonic
    silences = []
    for passed in (0, 29, 40):
        monkeypatch.setattr(time, "monotonic", lambda passed=passed: monotonic() + passed)
        found = current_leader(tmp_path)
        assert found is not None
        silences.append(found.silent_for.total_seconds() // 1)
    assert silences == [0, 0, 40]
    mine.beat()
    found = current_leader(tmp_path)
    assert found == ME
    mine.release()


def test_the_record_of_an_older_gputui_is_read_and_says_nothing_about_silence(tmp_path: Path) -> None:
    old = b'{"pid":7,"host":"here","user":"root","kind":"serve","started_at":"2026-01-01T00:00:00Z"}'
    with (tmp_path / LOCK_FILE).open("wb") as file:
        file.write(old)
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        found = current_leader(tmp_path)
    assert found is not None
    assert (found.pid, found.silent_for) == (7, timedelta())
