"""Streams of real host jobs through the process that serves them, as their clients see them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.api.streams import AwaitedStream, OutputStream, entered
from gputui.bootstrap import clock
from gputui.bootstrap.hosting import open_streams
from gputui.config import Options
from gputui.domain.access import AuditEntry, Caller, Role
from gputui.domain.container import ExecRequest, Launch
from gputui.domain.errors import GputuiError, NoOwnerError
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import Interactive, JobSpec
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from gputui.engine.streams import Streams
from gputui.ports import Channel
from gputui.ports.backend import Attach, LogRequest, StreamRequest
from gputui.runtime.process.runtime import ProcessRuntime
from gputui.store import TinyJobStore
from tests import leftovers
from tests.factories import NOW
from tests.waiting import until

PATIENCE = 30.0
ME = Caller(os.geteuid(), os.getegid(), (), "me", Role.USER)
PIPES, TERMINAL = Interactive(stdin=True), Interactive(stdin=True, tty=True)


class Place:
    """Host jobs of a state directory, and the streams of its owner."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.options = Options(self.state, runtime="process", settings=Settings())
        self.store = TinyJobStore(self.state, self.options.settings.store)
        self.runtime = ProcessRuntime(self.store.store_id, self.state, self.options.settings.runtime, clock())
        self.streams: Streams = open_streams(self.options, self.store)
        self.streams.open()

    def job(self, script: str, interactive: Interactive | None = None, uid: int = ME.uid) -> Job:
        """Return a job in the queue, waiting."""
        spec = JobSpec(command=("sh", "-c", script), tenant="me", interactive=interactive)
        job = Job(0, spec, NOW, submitted_by="me", submitted_uid=uid)
        [job_id] = self.store.submit((job,), actor=ME.actor)
        return self.store.get(job_id)

    def started(self, script: str, interactive: Interactive | None = None, uid: int = ME.uid) -> Job:
        """Return a running job."""
        job = self.job(script, interactive, uid)
        return self.start(job)

    def start(self, job: Job) -> Job:
        """Start a job of the queue, as the scheduler does."""
        launch = Launch(self.store.store_id, job.id, 1, job.spec, (), submitter=os.geteuid())
        container_id = self.runtime.create(launch).id
        self.runtime.start(container_id)
        with self.store.transaction() as transaction:
            running = replace(job, state=JobState.RUNNING, attempts=(Attempt(1, (), NOW, container_id=container_id),))
            transaction.put(running)
        return running

    def ask(self, job: Job, request: StreamRequest, caller: Caller = ME) -> tuple[socket.socket, bytes]:
        """Return the connection of a client, behind the head of the answer if it was upgraded."""
        ours, theirs = socket.socketpair()
        ours.settimeout(PATIENCE)
        self.streams.serve(caller, job.id, request, theirs)
        if isinstance(request, LogRequest) and not request.in_frames:
            return ours, b""
        got = b""
        while b"\r\n\r\n" not in got:
            got += ours.recv(65536)
        head, _, early = got.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        ours.settimeout(None)
        return ours, early

    def close(self) -> None:
        self.streams.close()
        for thread in threading.enumerate():
            if thread.name == "gputui-streams":
                thread.join(PATIENCE)
        leftovers.end(self.state)
        self.store.close()
        self.runtime.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def output(channel: Channel, until: bytes = b"") -> tuple[bytes, bytes]:
    """Return what a channel sends, up to its end or until the output ends so."""
    out, err = bytearray(), bytearray()
    while not (until and out.endswith(until)):
        parts = channel.receive()
        if parts is None:
            break
        for is_error, piece in parts:
            (err if is_error else out).extend(piece)
    return bytes(out), bytes(err)


def test_a_command_runs_in_a_job_and_the_audit_log_has_it(place: Place) -> None:
    job = place.started("sleep 600")
    channel = entered(*place.ask(job, ExecRequest(("sh", "-c", "cat; echo no >&2; exit 4"), stdin=True)))
    assert not channel.is_tty
    channel.send(b"hello")
    channel.end_input()
    assert output(channel) == (b"hello", b"no\n")
    assert channel.exit_code() == 4
    channel.close()
    [entry] = until(partial(_entries, place, job))
    assert (entry.uid, entry.user) == (ME.uid, "me")
    assert "exit 4" in entry.after


def _entries(place: Place, job: Job) -> list[AuditEntry]:
    return [each for each in place.store.audit_log(job.target) if each.verb == "exec"]


def test_a_terminal_has_its_size_and_a_job_goes_on_without_its_client(place: Place) -> None:
    job = place.started("read line; stty size; read line; exit 3", TERMINAL)
    channel = entered(*place.ask(job, Attach()))
    assert channel.is_tty
    channel.resize(7, 99)
    channel.send(b"\n")
    assert b"7 99" in output(channel, b"7 99\r\n")[0]
    channel.close()
    again = entered(*place.ask(job, Attach()))
    again.send(b"\n")
    output(again)
    assert again.exit_code() == 3
    again.close()


def test_only_its_submitter_and_operators_enter_a_job(place: Place) -> None:
    job = place.started("sleep 600")
    mallory = Caller(ME.uid + 1, 1, (), "mallory", Role.USER)
    with pytest.raises(GputuiError, match=f"job {job.id}: only me, who submitted it"):
        entered(*place.ask(job, ExecRequest(("id",)), mallory))
    other = place.started("sleep 600", uid=mallory.uid)  # the queue says so, but not the record of its start
    with pytest.raises(GputuiError, match=f"job {other.id}: only me, who submitted it"):
        entered(*place.ask(other, ExecRequest(("id",)), mallory))
    root = Caller(ME.uid + 2, 1, (), "operator", Role.OPERATOR)
    channel = entered(*place.ask(other, ExecRequest(("echo", "in")), root))
    assert output(channel)[0] == b"in\n"
    channel.close()


def test_a_stream_from_the_start_begins_once_the_job_runs(place: Place) -> None:
    waiting = place.job("echo begun; cat; exit 5", PIPES)
    awaited = AwaitedStream(*place.ask(waiting, Attach(from_start=True)))
    assert awaited.job_id() == waiting.id
    assert awaited.channel() is None
    place.start(waiting)
    place.streams.look()
    until(lambda: awaited.channel() is not None)
    channel = awaited.channel()
    assert channel is not None
    channel.send(b"typed\n")
    channel.end_input()
    assert output(channel)[0] == b"begun\ntyped\n"
    assert channel.exit_code() == 5
    channel.close()


def test_who_waits_hears_that_the_owner_ends(place: Place) -> None:
    awaited = AwaitedStream(*place.ask(place.job("true", PIPES), Attach(from_start=True)))
    place.streams.close()
    with pytest.raises(NoOwnerError):
        until(lambda: awaited.channel() is not None)


def test_a_log_is_followed_to_its_end_and_shows_a_line_that_has_not_ended(place: Place) -> None:
    go = place.state / "go"
    job = place.started(f"echo one; printf 'tw'; while [ ! -e {go} ]; do sleep 0.05; done; echo o; printf three")
    log = OutputStream(*place.ask(job, LogRequest(follow=True, in_frames=True)))
    seen: list[bytes] = []

    def tell(line: bytes) -> None:
        seen.append(line)
        go.touch()

    log.watch(tell)
    assert list(log) == [b"one", b"two", b"three"]
    assert seen[0] == b"tw"
    last = OutputStream(*place.ask(job, LogRequest(tail=1, in_frames=True)))
    assert list(last) == [b"three"]


def test_of_an_ended_attempt_standard_error_comes_apart(place: Place) -> None:
    job = place.started("echo out; sleep 0.2; echo err >&2; sleep 0.2; echo more", PIPES)
    attempt = job.attempts[0].container_id or ""
    until(lambda: (found := place.runtime.inspect(attempt)) is not None and found.ended_at is not None)
    ended = replace(job, attempts=(replace(job.attempts[0], ended_at=NOW),), state=JobState.COMPLETED, ended_at=NOW)
    with place.store.transaction() as transaction:
        transaction.put(ended)
    channel = entered(*place.ask(ended, LogRequest(in_frames=True, apart=True)))
    assert output(channel) == (b"out\nmore\n", b"err\n")
    assert channel.exit_code() == 0
    channel.close()


def test_a_log_without_frames_is_a_plain_answer(place: Place) -> None:
    job = place.started("for n in 1 2 3; do echo $n; done")
    link, _ = place.ask(job, LogRequest(follow=True))
    with link, link.makefile("rb") as answer:
        content = answer.read()
    head, _, body = content.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body.endswith(b"0\r\n\r\n")
    assert [line for line in body.split() if line in {b"1", b"2", b"3"}] == [b"1", b"2", b"3"]
    link, _ = place.ask(job, LogRequest(7, follow=True))
    with link, link.makefile("rb") as answer:
        content = answer.read()
    assert content.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"has no attempt 7" in content


def test_a_reader_who_leaves_a_silent_log_leaves_no_process(place: Place) -> None:
    job = place.started("echo one; exec sleep 600")
    log = OutputStream(*place.ask(job, LogRequest(follow=True, in_frames=True)))
    lines = iter(log)
    assert next(lines) == b"one"
    threading.Timer(0.1, log.close).start()
    assert list(lines) == []
    place.streams.close()
    for thread in threading.enumerate():
        if thread.name == "gputui-streams":
            thread.join(PATIENCE)
            assert not thread.is_alive()


OWNER = """
import socket, sys, time
from pathlib import Path
from gputui.bootstrap.hosting import open_streams
from gputui.config import Options
from gputui.domain.access import Caller, Role
from gputui.domain.container import ExecRequest
from gputui.store import TinyJobStore
options = Options(Path(sys.argv[1]), runtime="process")
streams = open_streams(options, TinyJobStore(options.state, options.settings.store))
request = ExecRequest(("cat",), stdin=True)
streams.serve(Caller(0, 0, (), "root", Role.OPERATOR), int(sys.argv[2]), request, socket.socket(fileno=0))
time.sleep(600)
"""


def test_a_stream_outlives_its_owner(place: Place) -> None:
    job = place.started("sleep 600")
    ours, theirs = socket.socketpair()
    with theirs:
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(place.state), str(job.id)], stdin=theirs.fileno())
    got = b""
    while b"\r\n\r\n" not in got:
        more = ours.recv(65536)
        assert more, "it has ended"
        got += more
    channel = entered(ours, got.partition(b"\r\n\r\n")[2])
    owner.send_signal(signal.SIGKILL)
    owner.wait(PATIENCE)
    channel.send(b"still there\n")
    assert output(channel, b"\n")[0] == b"still there\n"
    channel.close()
