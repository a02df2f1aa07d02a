"""Streams of jobs: a process for each connection, limits, and those who wait for a job's start."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.domain import frames
from gputui.domain.access import Caller, Role
from gputui.domain.container import ExecRequest
from gputui.domain.errors import NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import Interactive, JobId
from gputui.domain.state import JobState
from gputui.engine import streams as subject
from gputui.engine.streams import Streams
from gputui.ports.backend import Attach, LogRequest, StreamRequest
from tests.factories import NOW, job, running
from tests.waiting import until

PROCESS = """
import json, os, socket, sys
*words, decision, pipe = sys.argv[1:]
told = json.load(os.fdopen(int(decision)))
connection = socket.socket(fileno=0)
if words != ["fails"]:
    os.write(int(pipe), b"y")
os.close(int(pipe))
connection.sendall(told["caller"]["user"].encode() + b" %d" % told["job"]["id"])
connection.recv(1)
"""
ALICE = Caller(1000, 1000, (), "alice", Role.USER)
ROOT = Caller(0, 0, (), "root", Role.OPERATOR)
LS = ExecRequest(("ls",))
TERMINAL = Interactive(stdin=True, tty=True)
PATIENCE = 30.0


class Jobs:
    """Streams over jobs that a test sets, and what they recorded."""

    def __init__(self, *words: str) -> None:
        self.jobs: dict[JobId, Job] = {7: running(7, interactive=TERMINAL)}
        self.recorded: list[tuple[str, JobId, str, ExecRequest | None]] = []
        self.has_recorded = threading.Event()
        command = [sys.executable, "-I", "-S", "-c", PROCESS, *words]
        self.streams = Streams(command, lambda: "store", self.get, self.record)
        self.streams.open()
        self.clients: list[socket.socket] = []

    def get(self, job_id: JobId) -> Job:
        if job_id not in self.jobs:
            raise NotFoundError(f"there is no job {job_id}")
        return self.jobs[job_id]

    def record(self, caller: Caller, one: Job, verb: str, request: ExecRequest | None) -> None:
        self.recorded.append((caller.user, one.id, verb, request))
        self.has_recorded.set()

    def ask(self, caller: Caller, job_id: JobId, request: StreamRequest) -> Client:
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        self.clients.append(ours)
        self.streams.serve(caller, job_id, request, theirs)
        return Client(ours)

    def close(self) -> None:
        self.streams.close()
        for each in self.clients:
            each.close()
        for thread in threading.enumerate():
            if thread.name == "gputui-streams":
                thread.join(PATIENCE)


class Client:
    """The other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.got = b""

    def until(self, end: bytes) -> bytes:
        while not self.got.endswith(end):
            piece = self.connection.recv(65536)
            assert piece, self.got
            self.got += piece
        return self.got

    def rest(self) -> bytes:
        while piece := self.connection.recv(65536):
            self.got += piece
        return self.got

    def is_served(self, user: str, job_id: JobId) -> bool:
        """Return whether its process says so; it then goes on until this end is closed."""
        return self.until(f"{user} {job_id}".encode()).startswith(b"HTTP/1.1 101 Switching Protocols\r\n")


@pytest.fixture
def there() -> Iterator[Jobs]:
    there = Jobs()
    yield there
    there.close()


def test_a_process_gets_the_connection_and_the_decision_and_the_audit_log_says_who_entered(there: Jobs) -> None:
    client = there.ask(ALICE, 7, LS)
    assert client.is_served("alice", 7)
    assert there.has_recorded.wait(PATIENCE)
    assert there.recorded == [("alice", 7, "exec", LS)]
    head, _, rest = client.got.partition(b"\r\n\r\n")
    assert b"Upgrade: gputui-stream/1" in head
    assert rest.startswith(frames.frame(frames.JOB, b"7"))


def test_what_did_not_enter_a_job_is_not_in_the_audit_log() -> None:
    there = Jobs("fails")
    first = there.ask(ALICE, 7, LS)
    assert first.is_served("alice", 7)
    log = there.ask(ALICE, 7, LogRequest(follow=True))
    assert log.until(b"alice 7") == b"alice 7", "the head of a plain answer is the process's own"
    assert not there.recorded
    there.close()


def test_a_stream_of_no_job_is_refused(there: Jobs) -> None:
    assert b"there is no job 8" in there.ask(ALICE, 8, LS).rest()


def test_one_user_does_not_take_all_streams_and_operators_are_not_counted(
    there: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MOST_OF_ONE", 2)
    monkeypatch.setattr(subject, "MOST", 3)
    there.jobs[9] = job(9, interactive=TERMINAL)
    first = there.ask(ALICE, 7, LS)
    there.ask(ALICE, 9, Attach(from_start=True))  # it waits, and counts
    assert b"the most for one user" in there.ask(ALICE, 7, LS).rest()
    assert b"HTTP/1.1 429" in there.ask(ALICE, 7, LogRequest(follow=True)).rest()
    bob = Caller(1001, 1001, (), "bob", Role.USER)
    assert there.ask(bob, 7, LS).is_served("bob", 7)
    assert b"the most for all users" in there.ask(bob, 7, LS).rest()
    assert all(there.ask(ROOT, 7, LS).is_served("root", 7) for _ in range(4))
    assert first.is_served("alice", 7)
    first.connection.close()
    until(lambda: b"most for" not in _answer(there), "there is room")


def _answer(there: Jobs) -> bytes:
    client = there.ask(ALICE, 7, LS)
    client.connection.shutdown(socket.SHUT_WR)  # its process ends
    return client.rest()


def test_a_start_waits_for_those_who_see_the_job_from_its_start(there: Jobs) -> None:
    there.jobs[7] = job(7, interactive=TERMINAL)
    client = there.ask(ALICE, 7, Attach("ctrl-a", from_start=True))
    there.streams.look()
    there.jobs[7] = running(7, interactive=TERMINAL).evolve(state=JobState.CONFIGURING)
    there.streams.look()
    assert not there.recorded
    there.streams.before_start(8)
    there.streams.before_start(7)
    assert client.is_served("alice", 7)
    assert there.has_recorded.wait(PATIENCE)
    assert there.recorded == [("alice", 7, "attach", None)]
    before = time.monotonic()
    there.streams.before_start(7)
    assert time.monotonic() - before < subject.PATIENCE / 2, "nobody is left to wait for"


def test_no_client_delays_a_start_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "PATIENCE", 0.05)
    there = Jobs()
    there.jobs[7] = job(7, interactive=TERMINAL)
    there.streams = Streams(["sh", "-c", "cat >/dev/null"], lambda: "store", there.get, there.record)
    there.streams.open()
    there.ask(ALICE, 7, Attach(from_start=True))
    there.streams.before_start(7)
    there.close()


def test_one_who_left_is_not_waited_for(there: Jobs) -> None:
    there.jobs[7] = job(7, interactive=TERMINAL)
    client = there.ask(ALICE, 7, Attach(from_start=True))
    client.connection.close()
    there.streams.before_start(7)
    assert not there.recorded
    there.ask(ALICE, 7, Attach(from_start=True)).connection.close()
    there.streams.look()
    there.jobs[7] = running(7, interactive=TERMINAL)
    there.streams.look()
    assert not there.recorded


def test_who_waits_is_served_once_the_job_runs_or_told_that_it_has_ended(there: Jobs) -> None:
    there.jobs |= {each: job(each, interactive=TERMINAL) for each in (7, 8, 9)}
    runs, ended, gone = (there.ask(ALICE, each, Attach(from_start=True)) for each in (7, 8, 9))
    there.jobs[7] = running(7, interactive=TERMINAL)
    there.jobs[8] = there.jobs[8].evolve(state=JobState.CANCELLED, ended_at=NOW)
    del there.jobs[9]
    there.streams.look()
    assert runs.is_served("alice", 7)
    assert ended.rest().endswith(b"job 8 is CANCELLED")
    assert gone.rest().endswith(b"there is no job 9")
    assert there.ask(ALICE, 7, Attach(from_start=True)).is_served("alice", 7), "it runs already"


def test_the_next_owner_is_asked_when_this_one_ends(there: Jobs) -> None:
    there.jobs[7] = job(7, interactive=TERMINAL)
    client = there.ask(ALICE, 7, Attach(from_start=True))
    there.streams.close()
    assert client.rest().endswith(frames.frame(frames.JOB, b"7")), "no refusal: the connection just ends"
    assert there.ask(ALICE, 7, Attach(from_start=True)).rest().endswith(frames.frame(frames.JOB, b"7"))


def test_without_its_process_the_client_is_hung_up_on_and_the_start_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    there = Jobs()
    there.streams = Streams([str(tmp_path / "none")], lambda: "store", there.get, there.record)
    assert there.ask(ALICE, 7, LS).rest().endswith(frames.frame(frames.JOB, b"7"))
    assert "a stream of job 7 cannot be served" in caplog.text
    there.close()
