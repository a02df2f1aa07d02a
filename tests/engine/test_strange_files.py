"""A FIFO, a link or a directory in place of a file of the state directory blocks nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gputui.engine import files, telemetry_files
from gputui.engine.leadership import LOCK_FILE, Leadership, current_leader
from tests.cases import cases
from tests.engine.test_leadership import ME

PLANTED: dict[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "link": lambda path: path.symlink_to("/etc/passwd"),
    "directory": Path.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@cases("planted", PLANTED.values())
def test_other_kinds_of_files_count_as_missing(tmp_path: Path, planted: Callable[[Path], None]) -> None:
    for name in (telemetry_files.GPU_LOG, LOCK_FILE):
        planted(tmp_path / name)
    assert telemetry_files.read_gpu_log(tmp_path) == []
    assert current_leader(tmp_path) is None
    with pytest.raises(OSError, match=LOCK_FILE):
        Leadership(tmp_path).acquire(ME)


BYTES = {
    "deep": b"[" * 5000,
    "deep below a key": b'{"pid":1,"x":' + b'{"a":' * 5000,
    "not UTF-8": b'{"host":"\xff\xfe"}',
    "deep MessagePack": b"\x91" * 5000,
    "MessagePack that is not UTF-8": b"\x81\xa2\xff\xfe\xc0",
    "another type": b"7",
}


@cases("content", BYTES.values())
def test_any_bytes_count_as_missing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / telemetry_files.telemetry_path(1, 1)).parent.mkdir(parents=True)
    leadership = Leadership(tmp_path)
    assert leadership.acquire(ME)
    names = (telemetry_files.GPU_LOG, LOCK_FILE, files.BACKUP_RECORD)
    for name in (*names, telemetry_files.telemetry_path(1, 1)):
        (tmp_path / name).write_bytes(content)
    assert telemetry_files.read_gpu_log(tmp_path) == []
    assert files.read_backup_record(tmp_path) is None
    assert telemetry_files.read(tmp_path, 1, 1, "c") is None
    leader = current_leader(tmp_path)
    assert leader is not None
    assert leader.user == "unknown"  # it holds the lock all the same
    leadership.release()
