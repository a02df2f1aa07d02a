"""Duties for a cluster that one process of a machine has for all: metrics, hooks, telemetry of jobs.

Each console and each `gputui serve` offers to do them. The one that holds the lock of a duty does it; when it ends,
however it ends, the kernel releases the lock, and the next poll of another process takes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gputui.domain.snapshot import Notice, Snapshot

log = logging.getLogger(__name__)


class Duty(Protocol):
    """A duty of a process, done with each snapshot. Its methods do not raise and do not block for long."""

    def update(self, snapshot: Snapshot) -> None:
        """Do it for a new snapshot, also for one that is out of date because the engine does not answer."""
        ...

    def notices(self) -> tuple[Notice, ...]:
        """Return its problems."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Turn:
    """Lock of a duty, which one process holds at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock if it is free; return whether this process has it. Raises OSError if there can be none."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            os.close(descriptor)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Leave the lock to others."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class SharedDuty:
    """Duty that this process does while it holds the lock; begun with the first snapshot after it was taken."""

    def __init__(
        self, name: str, turn: Turn, begin: Callable[[Snapshot], Duty], waits: Callable[[], object] = lambda: None
    ) -> None:
        """`name` is for notices. `waits` is called once if another process does it."""
        self._name = name
        self._turn = turn
        self._begin = begin
        self._waits = waits
        self._has_waited = False
        self._fault = ""
        self._duty: Duty | None = None

    @property
    def is_mine(self) -> bool:
        """Return whether this process does it."""
        return self._duty is not None

    def update(self, snapshot: Snapshot) -> None:
        """Take the duty if nobody has it, and do it."""
        if self._duty is None:
            if not snapshot.is_of_cluster or not self._is_taken():  # the cluster has not answered yet, or another does
                return
            self._duty = self._begin(snapshot)
        self._duty.update(snapshot)

    def notices(self) -> tuple[Notice, ...]:
        """Return the problems of the duty, while this process has it."""
        if self._fault:
            return (Notice("warning", self._fault, short=f"no {self._name}"),)
        return self._duty.notices() if self._duty is not None else ()

    def close(self) -> None:
        """End the duty, and leave it to others."""
        duty, self._duty = self._duty, None
        if duty is not None:
            duty.close()
        self._turn.release()

    def _is_taken(self) -> bool:
        try:
            is_mine = self._turn.take()
        except OSError as error:
            fault = f"no {self._name}: {error.filename}: {error.strerror}"
            if fault != self._fault:
                log.error("%s", fault)
            self._fault = fault
            return False
        self._fault = ""
        if not is_mine and not self._has_waited:
            self._has_waited = True
            self._waits()
        return is_mine
