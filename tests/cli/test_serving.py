"""What a scheduler without a screen leaves in the state directory."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.cli import serving


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """The root logger, as it was before."""
    root = logging.getLogger()
    before, raising = list(root.handlers), logging.raiseExceptions
    yield root
    for handler in [each for each in root.handlers if each not in before]:
        root.removeHandler(handler)
        handler.close()
    logging.raiseExceptions = raising


@pytest.mark.parametrize(("directory", "file"), [(0o700, 0o600), (0o2770, 0o660)])
def test_the_log_is_for_whom_the_state_directory_is(
    tmp_path: Path, root_logger: logging.Logger, directory: int, file: int
) -> None:
    tmp_path.chmod(directory)
    serving.log_to_file(tmp_path)
    logging.getLogger("gputui.test").warning("secretive")
    path = tmp_path / "gputui.log"
    assert "secretive" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == file


def test_a_hand_over_needs_no_room_for_its_errors(tmp_path: Path) -> None:
    fd = serving._errors_file(tmp_path / "no" / "serve.err")
    assert os.write(fd, b"lost") == 4
    os.close(fd)
