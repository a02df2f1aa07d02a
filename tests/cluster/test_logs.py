"""Output of jobs of clusters in files: their last lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from gputui.cluster.kubernetes.records import KeptLog
from gputui.cluster.slurm.inside import SharedFileLog
from gputui.domain.errors import NotFoundError
from tests.cases import cases

BAR = b"10%\r20%\r30%"
"""A line that a progress bar has written over."""

LINES: dict[str, Callable[[Path, int | None], Iterable[bytes]]] = {
    "shared file": lambda path, tail: SharedFileLog(path, tail, None),
    "kept copy": KeptLog,
}


@cases("lines", LINES.values())
@cases("end", [b"", b"\n"])
def test_the_last_lines_are_whole(
    lines: Callable[[Path, int | None], Iterable[bytes]], end: bytes, tmp_path: Path
) -> None:
    path, content = tmp_path / "7.out", [b"start", BAR, b"", BAR]
    path.write_bytes(b"\n".join(content) + end)
    for tail in range(6):
        assert list(lines(path, tail)) == content[max(0, len(content) - tail) :]
    assert list(lines(path, None)) == content
    path.write_bytes(b"")
    assert list(lines(path, 2)) == list(lines(path, None)) == []


@cases("lines", LINES.values())
def test_a_missing_file_is_named(lines: Callable[[Path, int | None], Iterable[bytes]], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="gone"):
        list(lines(tmp_path / "gone.out", 2))


def test_a_followed_file_may_come_later(tmp_path: Path) -> None:
    path, asked = tmp_path / "7.out", list[bool]()

    def is_over() -> bool:
        asked.append(bool(asked))
        path.write_bytes(BAR)
        return asked[-1]

    assert list(SharedFileLog(path, 1, is_over)) == [BAR]
