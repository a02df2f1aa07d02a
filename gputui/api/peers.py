"""The process at the other end of a connection, as the kernel knows it."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from contextlib import suppress
from pathlib import Path

from gputui.api.http import Peer

PROC = Path("/proc")
SO_PEERGROUPS = 59
SO_PEERPIDFD = 77
"""Since Linux 6.5."""
_MOST_BYTES = 1024
"""Bytes that Python takes as the value of an option of a socket: 256 groups."""
_START_TIME = 19
"""Place of the start's time in /proc/PID/stat, behind the name."""


def credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process that connected; pid 0: our namespace does not contain it."""
    pid, uid, gid = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


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
        return Peer(uid, gid, _groups(connection, pid), pid, cgroup, is_mapped(pid))
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


def _groups(connection: socket.socket, pid: int) -> tuple[int, ...]:
    """Return the supplementary groups. Raises OSError if there are very many, and the process has ended."""
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, _MOST_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        return tuple(int(group) for group in _status(pid, "Groups").split())
    return struct.unpack(f"{len(packed) // 4}I", packed)


def _cgroup(connection: socket.socket, pid: int, uid: int) -> str | None:
    """Return the control groups of the process as in /proc/PID/cgroup; None if it has ended.

    Empty where /proc hides the processes of others (`hidepid`).
    """
    try:
        value = connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4)
    except OSError as error:
        if error.errno in {errno.ENOPROTOOPT, errno.EINVAL}:
            return _cgroup_by_time(pid, uid)
        return None  # it has ended, and was waited for
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


def _cgroup_by_time(pid: int, uid: int) -> str | None:
    """Return the same on an older kernel: the process is of that user, and the same one before and after."""
    try:
        before = _start_time(pid)
        found = _read_cgroup(pid)
        is_same = _start_time(pid) == before and (PROC / str(pid)).stat().st_uid == uid
    except (OSError, ValueError, IndexError):
        return None
    return found if is_same else None


def _start_time(pid: int) -> int:
    text = (PROC / str(pid) / "stat").read_bytes()
    return int(text[text.rindex(b")") + 1 :].split()[_START_TIME])


def _read_cgroup(pid: int) -> str:
    return (PROC / str(pid) / "cgroup").read_text(errors="replace").strip()
