"""Processes as /proc tells of them: who an attempt's processes are, wherever they hid."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Identity:
    """A process, told apart from any later one that gets its pid."""

    pid: int
    ticks: int
    """When it started, in clock ticks since boot."""
    boot: str
    """Which boot."""


@dataclass(frozen=True)
class Stat:
    """One line of /proc/<pid>/stat, as far as it matters here."""

    pid: int
    state: str
    parent: int
    session: int
    ticks: int


@functools.cache
def boot_id() -> str:
    """Differs after every boot of the machine."""
    return _read(_BOOT_ID).decode().strip()


def stat(pid: int) -> Stat | None:
    """The process, unless it is gone or a zombie."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:
        return None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def is_alive(who: Identity) -> bool:
    """Whether that very process lives, and not another one under its pid."""
    found = stat(who.pid)
    return found is not None and found.ticks == who.ticks and who.boot == boot_id()


def members(
    leader: Identity, runner: Identity | None, tag: str, grouped: frozenset[int] = frozenset()
) -> tuple[int, ...]:
    """Return the pids of an attempt's processes without the wrapper's own two, keeper (`leader`) and runner.

    `grouped` are the processes of its control groups: those are always the attempt's. While the keeper or the runner
    lives the session and all their descendants are, daemons included, as both are subreapers. If both were killed,
    those of the session (no other can have its number while one of it lives) and those whose environment has the
    attempt's tag.
    """
    if leader.boot != boot_id():
        return ()
    everything = {each.pid: each for each in _all()}
    keepers = {who.pid for who in (leader, runner) if who is not None and _is_there(who, everything)}
    is_reused = leader.pid in everything and leader.pid not in keepers
    found = {pid for pid in everything if pid in grouped}
    if keepers:
        session = None if is_reused else leader.pid
        found |= {pid for pid in everything if _belongs(pid, session, keepers, everything)}
    else:
        found |= {each.pid for each in everything.values() if _is_orphan(each, leader, tag, is_reused)}
    # parents first: a shell must not see its child end before it is told to end itself
    return tuple(sorted(found - keepers))


def _is_there(who: Identity, everything: Mapping[int, Stat]) -> bool:
    found = everything.get(who.pid)
    return found is not None and found.ticks == who.ticks


def send(pids: tuple[int, ...], number: int, only: int | None = None) -> tuple[int, ...]:
    """Send a signal to each that still lives, with `only` to those of that user.

    Return the pids that we may not signal: processes of other users go on.
    """
    refused = []
    for pid in pids:
        try:
            if only is None or os.stat(f"/proc/{pid}").st_uid == only:  # noqa: PTH116
                os.kill(pid, number)
        except PermissionError:
            refused.append(pid)
        except (ProcessLookupError, FileNotFoundError):
            continue
    return tuple(refused)


def _belongs(pid: int, session: int | None, keepers: set[int], everything: Mapping[int, Stat]) -> bool:
    if everything[pid].session == session:
        return True
    seen: set[int] = set()  # /proc is not read at one instant: a chain of parents may even bite its tail
    while (found := everything.get(pid)) is not None and pid not in seen:
        if found.parent in keepers:
            return True
        seen.add(pid)
        pid = found.parent
    return False


def _is_orphan(each: Stat, leader: Identity, tag: str, reused: bool) -> bool:
    if each.ticks < leader.ticks:
        return False
    environment = _read(f"/proc/{each.pid}/environ")
    if f"GPUTUI_ATTEMPT={tag}".encode() in environment.split(b"\0"):
        return True
    # an environment that says nothing proves nothing: then the session decides, unless its number went to another
    return each.session == leader.pid and not reused and b"GPUTUI_ATTEMPT=" not in environment


def _all() -> Iterator[Stat]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone, of thousands
        if name.isdigit() and (found := stat(int(name))) is not None:
            yield found


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # it ended while being read
        return b""
    finally:
        os.close(descriptor)
