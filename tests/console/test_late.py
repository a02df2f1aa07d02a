"""Parts that are made when they are first used; a console whose store cannot be opened ends."""

from __future__ import annotations

import os
import pty
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gputui import bootstrap
from gputui.config import Options
from gputui.console.console import BackgroundScheduler
from gputui.console.late import Late
from gputui.domain.errors import GputuiError
from gputui.engine.feed import Feed
from gputui.ports import JobStore


def opener(directory: Path, opened: list[JobStore]) -> Callable[[], JobStore]:
    def open_store() -> JobStore:
        opened.append(bootstrap.open_store(Options(state=directory / "state")))
        return opened[-1]

    return open_store


def test_it_is_opened_once_by_its_first_use(tmp_path: Path) -> None:
    opened: list[JobStore] = []
    late = Late(opener(tmp_path, opened))
    late.close()
    assert not opened
    used = [threading.Thread(target=lambda: late.as_made.jobs()) for _ in range(4)]
    for thread in used:
        thread.start()
    for thread in used:
        thread.join()
    assert late.as_made.store_id == opened[0].store_id
    assert opened == [late.open()]
    late.close()


def test_the_part_may_have_a_method_that_opens() -> None:
    class Part:
        closed = 0

        def open(self, name: str) -> str:
            return f"opened {name}"

        def close(self) -> None:
            Part.closed += 1

    late = Late(Part)
    late.as_made.close()
    assert Part.closed == 0
    assert late.as_made.open("it") == "opened it"
    late.as_made.close()
    assert Part.closed == 1


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
