"""Parts of a server that are not HTTP: limits for each user, threads, buffers, peers, and the listening socket.

The socket is bound by the owner, or inherited from systemd or from the owner before.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import queue
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.api.http import Peer, credentials

log = logging.getLogger(__name__)


class Limits(Struct, frozen=True):
    """Limits of a server; bytes and seconds."""

    connections: int = 512
    of_users: int = 448
    """Connections of all plain users together; the rest is left to operators."""
    of_user: int = 16
    of_operator: int = 256
    head: int = 64 << 10
    """Bytes of a request's head."""
    lines: int = 128
    """Lines of a head: many short ones cost more than a few long ones."""
    head_within: float = 10.0
    body: int = 1 << 20
    operator_body: int = 64 << 20
    """Bytes of a body: operators submit files of jobs."""
    bodies: int = 128 << 20
    """Bytes of all bodies that are being received."""
    body_within: float = 30.0
    idle: float = 30.0
    """Seconds between two requests of a connection."""
    at_once: int = 2
    """Requests of one user that are answered at a time; the others wait."""
    of_users_at_once: int = 3
    """Requests of all plain users at a time; the pool has one thread more."""
    rate: float = 50.0
    """Requests of a plain user in a second; beyond it, and the burst, they wait."""
    burst: int = 200
    unsent: int = 8 << 20
    """Bytes that a stream may hold for a slow client before it is cut."""


LIMITS = Limits()
OF_NAMESPACES = -1
"""Stands for all users in user namespaces together: one user may have thousands of uids there."""


def limits_for(descriptors: int) -> Limits:
    """Return the limits of a process that may open so many files: half of them are for its other work."""
    connections = max(2, min(LIMITS.connections, descriptors // 2)) if descriptors >= 0 else LIMITS.connections
    left = LIMITS.connections - LIMITS.of_users
    return replace(LIMITS, connections=connections, of_users=max(connections // 2, connections - left))


class Allowance(Struct, eq=False):
    """Connections and request rate of one user."""

    _limits: Limits
    is_operator: bool
    turn: asyncio.Semaphore
    """Held while a request is answered."""
    _tokens: float
    _seen_at: float = field(default_factory=time.monotonic)
    connections: int = 0

    @property
    def is_idle(self) -> bool:
        self._refill()
        return self.connections == 0 and self._tokens >= self._limits.burst

    def _refill(self) -> None:
        now = time.monotonic()
        gained = (now - self._seen_at) * self._limits.rate
        self._tokens, self._seen_at = min(float(self._limits.burst), self._tokens + gained), now

    def delay(self) -> float:
        """Count a request; return the seconds that it has to wait."""
        if self.is_operator:
            return 0.0
        self._refill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._limits.rate)


class Allowances(Struct, eq=False):
    """Users who are connected, or asked lately."""

    _limits: Limits
    _allowances: dict[tuple[int, bool], Allowance] = field(default_factory=dict)

    def find(self, uid: int, *, is_operator: bool) -> Allowance:
        key = uid, is_operator
        if (found := self._allowances.get(key)) is None:
            if len(self._allowances) > self._limits.connections:
                self._allowances = {
                    each: allowance for each, allowance in self._allowances.items() if not allowance.is_idle
                }
            turn, tokens = asyncio.Semaphore(self._limits.at_once), float(self._limits.burst)
            found = self._allowances[key] = Allowance(self._limits, is_operator, turn, tokens)
        return found

    def refusal(self, allowance: Allowance) -> str:
        """Return why the user gets no further connection; empty: he gets one."""
        limits = self._limits
        if allowance.connections >= (limits.of_operator if allowance.is_operator else limits.of_user):
            return f"you have {allowance.connections} connections open, the most for one user"
        present = self._allowances.values()
        count = sum(each.connections for each in present)
        of_users = sum(each.connections for each in present if not each.is_operator)
        if count >= limits.connections or (not allowance.is_operator and of_users >= limits.of_users):
            return f"{count} connections are open, the most for all users"
        return ""


T = TypeVar("T")


class Pool:
    """A few threads, and a queue of work for them."""

    def __init__(self, size: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._size = size

        def run() -> None:
            while (work := self._work.get()) is not None:
                try:
                    work()
                except Exception:  # a border: the thread goes on
                    log.exception("work of the API failed")
                del work  # with its result, which may be large

        for number in range(size):
            threading.Thread(target=run, name=f"{name}-{number}", daemon=True).start()

    def submit(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of the work, or raise its error. What is cancelled is done all the same."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # from now on nobody can cancel it

        def do() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put(do)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the threads once the work is done; does not wait for that."""
        for _ in range(self._size):
            self._work.put(None)


PIECE = 256 << 10
"""Bytes that are passed to the kernel at a time."""


class Buffer(Struct, eq=False):
    """Parts of an answer without an end: any thread puts them, the server's loop takes them."""

    _most: int
    """A part is taken as long as no more bytes wait before it; its own size does not count."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parts: deque[memoryview] = field(default_factory=deque)
    waiting: int = 0
    _is_over: bool = False
    _is_told: bool = False
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_cut: bool = False
    """True once the client was too slow, or the answer failed: it has no end."""
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Set in the loop soon after that."""

    def send(self, data: bytes) -> bool:
        with self._lock:
            if self._is_over:
                return False
            is_too_slow = self.waiting > self._most
            if data and not is_too_slow:
                self._parts.append(memoryview(data))
                self.waiting += len(data)
        if is_too_slow:
            self.cut_off()
        self._tell()
        return not self._is_over

    def cut_off(self) -> None:
        with self._lock:
            self._is_over = self.is_cut = True
            self._parts.clear()
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.cut.set)

    def close(self) -> None:
        with self._lock:
            self._is_over = True
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            is_told, self._is_told = self._is_told, True
        if not is_told:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake.set)

    async def take(self) -> memoryview | None:
        """Return the next piece to send, when there is one; None at the end. Call `sent` once it is sent."""
        while True:
            with self._lock:
                if self._parts:
                    part = self._parts.popleft()
                    if len(part) > PIECE:
                        self._parts.appendleft(part[PIECE:])
                    return part[:PIECE]
                if self._is_over:
                    return None
                self._is_told = False
                self._wake.clear()
            await self._wake.wait()

    def sent(self, size: int) -> None:
        with self._lock:
            self.waiting -= size


PROC = Path("/proc")
SO_PEERGROUPS = 59
SO_PEERPIDFD = 77
"""Since Linux 6.5."""
_MOST_BYTES = 1024
"""Bytes that Python takes as the value of an option of a socket: 256 groups."""
_START_TIME = 19
"""Place of the start's time in /proc/PID/stat, behind the name."""


def peer_of(connection: socket.socket) -> Peer | None:
    """Return the process that connected; None if it has ended.

    Then nobody can tell where it ran: a process of a container could leave its connection to another one and end, and
    pass for a process of the machine.
    """
    pid, uid, gid = credentials(connection)
    cgroup = _cgroup(connection, pid, uid) if pid else ""
    if cgroup is None:
        return None
    try:
        try:
            packed = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _MOST_BYTES)
            groups = struct.unpack(f"{len(packed) // 4}I", packed)
        except OSError as error:
            if error.errno != errno.ERANGE:
                raise
            groups = tuple(int(group) for group in _status(pid, "Groups").split())  # very many
        return Peer(uid, gid, groups, pid, cgroup, is_mapped(pid))
    except OSError:
        return None


def shares_namespace(pid: int) -> bool:
    """Return whether the process sees the same processes as this one: it is in no container of its own.

    The number that it has in its own namespace is told to everybody; the namespace itself only to who may trace it.
    """
    try:
        return len(_status(pid, "NSpid").split()) == 1
    except OSError:
        return False


def is_mapped(pid: int) -> bool:
    """Return whether the process is in another user namespace than this one, as far as its ids tell.

    There any user may be each of the ids that /etc/subuid lends him.
    """
    try:
        return (PROC / str(pid) / "uid_map").read_text().split() != (PROC / "self/uid_map").read_text().split()
    except OSError:
        return False


def _status(pid: int, name: str) -> str:
    text = (PROC / str(pid) / "status").read_text(errors="replace")
    return next((line.removeprefix(f"{name}:") for line in text.splitlines() if line.startswith(f"{name}:")), "")


def _cgroup(connection: socket.socket, pid: int, uid: int) -> str | None:
    """Return the control groups of the process as in /proc/PID/cgroup; None if it has ended.

    Empty where /proc hides the processes of others (`hidepid`).
    """
    try:
        value = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except OSError as error:
        if error.errno not in {errno.ENOPROTOOPT, errno.EINVAL}:
            return None  # it has ended, and was waited for

        def started_at() -> int:
            text = (PROC / str(pid) / "stat").read_bytes()
            return int(text[text.rindex(b")") + 1 :].split()[_START_TIME])

        # on an older kernel: the process is of that user, and the same one before and after
        try:
            before, found = started_at(), _read_cgroup(pid)
            is_same = started_at() == before and (PROC / str(pid)).stat().st_uid == uid
        except (OSError, ValueError, IndexError):
            return None
        return found if is_same else None
    descriptor, found = int.from_bytes(value, "little"), ""
    try:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            found = _read_cgroup(pid)
        # alive after the read: so it was the one that is meant, not a later process with its number
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return None if poll.poll(0) else found
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _read_cgroup(pid: int) -> str:
    return (PROC / str(pid) / "cgroup").read_text(errors="replace").strip()


BACKLOG = 512
"""Connections that wait. Who calls `listen` again is from then on the process that the kernel names to clients."""
FIRST_FD = 3
"""First descriptor that systemd passes."""


class Listener(Struct, frozen=True):
    """A listening socket, and the file by which it is reached."""

    socket: socket.socket
    file: tuple[int, int] | None = None
    """Device and inode of its file; None: systemd has bound it, and keeps it."""

    def is_at(self, path: Path) -> bool:
        """Return whether whoever connects to the path reaches this socket."""
        if self.file is None:
            return True
        with suppress(OSError):
            status = path.lstat()
            return self.file == (status.st_dev, status.st_ino)
        return False

    @property
    def passed(self) -> str:
        """Name by which `taken` of a process that inherits the descriptor finds the socket."""
        numbers = (self.socket.fileno(), *(self.file or ()))
        return ":".join(map(str, numbers))


def bind(path: Path, mode: int) -> Listener:
    """Return a socket that listens at the path, in place of what is there. Raises OSError.

    Only the owner may call it, the holder of the lock. The new socket takes the path in one step, so nobody finds none.
    It is bound by the directory's descriptor: the path itself may be longer than sockets allow.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = f".{path.name}.{os.getpid()}"
    try:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory)
        listener.bind(f"/proc/self/fd/{directory}/{new}")
        os.chmod(new, mode, dir_fd=directory)
        listener.listen(BACKLOG)
        status = os.stat(new, dir_fd=directory, follow_symlinks=False)
        os.rename(new, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        listener.close()
        with suppress(OSError):
            os.unlink(new, dir_fd=directory)
        raise
    finally:
        os.close(directory)
    return Listener(listener, (status.st_dev, status.st_ino))


def inherited(environ: Mapping[str, str] = os.environ) -> Listener | None:
    """Return the first socket that systemd passed to this process; None if it passed none."""
    for descriptor in passed_descriptors(environ):
        with suppress(OSError):  # systemd's own stays open for a later term, and for the next program
            os.set_inheritable(descriptor, False)
            if (found := _listening(os.dup(descriptor))) is not None:
                if not os.geteuid():  # else clients trust systemd, and not this account
                    found.listen(BACKLOG)
                return Listener(found)
    return None


def keep_inherited(environ: Mapping[str, str] = os.environ) -> None:
    """Keep the sockets that systemd passed for a program that replaces this one in the same process."""
    for descriptor in passed_descriptors(environ):
        with suppress(OSError):
            os.set_inheritable(descriptor, True)


def passed_descriptors(environ: Mapping[str, str] = os.environ) -> range:
    """Return the descriptors that systemd passed to this process."""
    number = environ.get("LISTEN_FDS", "")
    is_mine = environ.get("LISTEN_PID") == str(os.getpid()) and number.isdecimal() and len(number) < 4
    return range(FIRST_FD, FIRST_FD + int(number)) if is_mine else range(0)


def taken(passed: str) -> Listener | None:
    """Return the socket that the owner before passed, by its `passed`; None if it is none that listens."""
    numbers = passed.split(":")
    if len(numbers) not in {1, 3} or not all(number.isdecimal() for number in numbers):
        return None
    descriptor, *file = map(int, numbers)
    if (found := _listening(descriptor)) is None:
        return None
    found.listen(BACKLOG)
    return Listener(found, (file[0], file[1]) if file else None)


def _listening(descriptor: int) -> socket.socket | None:
    """Return the socket of the descriptor, whose owner it becomes; None, and closed, if it is none that listens."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:  # it is no socket
        with suppress(OSError):
            os.close(descriptor)
        return None
    if found.family == socket.AF_UNIX and found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        os.set_inheritable(descriptor, False)
        return found
    found.close()
    return None
