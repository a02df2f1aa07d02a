"""Watches for the ends of processes that are not our children."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

from gputui.runtime.host_processes import read_stat
from gputui.threads import Watcher

_log = logging.getLogger(__name__)
_BLIND = 0.1
"""Polling interval in seconds for kernels without process descriptors (before Linux 5.3)."""


class ExitWatch:
    """Daemon thread that calls `wake` when any of the watched processes ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: dict[int, int] = {}
        """Process descriptors by pid."""
        self._blind: set[int] = set()
        """Pids without a descriptor, which are polled."""
        self._wakes: list[Callable[[], None]] = []
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._closed = False

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on, from the thread, which is started if necessary."""
        with self._lock:
            self._wakes.append(wake)
            if self._thread is None and not self._closed:
                self._thread = Watcher("gputui-process-watch", self._run)
                self._thread.start()

    def add(self, pid: int) -> None:
        """Watch a process. Without a subscriber nothing is watched."""
        with self._lock:
            if self._thread is None or self._closed or pid in self._pids or pid in self._blind:
                return
            try:
                self._pids[pid] = os.pidfd_open(pid)
            except OSError:  # already gone, no descriptors left, or an old kernel: poll
                self._blind.add(pid)
            self._ring()

    def has(self, pid: int) -> bool:
        return pid in self._pids

    def close(self) -> None:
        """End the thread. No `wake` is called after the return, unless a `wake` calls this."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._thread is None:
            self._close_descriptors()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        while not self._closed:
            if self._wait() and not self._closed:
                for wake in tuple(self._wakes):
                    try:
                        wake()
                    except Exception:  # noqa: BLE001 - one listener's failure must not affect the others
                        _log.exception("a listener for ends of host jobs failed")
        self._close_descriptors()

    def _wait(self) -> bool:
        """Wait for an event; return whether a process ended."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        with self._lock:
            pids = {descriptor: pid for pid, descriptor in self._pids.items()}
            pause = _BLIND * 1000 if self._blind else None
        for descriptor in pids:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(pause)}
        if self._bell in ready:
            os.eventfd_read(self._bell)
        with self._lock:
            ended = [pids[descriptor] for descriptor in ready & pids.keys()]
            for pid in ended:
                os.close(self._pids.pop(pid))
            vanished = {pid for pid in self._blind if read_stat(pid) is None}
            self._blind -= vanished
        return bool(ended or vanished)

    def _close_descriptors(self) -> None:
        for descriptor in (self._bell, *self._pids.values()):
            os.close(descriptor)
        self._pids.clear()
