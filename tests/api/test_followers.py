"""A console beside a process that schedules shows its events, says when it hangs, and takes over when it has ended."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.api.backend import ApiBackend, NumberedChange
from gputui.api.client import ApiClient, Reply
from gputui.api.wire import to_command, to_sockets
from gputui.bootstrap import backend as backend_module
from gputui.bootstrap.backend import LocalBackend, open_console_backend
from gputui.bootstrap.hosting import make_behind, make_host
from gputui.bootstrap.owner import api_backend, open_api
from gputui.cli import wait
from gputui.config import Options, parse_probe
from gputui.domain.access import stored_key
from gputui.domain.action import Action, Hold, SetPriority
from gputui.domain.decoding import decode_json
from gputui.domain.errors import NoOwnerError, StoreBusyError
from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings, StoreSettings
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.feed import Feed
from tests.api.test_events import ABOUT
from tests.factories import spec
from tests.process_list import command_lines
from tests.waiting import until

PATIENCE = 60.0


class Server:
    """`gputui serve` in a process of its own."""

    def __init__(self, options: Options) -> None:
        words = [sys.executable, "-P", "-m", "gputui", *options.arguments(), "serve"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(how)
            self.process.send_signal(signal.SIGCONT)
        self.process.wait(PATIENCE)


class Shown:
    """A feed, and what it shows."""

    def __init__(self) -> None:
        self.feed = Feed()
        self._news = threading.Condition()
        self.feed.subscribe(self._hear)

    def _hear(self, snapshot: Snapshot) -> None:
        with self._news:
            self._news.notify_all()

    def until(self, holds: Callable[[Snapshot], object]) -> Snapshot:
        with self._news:
            assert self._news.wait_for(lambda: holds(self.feed.latest), PATIENCE), self.feed.latest
        return self.feed.latest


class Follower(Shown):
    """The host of a console in this process."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.store = bootstrap.open_store(options)
        self.host = make_host(options, self.store, self.feed, "console")
        self._thread = threading.Thread(target=lambda: asyncio.run(self.host.run()), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.host.stop()
        self._thread.join(PATIENCE)
        self.store.close()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(tmp_path / "state", probe=parse_probe("sim:2"), runtime="process")


@pytest.fixture
def served(options: Options) -> Iterator[Server]:
    server = Server(options)
    backend = until(lambda: open_api(options))
    backend.close()
    yield server
    server.end(signal.SIGKILL)


@pytest.fixture
def console(served: Server, options: Options) -> Iterator[Follower]:
    made = Follower(options)
    yield made
    made.close()


@pytest.mark.long
def test_a_console_follows_says_when_the_scheduler_hangs_and_takes_over(
    console: Follower, served: Server, options: Options
) -> None:
    pid = served.process.pid
    console.until(lambda seen: seen.leader and seen.leader.pid == pid and len(seen.gpus) == 2)
    with closing(open_api(options) or LocalBackend(options)) as backend:
        [job_id] = backend.act(SubmitJobs((Submission(spec(image=None), held=True),))).ids
    shown = console.until(lambda seen: seen.job(job_id))
    assert not shown.leads_here
    served.stop()
    silent = console.until(lambda seen: seen.leader and seen.leader.silent_for)
    assert any("has not responded" in notice.text for notice in silent.notices)
    served.go_on()
    console.until(lambda seen: seen.leader and not seen.leader.silent_for)
    served.end(signal.SIGKILL)
    taken = console.until(lambda seen: seen.leads_here and len(seen.gpus) == 2)
    assert taken.job(job_id)


def test_a_follower_knows_the_owner_that_came_next(served: Server, options: Options) -> None:
    backend = open_api(options)
    assert backend is not None
    with closing(backend), closing(backend.watch()) as watch:
        assert backend.view().owner.pid == served.process.pid
        served.end(signal.SIGKILL)
        following, deadline = Server(options), time.monotonic() + PATIENCE
        try:
            while backend.view().owner.pid != following.process.pid:
                assert select.select([watch], [], [], deadline - time.monotonic())[0]
                watch.clear()
        finally:
            following.end(signal.SIGKILL)


def test_beside_a_hung_scheduler_operators_read_the_files_and_changes_are_refused_in_time(
    served: Server, options: Options
) -> None:
    hasty = Options(
        options.state, probe=options.probe, settings=Settings(store=StoreSettings(lock_timeout=timedelta(seconds=3)))
    )
    told: list[str] = []
    with closing(open_api(options) or LocalBackend(options)) as backend:
        [job_id] = backend.act(SubmitJobs((Submission(spec(image=None), held=True),))).ids
    served.stop()
    with closing(open_api(hasty, told.append) or LocalBackend(options)) as backend:
        with pytest.raises(
            StoreBusyError, match=rf"serve of root \(pid {served.process.pid}\) has not answered for 3 s"
        ):
            backend.act(Hold((job_id,)))
        assert backend.job(job_id).id == job_id
        assert backend.queue.jobs()[job_id].held
    assert "has not answered for 2 s" in told[0]


def test_a_console_that_may_only_ask_shows_what_the_owner_tells(served: Server, options: Options) -> None:
    only_asked = replace(options, asked=replace(options.sockets, in_process=False))
    shown = Shown()
    until = shown.until
    with closing(bootstrap.ask_backend(only_asked)) as backend:
        behind = make_behind(only_asked, backend, shown.feed, may_lead=True)
        thread = threading.Thread(target=lambda: asyncio.run(behind.run()), daemon=True)
        thread.start()
        until(lambda seen: seen.leader and len(seen.gpus) == 2)
        [job_id] = backend.act(SubmitJobs((Submission(spec(image=None), held=True),))).ids
        until(lambda seen: seen.job(job_id))
        served.end()
        until(lambda seen: any("no scheduler answers" in each.text for each in seen.notices))
        assert shown.feed.latest.job(job_id)
        assert len(shown.feed.latest.gpus) == 2
        assert not behind.leads
        following = Server(options)
        until(lambda seen: seen.leader and seen.leader.pid == following.process.pid)
        assert isinstance(backend, ApiBackend)
        assert backend.view().owner.pid == following.process.pid
        following.end()
        behind.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    with pytest.raises(NoOwnerError, match="does not run"):
        bootstrap.ask_backend(only_asked)


def test_a_console_acts_through_the_owner_until_it_schedules_itself(served: Server, options: Options) -> None:
    with closing(open_console_backend(options)) as backend:
        [job_id] = backend.act(SubmitJobs((Submission(spec(image=None), held=True),))).ids
        lower = SetPriority((job_id,), 40)
        lowered = backend.act(lower)
        assert [type(change) for change in lowered.changes] == [NumberedChange]
        assert backend.undo(lowered.changes) == [(lowered.changes[0], "")]
        assert backend.job(job_id).priority == 50
        lowered = backend.act(lower)
        served.end(signal.SIGKILL)
        assert backend.job(job_id).priority == 40
        [(_, why)] = backend.undo(lowered.changes)
        assert "no longer schedules" in why
        lowered = backend.act(SetPriority((job_id,), 30))
        assert backend.undo(lowered.changes)[0][1] == ""
        assert backend.job(job_id).priority == 40


class Ending(ApiClient, kw_only=True):
    """Client of an owner who ends when he has carried out the first request, before he has answered."""

    options: Options

    def request(self, method: str, path: str, body: Any = None, *, key: str = "", **_: Any) -> Reply:
        caller = replace(bootstrap.caller(), key=stored_key(key, method, path, {}, body))
        with closing(LocalBackend(self.options, caller=caller)) as owner:
            owner.act(decode_json(body, Action))
        raise NoOwnerError("he has ended")


def test_what_an_owner_did_before_he_ended_is_not_done_again_and_the_next_thing_is(options: Options) -> None:
    opened = partial(bootstrap.open_backend, options, None)
    with closing(
        ApiBackend(Ending(to_sockets([options.state / "api.sock"]), options=options), instead=opened)
    ) as backend:
        backend.described = ABOUT
        submit = SubmitJobs((Submission(spec(image=None), held=True),))
        [first] = backend.act(submit).ids
        assert [*backend.queue.jobs()] == [first]
        [second] = backend.act(submit).ids
        assert [*backend.queue.jobs()] == [first, second]


def test_an_owner_is_asked_and_followed_through_a_command_as_over_ssh(served: Server, options: Options) -> None:
    words = [sys.executable, "-P", "-m", "gputui", *options.arguments(), "api-stdio"]
    dial = to_command(words, lambda code, lines: "")
    with closing(api_backend(options, dial)) as backend:
        assert backend.view().owner.pid == served.process.pid
        follower = backend.follow()
        assert follower.wait(0, PATIENCE)
        [job_id] = backend.act(SubmitJobs((Submission(spec(image=None), held=True),))).ids
        while follower.snapshot.job(job_id) is None:
            assert follower.wait(follower.number, PATIENCE)
    until(lambda: [word.encode() for word in (*words, "")] not in command_lines().values())


def test_a_command_moves_to_an_owner_that_appears_and_goes_on_when_he_ends(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "ASK_AGAIN", 0.0)
    with closing(bootstrap.ask_backend(options)) as backend:
        [job_id] = backend.act(SubmitJobs((Submission(spec(image=None), held=True),))).ids
        assert not backend.is_scheduled()
        with closing(wait.Changes(backend)) as changes:
            server = Server(options)
            assert changes.wait(time.monotonic() + PATIENCE)
        [change] = backend.act(SetPriority((job_id,), 40)).changes
        assert isinstance(change, NumberedChange)
        server.end(signal.SIGKILL)
        assert backend.job(job_id).priority == 40
        assert not isinstance(backend.act(SetPriority((job_id,), 30)).changes[0], NumberedChange)
