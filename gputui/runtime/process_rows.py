"""Processes of this host as rows, with the CPU time each took since the look before."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

from gputui.domain.process import ProcessRow
from gputui.runtime.process_session import stat

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Rows:
    """Remembers what each process had used when last looked at."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, int], tuple[float, int]] = {}
        """By pid and start: when it was looked at, and the ticks it had used."""

    def of(self, pids: Iterable[int]) -> list[ProcessRow]:
        """Those that are still there."""
        found, used = [], {}
        for pid in pids:
            if (seen := _look(pid)) is not None:
                key, ticks, row = seen
                used[key] = (time.monotonic(), ticks)
                found.append(self._with_cpu(row, key, *used[key]))
        self._used = used
        return found

    def _with_cpu(self, row: ProcessRow, key: tuple[int, int], now: float, ticks: int) -> ProcessRow:
        """Since the last look; at the first one since it began."""
        at, before = self._used.get(key, (None, 0))
        seconds = now - at if at is not None else (row.age.total_seconds() if row.age else 0)
        cpu = (ticks - before) / _TICKS / seconds if seconds > 0 else None
        return ProcessRow(row.pid, row.user, row.command, cpu, row.memory, row.age)


def _look(pid: int) -> tuple[tuple[int, int], int, ProcessRow] | None:
    found = stat(pid)
    fields = _read(pid, "stat").rpartition(")")[2].split()
    if found is None or len(fields) < 22:
        return None
    words = _read(pid, "cmdline").rstrip("\0").split("\0")
    command = " ".join(words) or f"[{_read(pid, 'comm').strip()}]"
    age = timedelta(seconds=max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - found.ticks / _TICKS))
    row = ProcessRow(pid, _user(pid), command[:1000], None, int(fields[21]) * _PAGE, age)
    return (pid, found.ticks), int(fields[11]) + int(fields[12]), row


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _user(pid: int) -> str:
    import pwd

    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
