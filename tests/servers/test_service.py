"""The server's end, on pipes: hello, snapshots, requests, and requests that are none."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from gputui.api.deltas import json
from gputui.domain.action import Cancel, Edit, EditJobs, Hold
from gputui.domain.cluster import Caps
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import SubmitJobs
from gputui.domain.telemetry_series import Measured
from gputui.engine.actions.actions import Actions
from gputui.ports import Channel, LogStream
from gputui.ports.backend import About, Entry
from gputui.servers.protocol import Answer, ConsoleRequest, Message, encoded
from gputui.servers.service import Service
from tests.factories import ACTOR, NOW, FakeClock, job, spec
from tests.memory_store import MemoryJobStore


class Lines:
    """Stream of lines that never ends by itself, as the log of a running job."""

    is_stamped = True

    def __init__(self, lines: Iterable[bytes], *, ends: bool) -> None:
        self._lines = lines
        self._ends = ends
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        if not self._ends:
            self.closed.wait()

    def close(self) -> None:
        self.closed.set()


class Queue:
    """A queue in memory: as much of a backend as a console asks a server for."""

    def __init__(self) -> None:
        self.store = MemoryJobStore()
        self.actions = Actions(self.store, FakeClock(), ACTOR)
        self.act, self.foresee, self.undo = self.actions.act, self.actions.foresee, self.actions.undo
        self.output = Lines([b"one", b"two"], ends=False)
        self.version = self.store.version
        self.job = self.store.get

    def about(self, server: str = "") -> About:
        return About("gpu1", "alice", "/home/alice", Caps("gputui"))

    def snapshots(self) -> Queue:
        return self

    def read(self) -> Snapshot:
        return Snapshot(jobs=tuple(self.store.jobs().values()), controls=self.store.controls(), taken_at=NOW)

    def log(
        self,
        job_id: JobId,
        attempt: int | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
        stamped: bool = False,
    ) -> LogStream:
        if job_id != 1:
            raise NotFoundError(f"there is no job {job_id}")
        return self.output

    def history(self, since: datetime | None = None) -> Iterable[Job]:
        return (job(number) for number in range(100, 0, -1))

    def measured(self, job_id: JobId) -> Mapping[int, Measured]:
        return {1: Measured()}

    def processes(self, job_id: JobId) -> tuple[ProcessRow, ...]:
        return (ProcessRow(7, "alice", "python"),)

    def why_unread(self, job: Job) -> Mapping[int, str]:
        return {}

    def images(self, server: str = "") -> Iterable[str]:
        return ("busybox",)

    def enter(self, job_id: JobId, request: Entry) -> Channel:
        raise NotImplementedError

    def shell(self, job_id: JobId) -> Shell:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Peer:
    """The console's end."""

    def __init__(self) -> None:
        self.backend = Queue()
        self.backend.store.submit([job(), job()], actor=ACTOR)
        requests_out, requests_in = os.pipe()
        messages_out, messages_in = os.pipe()
        self._requests = os.fdopen(requests_in, "wb", buffering=0)
        self._messages = os.fdopen(messages_out, "rb")
        self._served = os.fdopen(requests_out, "rb"), os.fdopen(messages_in, "wb")
        self.given_up = threading.Event()
        service = Service(self.backend, *self._served, give_up=self.given_up.set)
        self.thread = threading.Thread(target=service.run)
        self.thread.start()
        self._number = 0

    def read(self) -> Message:
        return msgspec.json.decode(self._messages.readline(), type=Message)

    def answer(self) -> Answer:
        while (found := self.read().answer) is None:
            pass
        return found

    def write(self, line: bytes) -> None:
        self._requests.write(line)

    def ask(self, call: str, *arguments: object) -> Answer:
        self._number += 1
        self.write(encoded(ConsoleRequest(self._number, call, Raw(json(arguments)))))
        found = self.answer()
        assert found.id == self._number
        return found

    def result(self, call: str, *arguments: object) -> Any:
        found = self.ask(call, *arguments)
        assert found.error is None, found.error
        return msgspec.json.decode(found.result)

    def stop_reading(self) -> None:
        self._messages.close()

    def close(self) -> None:
        self._requests.close()
        self.thread.join(20)
        assert not self.thread.is_alive()
        for stream in self._served:
            with suppress(BrokenPipeError):  # what nobody has read
                stream.close()
        self._messages.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer()
    yield made
    made.close()


def test_it_begins_with_hello_and_the_queue(peer: Peer) -> None:
    hello, update = peer.read().hello, peer.read().update
    assert hello is not None
    assert update is not None
    assert (hello.user, len(update.jobs)) == ("alice", 2)


def test_a_change_is_told(peer: Peer) -> None:
    peer.read(), peer.read()
    peer.backend.actions.act(Cancel((2,)))
    while not (update := peer.read().update) or not update.jobs:
        pass
    [changed] = update.jobs
    assert msgspec.json.decode(changed, type=Job).id == 2


def test_actions_are_carried_out_and_undone(peer: Peer) -> None:
    held = peer.ask("act", Hold((1, 2)))
    assert msgspec.json.decode(held.result)["ids"] == [1, 2]
    assert [note.subject for note in held.changes] == ["job 1", "job 2"]
    assert peer.backend.store.get(1).held
    assert peer.result("undo", [note.number for note in held.changes]) == ["", ""]
    assert not peer.backend.store.get(1).held


def test_jobs_are_submitted_and_edited(peer: Peer) -> None:
    assert peer.result("act", SubmitJobs((Submission(spec(name="new")),)))["ids"] == [3]
    seen = peer.backend.store.get(3)
    asked = EditJobs((3,), Edit({"name": "newer", "time_limit": timedelta(hours=1)}), seen)
    assert peer.result("foresee", asked)["jobs"][0]["spec"]["name"] == "newer"
    assert peer.result("act", asked)["ids"] == [3]
    assert peer.backend.store.get(3).spec.time_limit == timedelta(hours=1)
    assert peer.backend.store.get(3).name == "newer"


def test_errors_are_told_with_their_class(peer: Peer) -> None:
    fault = peer.ask("act", Hold((99,))).error
    assert fault is not None
    error = fault.error("gpu1")
    assert isinstance(error, NotFoundError)
    assert (str(error), error.exit_code) == ("gpu1: there is no job 99", 3)


@pytest.mark.parametrize(
    "line",
    [b"\n", b"hello\n", b'{"id": "x"}\n', b"[]\n", b'{"id": 1, "call"', b"\xff\xfe\n", b"[" * 5000 + b"\n"],
)
def test_lines_that_are_no_requests_are_answered(peer: Peer, line: bytes) -> None:
    peer.write(line if line.endswith(b"\n") else line + b"\n")
    answer = peer.answer()
    assert answer.id is None
    assert answer.error is not None
    assert peer.result("images") == ["busybox"]


def test_unknown_requests_and_wrong_arguments_are_answered(peer: Peer) -> None:
    unknown = peer.ask("launch", 1).error
    wrong = peer.ask("act", {"action": "hold", "ids": "all"}).error
    private = peer.ask("close").error
    assert unknown
    assert "knows no request 'launch'" in unknown.what
    assert wrong
    assert wrong.where == "act"
    assert private
    assert "knows no request" in private.what


def test_a_log_is_read_in_parts_and_closed(peer: Peer) -> None:
    opened = peer.result("log_open", 1, None, 10, True, True)
    assert opened["is_stamped"]
    lines: list[str] = []
    while len(lines) < 2:
        lines += peer.result("log_read", opened["number"])["lines"]
    assert lines == ["b25l", "dHdv"]
    peer.result("log_close", opened["number"])
    assert peer.backend.output.closed.is_set()
    assert peer.ask("log_read", opened["number"]).error


def test_a_line_that_has_not_ended_is_sent_along(peer: Peer) -> None:
    class Bar(Lines):
        def watch(self, tell: Callable[[bytes], None]) -> None:
            tell(b"1%\r2%")

    peer.backend.output = Bar([], ends=False)
    number = peer.result("log_open", 1, None, None, True, False)["number"]
    assert peer.result("log_read", number) == {"rest": "MSUNMiU="}


def test_a_log_that_ends_says_so(peer: Peer) -> None:
    peer.backend.output = Lines([b"x"] * 3000, ends=True)
    number = peer.result("log_open", 1, None, None, False, False)["number"]
    parts: list[Any] = []
    while not (parts and parts[-1].get("is_over")):
        parts.append(peer.result("log_read", number))
    assert sum(len(part.get("lines", ())) for part in parts) == 3000


def test_history_is_limited(peer: Peer) -> None:
    assert len(peer.result("history", None, 7)) == 7


def test_job_data_is_sent(peer: Peer) -> None:
    assert peer.result("measured", 1).keys() == {"1"}
    assert peer.result("processes", 1)[0]["command"] == "python"


def test_it_gives_up_when_nobody_reads(peer: Peer) -> None:
    peer.stop_reading()
    assert peer.given_up.wait(20)
