"""The thread behind the console's screen."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.bootstrap import hosting
from gputui.config import Options
from gputui.console import console
from gputui.console.console import BackgroundScheduler
from gputui.domain.conditions import pressing
from gputui.domain.errors import GputuiError
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, ServerView, Snapshot
from gputui.engine.feed import Feed
from gputui.engine.host import Host
from gputui.servers import merged
from tests.cases import cases
from tests.factories import NOW

PATIENCE = 60.0


class FailsOnce(Host):
    """A host that fails at its first run."""

    runs = 0

    async def run(self) -> None:
        FailsOnce.runs += 1
        if FailsOnce.runs == 1:
            raise RuntimeError("it broke")
        await super().run()


@cases("fails_when", ["made", "run"])
def test_a_failure_behind_the_screen_is_reported_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_when: str
) -> None:
    monkeypatch.setattr(console, "AGAIN_AFTER", 0.0)
    monkeypatch.setattr("gputui.engine.host.Host", FailsOnce)
    FailsOnce.runs = 0 if fails_when == "run" else 1
    options, feed, seen = Options(state=tmp_path / "state"), Feed(), list[Snapshot]()
    store, shown = bootstrap.open_store(options), threading.Event()
    errors = iter([] if fails_when == "run" else [RuntimeError("it broke")])

    def hear(snapshot: Snapshot) -> None:
        seen.append(snapshot)
        if snapshot.taken_at.year > 2000:
            shown.set()

    def make() -> Host:
        if error := next(errors, None):
            raise error
        return hosting.make_host(options, store, feed, "console", may_lead=False)

    feed.subscribe(hear)
    there = BackgroundScheduler(make, feed)
    there.begin()
    assert shown.wait(PATIENCE)
    there.stop()
    assert there.end(PATIENCE)
    store.close()
    assert [notice.text for notice in seen[0].notices] == [
        "scheduling failed here and will be tried again: RuntimeError: it broke"
    ]
    assert seen[0].leader is None


def test_a_view_of_servers_that_is_not_kept_up_to_date_says_so() -> None:
    old = merged([ServerView("a", Snapshot(), Settings(), NOW)], NOW)
    told = [notice.text for notice in pressing(console.picture_of(OSError(28, "No space left"), old), NOW)]
    assert "this view is not kept up to date and will be tried again: No space left" in told
    cluster = Snapshot(taken_at=NOW, leader=Leader(0, "head", "slurm", "slurm", NOW))
    [notice] = pressing(console.picture_of(KeyError("x"), cluster), NOW)
    assert notice.text == "this view is not kept up to date and will be tried again: KeyError: 'x'"


def test_a_background_scheduler_stops_before_and_after_its_begin(tmp_path: Path) -> None:
    options = Options(state=tmp_path / "state")
    store = bootstrap.open_store(options)
    for begins in (True, False):
        there = BackgroundScheduler(
            lambda: hosting.make_host(options, store, Feed(), "console", may_lead=False), Feed()
        )
        if begins:
            there.begin()
        there.stop()
        assert there.end(PATIENCE)
        assert not there.leads
    store.close()


async def test_the_loop_of_the_screen_does_not_run_the_scheduler(tmp_path: Path) -> None:
    options, feed, loops = Options(state=tmp_path / "state"), Feed(), list[object]()
    store, shown = bootstrap.open_store(options), threading.Event()

    class Seen(Host):
        async def run(self) -> None:
            loops.append(asyncio.get_running_loop())
            shown.set()
            await super().run()

    def make() -> Host:
        made = hosting.make_host(options, store, feed, "console", may_lead=False)
        made.__class__ = Seen
        return made

    there = BackgroundScheduler(make, feed)
    there.begin()
    assert shown.wait(PATIENCE)  # blocks this loop
    there.stop()
    assert there.end(PATIENCE)
    store.close()
    assert loops != [asyncio.get_running_loop()]


def test_nothing_is_scheduled_when_the_store_cannot_be_opened() -> None:
    refused: list[Exception] = []
    error = GputuiError("the queue is damaged")

    def prepare() -> None:
        raise error

    there = BackgroundScheduler(lambda: pytest.fail("a host was made"), Feed(), prepare=prepare, refuse=refused.append)
    there.begin()
    assert there.end(60)
    assert refused == [error]


def test_a_console_whose_queue_cannot_be_opened_ends_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "queue.json").write_text("{}")
    pid, fd = pty.fork()  # a terminal that reports no size: it must not be drawn for ever
    if pid == 0:
        arguments = ["-m", "gputui", "--state", str(tmp_path), "--probe", "sim:2", "--runtime", "process"]
        environ = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(tmp_path / "home")}
        os.execve(sys.executable, [sys.executable, *arguments], environ)
    drawn = b""
    with suppress(OSError):  # its end
        while data := os.read(fd, 4096):
            drawn += data
    os.close(fd)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    screen, _, after = drawn.decode().rpartition("\x1b[?1049l")
    assert "Reading the GPUs" in screen
    assert "queue.json: " in after
    assert after.lstrip("\x1b[?<>0123456789;hlu\r\n").startswith("gputui: error: ")


def test_threads_that_use_a_queue_at_once_open_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = list[object](), bootstrap.open_store

    def open_store(*given: object) -> object:
        opened.append(real(*given))  # type: ignore[arg-type]
        return opened[-1]

    monkeypatch.setattr(bootstrap, "open_store", open_store)
    with closing(bootstrap.open_backend(Options(state=tmp_path / "state"))) as backend:
        backend.about()
        assert not opened
        used = [threading.Thread(target=lambda: backend.queue.jobs()) for _ in range(4)]
        for thread in used:
            thread.start()
        for thread in used:
            thread.join()
        assert opened == [backend.queue]
