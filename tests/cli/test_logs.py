"""`gputui logs`: raw to a pipe, harmless to a terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gputui import bootstrap
from gputui.cli import logs
from gputui.domain.errors import NotFoundError
from tests.cli.conftest import Run

LINES = (b"\x1b[32mgreen\x1b[0m", b"10%\r99%", b"\x1b[2J\x1b]0;owned\x07clear", b"\xff\x00 raw", "训练".encode())


class Stream:
    def __init__(self, *lines: bytes, fails: BaseException | None = None) -> None:
        self.lines = lines
        self.fails = fails
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.lines
        if self.fails:
            raise self.fails

    def close(self) -> None:
        self.closed = True


class Logs:
    """Stands for what finds the output of attempts."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.asked: list[tuple[object, ...]] = []

    def open(self, job_id: int, attempt: int | None, *, tail: int | None, follow: bool) -> Stream:
        self.asked.append((job_id, attempt, tail, follow))
        if job_id == 404:
            raise NotFoundError("there is no job 404")
        return self.stream


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs(Stream(*LINES))
    monkeypatch.setattr(bootstrap, "open_logs", lambda options, store: found)
    return found


def test_options_reach_the_log(run: Run, found: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "writer", lambda to_terminal: lambda line: None)
    assert run("logs", "7").code == 0
    assert run("logs", "-f", "--tail", "5", "--attempt", "2", "7").code == 0
    assert run("logs", "7", "--tail", "0").code == 0
    assert found.asked == [(7, None, None, False), (7, 2, 5, True), (7, None, 0, False)]
    assert found.stream.closed


def test_no_such_job(run: Run, found: Logs) -> None:
    assert run("logs", "404").code == 3


@pytest.mark.parametrize("given", [["--tail", "-1"], ["--tail", "x"], ["--attempt", "0"], ["--attempt", "last"]])
def test_bad_numbers_are_refused_by_name(run: Run, found: Logs, given: list[str]) -> None:
    result = run("logs", *given, "7")
    assert (result.code, result.out) == (2, "")
    assert given[0] in result.err
    assert not found.asked


def test_an_interrupt_ends_it_quietly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Logs(Stream(b"one", fails=KeyboardInterrupt()))
    monkeypatch.setattr(bootstrap, "open_logs", lambda options, store: found)
    result = run("logs", "-f", "7")
    assert (result.code, result.out, result.err.strip()) == (130, "one\n", "")
    assert found.stream.closed


def test_raw_lines_are_byte_for_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write = logs.writer(to_terminal=False)
    for line in LINES:
        write(line)
    assert capfdbinary.readouterr().out == b"".join(line + b"\n" for line in LINES)


def test_a_terminal_gets_colours_and_nothing_else_that_acts(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write = logs.writer(to_terminal=True)
    for line in LINES:
        write(line)
    green, progress, clear, raw, chinese = capfdbinary.readouterr().out.decode().splitlines()
    assert green == "\x1b[32mgreen\x1b[0m\x1b[0m"
    assert (progress, clear, raw, chinese) == ("99%", "clear", "\ufffd\u2400 raw", "训练")
