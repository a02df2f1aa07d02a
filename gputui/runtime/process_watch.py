"""Tells at once when a process ends that is not a child of ours."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable

from gputui.runtime.process_session import stat

_log = logging.getLogger(__name__)
_BLIND = 0.1
"""Seconds between looks where the kernel gives no descriptors of processes (before Linux 5.3)."""


class ExitWatch:
    """A daemon thread that waits for all processes it was told of, and calls `wake` when any of them ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: dict[int, int] = {}
        """Descriptors by pid."""
        self._blind: set[int] = set()
        """Pids for which there is no descriptor."""
        self._wakes: list[Callable[[], None]] = []
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._closed = False

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on, from the thread, which starts if need be."""
        with self._lock:
            self._wakes.append(wake)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="gputui-process-watch", daemon=True)
                self._thread.start()

    def add(self, pid: int) -> None:
        """Watch this process too. Without a subscriber nothing is watched."""
        with self._lock:
            if self._thread is None or self._closed or pid in self._pids or pid in self._blind:
                return
            try:
                self._pids[pid] = os.pidfd_open(pid)
            except OSError:  # gone already, no descriptors left, or an old kernel: look from time to time
                self._blind.add(pid)
            self._ring()

    def has(self, pid: int) -> bool:
        """Whether this process is watched."""
        return pid in self._pids

    def close(self) -> None:
        """End the thread. No `wake` is called once this has returned, unless it is called from one."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._thread is None:
            self._let_go()

    def _ring(self) -> None:
        os.eventfd_write(self._bell, 1)

    def _run(self) -> None:
        while not self._closed:
            if self._wait() and not self._closed:
                self._wake_all()
        self._let_go()

    def _wake_all(self) -> None:
        for wake in tuple(self._wakes):
            try:
                wake()
            except Exception:  # noqa: BLE001 - the border of this thread: one listener's trouble must not deafen the others
                _log.exception("a listener for ends of host jobs failed")

    def _wait(self) -> bool:
        """Sleep until something happens; whether it was an end."""
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
            vanished = {pid for pid in self._blind if stat(pid) is None}
            self._blind -= vanished
        return bool(ended or vanished)

    def _let_go(self) -> None:
        for descriptor in (self._bell, *self._pids.values()):
            os.close(descriptor)
        self._pids.clear()
