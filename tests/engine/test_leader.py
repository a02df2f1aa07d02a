"""One scheduler per state directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from gputui.domain.snapshot import Leader
from gputui.engine.leader import LOCK_FILE, Leadership, current_leader
from tests.factories import NOW

ME = Leader(4711, "here", "root", "serve", NOW)


def test_only_one_holds_it_and_others_can_tell_who(tmp_path: Path) -> None:
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
from gputui.engine.leader import Leadership
assert Leadership(Path(sys.argv[1])).acquire(Leader(1, "h", "u", "serve", datetime.now(UTC)))
print("held", flush=True)
time.sleep(60)
"""


def test_it_is_free_the_moment_its_holder_is_killed(tmp_path: Path) -> None:
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


def test_the_lock_is_not_inherited_by_what_the_holder_starts(tmp_path: Path) -> None:
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


def test_looking_never_keeps_anybody_from_leading(tmp_path: Path) -> None:
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


def test_a_lock_file_that_was_replaced_is_nobodys(tmp_path: Path) -> None:
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


def test_where_there_is_no_directory_nobody_leads(tmp_path: Path) -> None:
    assert not Leadership(tmp_path / "gone").acquire(ME)
