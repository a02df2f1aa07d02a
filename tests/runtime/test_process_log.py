"""Output of host jobs: read, followed, copied, and kept from filling the disk."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputui.ports import LiveLogStream
from gputui.runtime.process import wrapper
from gputui.runtime.process.log import FileLogStream, first_byte, save
from tests.cases import cases
from tests.waiting import until


def read(path: Path, tail: int | None = None) -> list[bytes]:
    return list(FileLogStream(path, tail=tail, follow=False, is_over=lambda: True))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(content=st.binary(max_size=200).map(lambda each: each.replace(b"a", b"\n")), tail=st.integers(0, 12))
def test_the_tail_has_the_last_lines(content: bytes, tail: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    lines = content.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    assert read(path) == lines
    assert read(path, tail) == lines[len(lines) - min(tail, len(lines)) :]


def test_the_tail_of_a_large_log_is_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"%06d %s" % (number, b"x" * 50) for number in range(10_000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert read(path, 5_000) == lines[-5_000:]
    assert read(path, 20_000) == lines


def test_an_endless_line_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * 3_000_000)
    pieces = read(path)
    assert len(pieces) > 1
    assert b"".join(pieces) == b"x" * 3_000_000


def test_output_between_the_last_read_and_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n")

    def is_over() -> bool:
        with path.open("ab") as file:
            file.write(b"last words")
        return True

    assert list(FileLogStream(path, tail=None, follow=True, is_over=is_over)) == [b"first", b"last words"]


@cases("is_begun", [True, False])
def test_closing_closes_the_file(tmp_path: Path, is_begun: bool) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntwo\n")
    stream = FileLogStream(path, tail=None, follow=True, is_over=lambda: False)
    lines = iter(stream)
    if is_begun:
        assert next(lines) == b"one"
    stream.close()
    stream.close()
    assert list(lines) in ([], [b"two"])
    assert list(stream) == []
    open_files = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert path not in open_files


def test_a_copy_is_complete_or_absent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "missing", tmp_path / "logs" / "copy")
    assert list((tmp_path / "logs").iterdir()) == []
    (tmp_path / "log").write_bytes(b"\0\xff\n")
    save(tmp_path / "log", tmp_path / "logs" / "copy")
    assert (tmp_path / "logs" / "copy").read_bytes() == b"\0\xff\n"
    assert (tmp_path / "logs" / "copy").stat().st_mode & 0o777 == 0o600


def test_the_oldest_output_of_a_flood_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    lines = [b"%07d" % number for number in range(200_000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    log = os.open(path, os.O_RDWR | os.O_APPEND)
    monkeypatch.setattr(wrapper, "TRIM_EVERY", 0.01)
    wrapper.keep_log_small(log, 400_000)
    try:
        until(lambda: os.fstat(log).st_blocks * 512 <= 400_000, "the disk had some back")
        os.write(log, b"later\n")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    kept = read(path)
    assert kept == [*lines[-len(kept) + 1 :], b"later"]
    assert len(kept) > 10_000
    assert read(path, 2) == [lines[-1], b"later"]
    save(path, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"\n".join(kept) + b"\n"
    assert first_byte(log) > 0
    os.close(log)


def test_a_slow_reader_skips_output_that_was_released(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"%07d" % number for number in range(100_000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    stream = FileLogStream(path, tail=None, follow=True, is_over=lambda: True)
    reading = iter(stream)
    assert next(reading) == lines[0]
    with path.open("r+b") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.fallocate(file.fileno(), 3, ctypes.c_longlong(0), ctypes.c_longlong(655_360)) == 0
    rest = list(reading)
    assert not [each for each in rest if b"\0" in each]
    assert rest[-10_000:] == lines[-10_000:]
    assert len(rest) < 30_000


def test_a_line_that_has_not_ended_is_told_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"first\n1%\r2%")
    told: list[bytes] = []
    later = iter((b"\r3%", b"", b"\r4%\nlast"))

    def is_over() -> bool:
        with path.open("ab") as file:
            file.write(more := next(later, b""))
        return not more and b"last" in path.read_bytes()

    stream = FileLogStream(path, tail=None, follow=True, is_over=is_over)
    assert isinstance(stream, LiveLogStream)
    stream.watch(told.append)
    assert list(stream) == [b"first", b"1%\r2%\r3%\r4%", b"last"]
    assert told == [b"1%\r2%", b"1%\r2%\r3%"]  # and not again while it stays the same
