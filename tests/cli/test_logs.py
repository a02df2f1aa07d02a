"""`gputui logs`: raw to a pipe, harmless to a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from gputui.bootstrap import backend
from gputui.cli import terminal, wait
from gputui.domain.access import others_job
from gputui.domain.errors import Cause, CauseCode, NotFoundError, RuntimeFault
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.ports.backend import LogRequest
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run, local, put
from tests.factories import NOW, job, running

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
    """Fake source of the output of attempts."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.asked: list[tuple[object, ...]] = []

    def open(self, job_id: int, request: LogRequest) -> Stream:
        self.asked.append((job_id, request.attempt, request.tail, request.follow))
        if job_id == 404:
            raise NotFoundError("there is no job 404")
        return self.stream


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Logs:
    found = Logs(Stream(*LINES))
    monkeypatch.setattr(backend, "open_logs", lambda options, store: found)
    return found


def test_options_are_passed_to_the_log(
    run: Run, store: KeptStore, found: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, *(running() for _ in range(7)))
    assert run("logs", "7").code == 0
    assert run("logs", "-f", "--tail", "5", "--attempt", "2", "7").code == 0
    assert run("logs", "7", "--tail", "0").code == 0
    assert found.asked == [(7, None, None, False), (7, 2, 5, True), (7, None, 0, False)]
    assert found.stream.closed


def test_output_that_does_not_come_is_told(
    run: Run, store: KeptStore, found: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, tell, opened = Event(), terminal.tell, found.open

    def late(sentence: str) -> None:
        tell(sentence)
        told.set()

    def open_late(*asked: Any, **options: Any) -> Stream:
        assert told.wait(60)
        return opened(*asked, **options)

    monkeypatch.setattr(wait, "_LATE_AFTER", 0.01)
    monkeypatch.setattr(terminal, "tell", late)
    monkeypatch.setattr(found, "open", open_late)
    put(store, running())
    result = run("logs", "1")
    assert result.code == 0
    assert result.err == "gputui: no output has come for 5 s: `gputui doctor` tells whether its engine answers\n"


def test_an_unknown_job_is_refused(run: Run, found: Logs) -> None:
    assert run("logs", "404").code == 3


@cases("given", [["--tail", "-1"], ["--tail", "x"], ["--attempt", "0"], ["--attempt", "last"]])
def test_bad_numbers_are_refused_by_name(run: Run, found: Logs, given: list[str]) -> None:
    result = run("logs", *given, "7")
    assert (result.code, result.out) == (2, "")
    assert given[0] in result.err
    assert not found.asked


class MovingStore(KeptStore):
    """Store in which the job goes on each time somebody asks whether something has changed."""

    states: tuple[Job, ...] = ()

    def version(self) -> object:
        if self.states:
            with self.transaction() as transaction:
                transaction.put(self.states[0])
            self.states = self.states[1:]
        return super().version()


def test_following_waits_for_the_start_and_not_for_what_only_others_are_told() -> None:
    """The wait is over once the container is there, and not before; what only others are told is refused later."""
    assert wait.was_started(running(1).with_attempt(container_id=None))
    store = MovingStore()
    put(store, job())
    starting = running(1).with_attempt(container_id=None).evolve(state=JobState.CONFIGURING)
    store.states = (job(1), starting, running(1).with_attempt(container_id="c1"), job(1))
    wait.wait_until_started(local(store), 1)
    assert len(store.states) == 1


def test_following_a_job_whose_output_is_not_for_this_user_is_refused_at_once(
    run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Logs):
        def open(self, job_id: int, *rest: object, **options: object) -> Stream:
            raise others_job(job(job_id), "read its output")

    put(store, job())
    monkeypatch.setattr(backend, "open_logs", lambda options, store: Refusing(Stream()))
    for words in (("logs", "-f", "1"), ("attach", "1")):
        result = run(*words)
        assert (result.code, result.out) == (1, "")
        assert "operators may read its output" in result.err


def test_following_does_not_wait_for_output_that_never_comes(store: KeptStore) -> None:
    put(store, job().evolve(state=JobState.CANCELLED, ended_at=NOW), running())

    wait.wait_until_started(local(store), 1)
    wait.wait_until_started(local(store), 2)
    with pytest.raises(NotFoundError):
        wait.wait_until_started(local(store), 404)


def test_ctrl_c_ends_logs_without_a_message(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, *(running() for _ in range(7)))
    found = Logs(Stream(b"one", fails=KeyboardInterrupt()))
    monkeypatch.setattr(backend, "open_logs", lambda options, store: found)
    result = run("logs", "-f", "7")
    assert (result.code, result.out, result.err.strip()) == (130, "one\n", "")
    assert found.stream.closed


def test_a_log_that_breaks_off_fails(run: Run, store: KeptStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, *(running() for _ in range(7)))
    fault = RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, "the log is incomplete: the connection broke off"))
    found = Logs(Stream(b"one", fails=fault))
    monkeypatch.setattr(backend, "open_logs", lambda options, store: found)
    result = run("logs", "7")
    assert (result.code, result.out) == (1, "one\n")
    assert "the log is incomplete" in result.err
    assert found.stream.closed


def test_raw_lines_are_byte_for_byte(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = wait.RawPrinter()
    for line in LINES:
        printer.print_line(line)
    assert capfdbinary.readouterr().out == b"".join(line + b"\n" for line in LINES)


def test_a_line_that_has_not_ended_is_written_as_it_grows(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer, seen = wait.RawPrinter(), list[bytes]()
    for so_far in (b"10%", b"10%\r20%", b"10%\r20%\r99%"):
        printer.show_rest(so_far)
        seen.append(capfdbinary.readouterr().out)
    printer.print_line(b"10%\r20%\r99%\r100%")
    printer.print_line(b"done")
    assert seen == [b"10%", b"\r20%", b"\r99%"]
    assert capfdbinary.readouterr().out == b"\r100%\ndone\n"


def test_a_terminal_shows_the_last_state_of_a_progress_bar_in_place(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "9")
    printer = wait.TerminalPrinter()
    printer.show_rest(b"1%\r\x1b[2K20% of many\r")
    printer.print_line(b"20% of many\rdone")
    blank = b"\r" + b" " * 8 + b"\r"
    assert capfdbinary.readouterr().out == "20% of …".encode() + blank + b"done\n"


def test_a_terminal_gets_colours_but_no_other_control_sequences(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    printer = wait.TerminalPrinter()
    for line in LINES:
        printer.print_line(line)
    green, progress, clear, raw, chinese = capfdbinary.readouterr().out.decode().splitlines()
    assert green == "\x1b[32mgreen\x1b[0m\x1b[0m"
    assert (progress, clear, raw, chinese) == ("99%", "clear", "\ufffd\u2400 raw", "训练")
