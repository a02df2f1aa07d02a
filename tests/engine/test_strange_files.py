"""A FIFO, a link or a directory in place of a file of the state directory blocks nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.engine.files import gpu_focus, gpu_log, live_file
from gputui.engine.files.leadership import LOCK_FILE, Leadership, current_leader
from tests.engine.test_leadership import ME

PLANTED: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "directory": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_other_kinds_of_files_count_as_missing(tmp_path: Path, planted: Callable[[Path], None]) -> None:
    for name in (live_file.LIVE_FILE, gpu_log.FILE, gpu_focus.FOCUS_FILE, LOCK_FILE):
        planted(tmp_path / name)
    assert live_file.read(tmp_path) is None
    assert gpu_log.read(tmp_path) == []
    assert gpu_focus.read_focus(tmp_path) is None
    assert current_leader(tmp_path) is None
    with pytest.raises(OSError, match=LOCK_FILE):
        Leadership(tmp_path).acquire(ME)
