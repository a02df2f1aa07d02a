"""Events: what subscribers are sent, to whom, and what those get who come back or are slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.api.deltas import SnapshotDecoder, SnapshotUpdate
from gputui.api.events import EventHub
from gputui.api.http import AboutView, CallerView, Focus, OwnerView
from gputui.api.rights import Visibility
from gputui.domain.access import Caller, Role
from gputui.domain.decoding import decode_json
from gputui.domain.errors import InputError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.settings import AccessSettings
from gputui.domain.snapshot import Leader, Notice, Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.engine.feed import Feed
from tests.cases import cases
from tests.factories import NOW, job, snapshot, spec, view

ROOT = Caller(0, 0, (), "root", Role.OPERATOR)
ALICE = Caller(1001, 1001, (), "alice", Role.USER)
BOB = Caller(1002, 1002, (), "bob", Role.USER)
ABOUT = AboutView("1", "1.0", "1.0", "here", "s", OwnerView(1, "serve", "root"), CallerView(0, "root", "operator"))


class Client:
    """Outlet that puts a snapshot together again."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.decoder = SnapshotDecoder()
        self.snapshot = Snapshot()
        self.events: list[tuple[str, Any]] = []
        self.last_id = ""
        self.ids: list[str] = []
        self.size = 0
        self.is_closed = False
        self.is_slow = is_slow
        self.waiting = 0
        self.leave: Callable[[], object] = lambda: None
        self._heard = threading.Condition()

    def send(self, data: bytes) -> bool:
        with self._heard:
            self.size += len(data)
            self.waiting += len(data) if self.is_slow else 0
            if data.startswith(b"event: "):
                lines = dict(line.split(b": ", 1) for line in data.rstrip(b"\n").split(b"\n"))
                self._take(lines[b"event"].decode(), lines[b"data"])
                if b"id" in lines:
                    self.last_id = lines[b"id"].decode()
                    self.ids.append(self.last_id)
            self._heard.notify_all()
        return not self.is_closed

    def _take(self, event: str, data: bytes) -> None:
        if event == "snapshot":
            update = decode_json(data, SnapshotUpdate)
            self.snapshot = self.decoder.take(update, NOW)
            self.events.append((event, update))
        else:
            self.events.append((event, decode_json(data)))
        if event == "reset":
            self.decoder = SnapshotDecoder()

    def close(self) -> None:
        with self._heard:
            self.is_closed = True
            self._heard.notify_all()

    def cut_off(self) -> None:
        self.close()

    def until(self, holds: Callable[[], object]) -> None:
        with self._heard:
            assert self._heard.wait_for(holds, 10), self.events[-3:]

    def take_all(self) -> None:
        self.waiting = 0

    def states(self) -> dict[int, JobState]:
        return {each.id: each.state for each in self.snapshot.jobs}


class Owner:
    """A feed with its events."""

    def __init__(self, first: Snapshot, patience: float = 10.0) -> None:
        self.feed = Feed()
        self.feed.publish(first)
        self.focus: list[str | None] = []
        self.sight = Visibility(AccessSettings(show_commands=False))
        self.hub = EventHub(
            lambda: self.feed.latest, self.feed.subscribe, self.sight, self.focus.append, term="t", patience=patience
        )

    def connect(self, caller: Caller = ROOT, kinds: str = "", last_id: str = "", *, is_slow: bool = False) -> Client:
        client = Client(is_slow=is_slow)
        client.leave = self.hub.stream(caller, ABOUT, kinds, last_id).open(client)
        return client


@pytest.fixture
def owner() -> Iterator[Owner]:
    made = Owner(snapshot([mine(1), mine(2, uid=1002)]))
    yield made
    made.hub.close()


def _has_jobs(client: Client, count: int) -> bool:
    return len(client.snapshot.jobs) == count


def _is_in(client: Client, number: int, state: JobState) -> bool:
    return client.states().get(number) is state


def _knows(client: Client, number: int) -> bool:
    return number in client.states()


def mine(number: int, uid: int = 1001, **changes: Any) -> Job:
    return job(number, spec=spec(command=("secret",)), submitted_uid=uid, **changes)


def test_a_subscriber_is_greeted_and_gets_the_whole_and_then_changes(owner: Owner) -> None:
    client = owner.connect()
    client.until(lambda: client.states().keys() == {1, 2})
    assert client.events[0] == ("hello", client.events[0][1])
    assert client.events[0][1]["about"]["host"] == "here"
    one, two = owner.feed.latest.jobs
    changed = replace(one, state=JobState.RUNNING)
    owner.feed.publish(replace(owner.feed.latest, jobs=(changed, two), order=(2,)))
    client.until(lambda: client.states()[1] is JobState.RUNNING)
    assert len(client.events[-1][1].jobs) == 1
    assert client.snapshot.order == (2,)
    owner.feed.publish(replace(owner.feed.latest, jobs=(changed,), order=()))
    client.until(lambda: client.states().keys() == {1})
    assert client.snapshot.jobs == owner.feed.latest.jobs


def test_reasons_and_notices_are_told_as_each_caller_may_know_them(owner: Owner) -> None:
    clients = {each.user: (owner.connect(each), owner.connect(each, "job,notice")) for each in (ROOT, ALICE, BOB)}
    for console, script in clients.values():
        console.until(partial(_has_jobs, console, 2))
        script.until(lambda of=script: of.events)  # type: ignore[misc]
    reason = Reason(PendingReason.BACK_OFF, "attempt 2 soon; hunter2")
    notices = (Notice("warning", "hooks.chat: hunter2"), Notice("error", "disk low"))
    latest = owner.feed.latest
    jobs = (*latest.jobs, replace(mine(3), hold_reason="soon; hunter2"))
    owner.feed.publish(replace(latest, jobs=jobs, reasons={3: reason}, notices=notices))
    for user, (console, script) in clients.items():
        console.until(lambda of=console: 3 in of.snapshot.reasons)  # type: ignore[misc]
        script.until(lambda of=script: any(kind == "notice" for kind, _ in of.events))  # type: ignore[misc]
        assert console.snapshot.reasons[3].text == "attempt 2 soon" + ("" if user == "bob" else "; hunter2")
        [told] = [data["job"]["reason"]["text"] for kind, data in script.events if kind == "job"]
        assert ("hunter2" in told) == (user != "bob")
        heard = [data["text"] for kind, data in script.events if kind == "notice"]
        assert heard == [each.text for each in notices if user == "root" or "hooks" not in each.text]


def test_reasons_and_expected_starts_come_and_go(owner: Owner) -> None:
    client = owner.connect()
    reason = Reason(PendingReason.RESOURCES, "needs a GPU")
    owner.feed.publish(
        replace(owner.feed.latest, reasons={1: reason, 2: reason}, expected_starts={1: NOW + timedelta(hours=1)})
    )
    client.until(lambda: client.snapshot.reasons.keys() == {1, 2})
    assert client.snapshot.expected_starts == {1: NOW + timedelta(hours=1)}
    owner.feed.publish(replace(owner.feed.latest, reasons={2: reason}, expected_starts={}))
    client.until(lambda: client.snapshot.reasons.keys() == {2})
    assert client.snapshot.expected_starts == {}


def test_each_sees_what_he_may_see(owner: Owner) -> None:
    clients = {caller.user: owner.connect(caller) for caller in (ROOT, ALICE, BOB)}
    for client in clients.values():
        client.until(partial(_has_jobs, client, 2))
    shown = {user: [each.spec.command for each in client.snapshot.jobs] for user, client in clients.items()}
    assert shown == {"root": [("secret",), ("secret",)], "alice": [("secret",), ()], "bob": [(), ("secret",)]}


def test_who_comes_back_gets_what_he_missed(owner: Owner) -> None:
    client = owner.connect()
    client.until(lambda: client.last_id)
    other = owner.connect()
    client.leave()
    one, two = owner.feed.latest.jobs
    owner.feed.publish(replace(owner.feed.latest, jobs=(replace(one, state=JobState.RUNNING), two)))
    other.until(lambda: other.states().get(1) is JobState.RUNNING)
    owner.feed.publish(replace(owner.feed.latest, jobs=(mine(3), owner.feed.latest.jobs[0])))
    other.until(lambda: 3 in other.states())
    again = owner.connect(last_id=client.last_id)
    again.decoder = client.decoder
    again.until(lambda: again.states().keys() == {1, 3})
    assert [name for name, _ in again.events] == ["hello", "snapshot"]
    assert len(again.events[1][1].jobs) == 2
    assert again.snapshot.order == other.snapshot.order


@cases("last_id", ["other-3", "t-999999", "nonsense", "t--1", "t-\u0663", "t-\xb2", "t-" + "9" * 5000])
def test_who_comes_back_with_an_unknown_number_begins_anew(owner: Owner, last_id: str) -> None:
    client = owner.connect(last_id=last_id)
    client.until(lambda: len(client.snapshot.jobs) == 2)
    assert [name for name, _ in client.events] == ["hello", "reset", "snapshot"]


def test_a_slow_client_is_not_flooded_and_gets_the_sum_later(owner: Owner) -> None:
    big = [mine(n, comment="x" * 3000) for n in range(1, 2001)]
    owner.feed.publish(snapshot(big))
    slow, quick = owner.connect(is_slow=True), owner.connect()
    quick.until(lambda: len(quick.snapshot.jobs) == 2000)
    assert slow.size < 4 * 1024**2
    for state in (JobState.CONFIGURING, JobState.RUNNING):
        owner.feed.publish(snapshot([replace(big[0], state=state), *big[1:]]))
        quick.until(partial(_is_in, quick, 1, state))
    assert slow.snapshot.jobs == ()
    while len(slow.snapshot.jobs) < 2000 or slow.states()[1] is not JobState.RUNNING:
        slow.take_all()
        time.sleep(0.01)
    assert slow.snapshot.jobs == quick.snapshot.jobs


def test_scripts_get_events_of_the_kinds_that_they_want(owner: Owner) -> None:
    jobs, everything = owner.connect(ALICE, "job"), owner.connect(ROOT, "job,gpu,notice")
    watcher = owner.connect()
    watcher.until(lambda: watcher.last_id)
    one, two = owner.feed.latest.jobs
    owner.feed.publish(
        replace(
            snapshot([replace(one, state=JobState.RUNNING), replace(two, state=JobState.RUNNING)], [view(0)]),
            notices=(Notice("error", "the disk is full"),),
        )
    )
    everything.until(lambda: len(everything.events) == 5)
    assert [name for name, _ in everything.events] == ["hello", "job", "job", "gpu", "notice"]
    jobs.until(lambda: len(jobs.events) == 3)
    told = [data for name, data in jobs.events if name == "job"]
    assert [(each["id"], each["before"], each["after"]) for each in told] == [
        (1, "PENDING", "RUNNING"),
        (2, "PENDING", "RUNNING"),
    ]
    assert [each["job"]["command"] for each in told] == [["secret"], []]
    again = owner.connect(ALICE, "job", last_id=jobs.ids[-2])
    again.until(lambda: len(again.events) == 2)
    assert again.events[1][1]["id"] == 2
    before = owner.connect(ALICE, "job", last_id=jobs.ids[0])  # that of the greeting: from where it began
    before.until(lambda: len(before.events) == 3)
    assert [data["id"] for _, data in before.events[1:]] == [1, 2]


def test_an_unknown_kind_is_refused(owner: Owner) -> None:
    with pytest.raises(InputError, match="weather"):
        owner.hub.stream(ROOT, ABOUT, "job,weather")


def test_the_scheduler_that_does_not_respond_is_told() -> None:
    leader = Leader(1, "here", "root", "serve", NOW)
    owner = Owner(replace(snapshot([]), leader=leader), patience=0.3)
    client = owner.connect()
    client.until(lambda: client.snapshot.leader and client.snapshot.leader.silent_for >= timedelta(seconds=1))
    owner.feed.publish(replace(snapshot([]), leader=leader))
    client.until(lambda: client.snapshot.leader and not client.snapshot.leader.silent_for)
    owner.hub.close()
    assert client.is_closed


def test_what_a_stream_looks_at_is_forgotten_with_it(owner: Owner) -> None:
    one, two = owner.connect(ALICE), owner.connect(BOB)
    names = [client.events[0][1]["stream"] for client in (one, two)]
    owner.hub.focus(ALICE, Focus(names[0], "GPU-1"))
    owner.hub.focus(BOB, Focus(names[1], "GPU-2"))
    with pytest.raises(NotFoundError):
        owner.hub.focus(ALICE, Focus(names[1], "GPU-3"))
    two.leave()
    one.leave()
    assert owner.focus == ["GPU-1", "GPU-2", "GPU-1", None]


def test_a_client_that_is_gone_is_forgotten(owner: Owner) -> None:
    gone, watcher = owner.connect(), owner.connect()
    watcher.until(lambda: watcher.last_id)
    gone.is_closed = True
    for number in (5, 6, 7):
        owner.feed.publish(snapshot([mine(number)]))
        watcher.until(partial(_knows, watcher, number))
    assert 7 not in gone.states()
