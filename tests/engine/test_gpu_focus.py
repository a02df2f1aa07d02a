"""Detailed readings of the GPU that a console beside the scheduler shows."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gputui.engine.files import console_marks
from tests.factories import uuid


def test_a_focused_gpu_is_read_in_detail_until_the_focus_expires(tmp_path: Path) -> None:
    assert console_marks.read_focus(tmp_path) is None
    console_marks.write_focus(tmp_path, uuid(3), 0o660)
    assert console_marks.read_focus(tmp_path) == uuid(3)
    path = tmp_path / console_marks.FOCUS_FILE
    assert path.stat().st_mode & 0o777 == 0o660
    past = time.time() - console_marks.LAPSES_AFTER - 1
    os.utime(path, (past, past))
    assert console_marks.read_focus(tmp_path) is None
    assert [each.name for each in tmp_path.iterdir()] == [console_marks.FOCUS_FILE]


@pytest.mark.parametrize("text", ["", "refresh\nquit", "GPU-" + "1" * 200, "GPU-1 2"])
def test_anything_else_in_the_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / console_marks.FOCUS_FILE).write_text(text)
    assert console_marks.read_focus(tmp_path) is None


def test_a_pipe_or_a_link_in_its_place_is_ignored_and_a_lost_directory_too(tmp_path: Path) -> None:
    path = tmp_path / console_marks.FOCUS_FILE
    os.mkfifo(path)
    assert console_marks.read_focus(tmp_path) is None
    path.unlink()
    (tmp_path / "other").write_text(uuid(1))
    path.symlink_to(tmp_path / "other")
    assert console_marks.read_focus(tmp_path) is None
    console_marks.write_focus(tmp_path / "gone", uuid(1), 0o600)
    assert console_marks.read_focus(tmp_path / "gone") is None
