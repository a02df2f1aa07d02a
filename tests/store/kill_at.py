"""Program that is killed at its n-th step on disk: `python -m tests.store.kill_at DIRECTORY COUNT`.

It forks a child for n = 1, 2, ... on a fresh copy of the directory. The child goes through a life of a store and dies,
as by SIGKILL, just before the n-th call that changes a file; what it had acknowledged it wrote to `acks` right away.
One JSON line a child: the copy, what it was about to do, and the acks. The last one came to the end.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gputui.domain.state import JobState
from gputui.store import TinyJobStore
from tests.factories import ACTOR, NOW, job, recurring
from tests.store.conftest import SETTINGS

STEPS = ("write", "pwrite", "fsync", "fdatasync", "ftruncate", "replace", "unlink", "mkdir", "open", "fchmod")
EXIT = 77


class Bomb:
    """Kills the process before its n-th step; a write is half done first."""

    def __init__(self, countdown: int, log: int) -> None:
        self._countdown = countdown
        self._log = log
        self._write = os.write

    def arm(self) -> None:
        for name in STEPS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self._countdown -= 1
            if self._countdown == 0:
                if name == "write":
                    self._write(arguments[0], bytes(arguments[1][: len(arguments[1]) // 2]))
                self._write(self._log, json.dumps({"step": name}).encode() + b"\n")
                os._exit(EXIT)
            return call(*arguments, **named)

        return step


def life(directory: Path, ack: Callable[[str, int], None]) -> None:
    """Use every operation of a store; the first job is already in the directory."""
    store = TinyJobStore(directory, SETTINGS)
    for job_id in store.submit([job()] * 3, actor=ACTOR):
        ack("added", job_id)
    with store.transaction() as transaction:
        transaction.put(transaction.get(1).evolve(priority=70))
        transaction.put(transaction.get(2).evolve(priority=70))
    ack("both", 70)
    store.storage.checkpoint()
    with store.transaction() as transaction:
        transaction.put(transaction.get(3).evolve(state=JobState.FAILED, ended_at=NOW.replace(year=2025)))
        added = transaction.add(job())
    ack("added", added.id)
    ack("finished", 3)
    store.maintain(NOW)
    ack("added", store.submit([job()], actor=ACTOR)[0])
    with store.transaction() as transaction:
        entry = transaction.add_recurring(recurring())
    ack("recurring", entry.id)
    with store.transaction() as transaction:
        [run] = store.submit([job(recurring=entry.id)], actor=ACTOR)
        transaction.put_recurring(replace(entry, last_job_id=run))
    ack("added", run)


def child(directory: Path, countdown: int) -> None:
    log = os.open(directory.with_suffix(".acks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    write = os.write
    Bomb(countdown, log).arm()
    life(directory, lambda word, value: void(write(log, json.dumps({word: value}).encode() + b"\n")))
    os._exit(0)


def void(_: object) -> None:
    """Do nothing."""


def main() -> None:
    origin, countdown, status = Path(sys.argv[1]), 0, EXIT
    while status == EXIT:
        countdown += 1
        copy = origin.with_name(f"killed-{countdown}")
        shutil.copytree(origin, copy)
        pid = os.fork()
        if pid == 0:
            child(copy, countdown)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps({"children": countdown, "status": status}))


if __name__ == "__main__":
    main()
