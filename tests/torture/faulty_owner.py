"""Owner of a queue that dies or hangs at a stage: `python -m tests.torture.faulty_owner STAGE COUNT OPTIONS serve`.

At the COUNT-th time that it comes to the stage it dies, as by SIGKILL. STAGE may also be `sync` or `gil`: the COUNT is
then the seconds for which each sync of the journal takes, as on a disk that hangs, or for which the first change
keeps the interpreter, as a faulty C library does.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from asyncio import selector_events
from pathlib import Path

from gputui.__main__ import main
from gputui.api.handlers import Router
from gputui.api.http import Answer, Request

STAGES = ("before the line", "half the line", "not synced", "durable", "not answered", "half", "answered")


class Stage:
    """The stage at which the process dies."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._left = count

    def comes(self, name: str) -> bool:
        """Return whether it is time to die there."""
        self._left -= name == self._name
        return name == self._name and not self._left

    def reach(self, name: str) -> None:
        if self.comes(name):
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def is_journal(descriptor: int) -> bool:
    return ".wal." in Path(f"/proc/self/fd/{descriptor}").readlink().name


def arm_journal(stage: Stage) -> None:
    write, sync = os.write, os.fdatasync

    def written(descriptor: int, data: bytes | memoryview) -> int:
        if is_journal(descriptor):
            stage.reach("before the line")
            if stage.comes("half the line"):
                write(descriptor, memoryview(data)[: len(memoryview(data)) // 2])
                die()
        return write(descriptor, data)

    def synced(descriptor: int) -> None:
        if is_journal(descriptor):
            stage.reach("not synced")
        sync(descriptor)
        if is_journal(descriptor):
            stage.reach("durable")

    os.write, os.fdatasync = written, synced  # type: ignore[assignment]


def arm_answers(stage: Stage) -> None:
    loop = selector_events.BaseSelectorEventLoop
    send = loop.sock_sendall

    async def sent(self: asyncio.BaseEventLoop, link: socket.socket, data: bytes | memoryview) -> None:
        stage.reach("not answered")
        if stage.comes("half"):
            await send(self, link, memoryview(data)[: len(memoryview(data)) // 2])
            die()
        await send(self, link, data)
        stage.reach("answered")

    loop.sock_sendall = sent  # type: ignore[method-assign, assignment]


def hang_disk(seconds: float) -> None:
    sync = os.fdatasync

    def synced(descriptor: int) -> None:
        if is_journal(descriptor):
            time.sleep(seconds)
        sync(descriptor)

    os.fdatasync = synced  # type: ignore[assignment]


def hang_interpreter(seconds: float) -> None:
    """Sleep within the first change without letting another thread run, the one that serves included."""
    answer = Router.__call__
    keeping = ctypes.PyDLL(None).usleep

    def answered(self: Router, request: Request) -> Answer:
        if request.method == "POST":
            Router.__call__ = answer  # type: ignore[method-assign]
            keeping(int(seconds * 1e6))
        return answer(self, request)

    Router.__call__ = answered  # type: ignore[method-assign]


def start(name: str, count: str) -> None:
    if name == "sync":
        hang_disk(float(count))
    elif name == "gil":
        hang_interpreter(float(count))
    else:
        stage = Stage(name, int(count))
        arm_journal(stage)
        arm_answers(stage)


if __name__ == "__main__":
    _, wanted, number, *words = sys.argv
    sys.argv = ["gputui", *words]
    start(wanted, number)
    main()
