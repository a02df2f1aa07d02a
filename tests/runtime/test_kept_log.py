"""Kept logs are whole or absent, also when two clean-ups write the same one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gputui.runtime.process.log import kept_log


def test_two_writers_of_one_log_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    both_write = threading.Barrier(2)

    def write(letter: bytes) -> None:
        with kept_log(path) as file:
            for _ in range(2):
                file.write(letter * 100_000)
                file.flush()
                both_write.wait(60)

    writers = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert path.read_bytes() in (b"a" * 200_000, b"b" * 200_000)
    assert _names(path.parent) == ["1.log"]


def test_a_log_has_its_name_only_when_all_of_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could leave a whole name with half a log."""
    path = tmp_path / "1.log"
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def sync(fd: int) -> None:
        found = Path(f"/proc/self/fd/{fd}")
        synced.append(("folder" if found.is_dir() else found.read_text(), path.exists()))
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    with kept_log(path) as file:
        file.write(b"whole")
    assert synced == [("whole", False), ("folder", True)]
    assert path.read_bytes() == b"whole"


def test_an_aborted_save_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "1.log"
    with pytest.raises(ConnectionError):
        _break_off(path)
    assert not _names(tmp_path)


def _break_off(path: Path) -> None:
    with kept_log(path) as file:
        file.write(b"half")
        raise ConnectionError


def test_parts_of_killed_writers_are_removed_after_a_day(tmp_path: Path) -> None:
    old, young = tmp_path / ".1.log.0011.part", tmp_path / ".1.log.0022.part"
    old.write_bytes(b"old")
    young.write_bytes(b"young")
    yesterday = time.time() - 90_000
    os.utime(old, (yesterday, yesterday))
    with kept_log(tmp_path / "1.log") as file:
        file.write(b"whole")
    assert _names(tmp_path) == [young.name, "1.log"]


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())
