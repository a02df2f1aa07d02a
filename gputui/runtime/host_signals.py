"""Signals to processes that are not gputui's: each is identified by its start time before it is signalled.

The signal goes through a pidfd, so that it cannot reach a later process with the same pid. Kernels before 5.3 and some
sandboxes have none; there the start time is compared right before `kill`.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gputui.domain.container import ProcessRow
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.gpu_processes import ProcessTarget, SignalOutcome
from gputui.runtime.host_processes import ProcessSampler, read_environment, read_stat, user_name

_LOOKS = 0.05
"""Seconds between two looks at a process without a pidfd."""
_NO_PIDFD = (errno.ENOSYS, errno.EPERM, errno.EINVAL)


class LocalProcesses:
    """HostProcesses of this machine, with the rights of this process."""

    def __init__(self) -> None:
        self._sampler = ProcessSampler()

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> dict[int, ProcessRow]:
        """Return the processes that live, by pid, and with `with_parents` their parents."""
        return {row.pid: row for row in self._sampler.sample(pids, with_parents=with_parents)}

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        """Return `NAME=value` of a process, as it was when the process began."""
        _check(target)
        try:
            found = read_environment(target.pid)
        except PermissionError:
            owner = _owner(target.pid)
            who = "root" if owner == "root" else f"{owner} and root"
            text = f"the environment of pid {target.pid} belongs to {owner}"
            raise GputuiError(text, hint=f"only {who} may read it") from None
        except OSError:
            raise _gone(target) from None
        _check(target)  # or it may be another process's
        return found

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        """Send a signal to exactly that process and watch it for `patience` seconds.

        `before` is called when nothing but sending is left to do. Raises GputuiError when the process is gone, is
        another one by now, or belongs to a user whom this process may not signal.
        """
        _check_not_above(target)
        with _pidfd(target.pid) as fd:
            _check(target)  # after the pidfd is open: it cannot come to mean another process
            self._send(fd, target, 0)
            before()
            _check(target)
            self._send(fd, target, number)
            return _watch(fd, target, patience)

    def _send(self, fd: int | None, target: ProcessTarget, number: int) -> None:
        try:
            if fd is None:
                os.kill(target.pid, number)
            else:
                signal.pidfd_send_signal(fd, number)
        except ProcessLookupError:
            raise _gone(target) from None
        except PermissionError:
            owner = _owner(target.pid)
            who = "root" if owner == "root" else f"{owner} or root"
            raise GputuiError(f"pid {target.pid} belongs to {owner}", hint=f"ask {who}") from None


@contextmanager
def _pidfd(pid: int) -> Iterator[int | None]:
    """Open a pidfd; None where there are none."""
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise NotFoundError(
                f"pid {pid} is not running here: it has ended, or it cannot be seen from here"
            ) from None
        if error.errno not in _NO_PIDFD:
            raise GputuiError(f"pid {pid} cannot be identified: {error.strerror}") from error
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _check(target: ProcessTarget) -> None:
    """Raise GputuiError unless the pid is that process still."""
    found = read_stat(target.pid)
    if found is None:
        raise _gone(target)
    if found.ticks != target.ticks:
        text = f"pid {target.pid} is another process now: its start time differs from the one shown"
        raise GputuiError(text, hint="look again; nothing was sent")


def _check_not_above(target: ProcessTarget) -> None:
    """Raise GputuiError for this process and its parents: the console would end with them."""
    pid, seen = os.getpid(), set[int]()
    while pid > 1 and pid not in seen:
        if pid == target.pid:
            raise GputuiError(f"gputui itself runs in pid {pid}", hint="quit gputui instead")
        seen.add(pid)
        found = read_stat(pid)
        pid = found.parent if found else 0


def _gone(target: ProcessTarget) -> GputuiError:
    return NotFoundError(f"pid {target.pid} has ended already")


def _owner(pid: int) -> str:
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)  # noqa: PTH116
    except OSError:
        return "another user"


def _watch(fd: int | None, target: ProcessTarget, patience: float) -> SignalOutcome:
    """Wait for the end of a process; one that waits to be collected by its parent has ended."""
    began = time.monotonic()
    if fd is not None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(patience * 1000)
    while True:
        found, passed = read_stat(target.pid), time.monotonic() - began
        if found is None or found.ticks != target.ticks:
            return SignalOutcome(has_ended=True, seconds=passed)
        if passed >= patience:
            return SignalOutcome(has_ended=False, seconds=passed, state=found.state)
        time.sleep(_LOOKS)
