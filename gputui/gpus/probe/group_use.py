"""Use of the machine by the control groups of processes on GPUs, for probes of other machines' readers.

Part of the probe process. A group is that of a container, or of a job of Slurm outside of one.
"""

from __future__ import annotations

import re

from gputui.gpus.probe.host import text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    ReadGroup = Callable[[str, int], Mapping[str, object] | None]
    """Returns what the group of that name, of a process, has used since its start; None if it has no such group."""

EVERY = 8.0
"""Least seconds between two readings of a group; in between the last one is told again, with its age.

A reader that looks less often than the probe tells would miss what is told once.
"""
_JOB = re.compile(r"/(job_[0-9]+)(?=[/\n]|$)")


class GroupUse:
    """Reader of groups, each at most every few seconds, whatever the number of its processes."""

    def __init__(self, read: ReadGroup, root: str = "/proc") -> None:
        self._read = read
        self._root = root
        self._last: dict[str, tuple[float, Mapping[str, object] | None]] = {}
        """Time and result of the last reading by the group's name."""
        self._asked: set[str] = set()

    def of(self, pid: int, container_id: str | None, now: float) -> tuple[Mapping[str, object], float] | None:
        """Return the last use by the group of a process, and its age in seconds; None if it cannot be read."""
        name = container_id or self._job(pid)
        if name is None:
            return None
        self._asked.add(name)
        at, used = self._last.get(name, (now - EVERY, None))
        if now - at >= EVERY:
            at, used = self._last[name] = now, self._read(name, pid)
        return (used, now - at) if used else None

    def forget_unseen(self) -> None:
        """Drop groups without a process on a GPU since the last call."""
        self._last = {name: last for name, last in self._last.items() if name in self._asked}
        self._asked.clear()

    def _job(self, pid: int) -> str | None:
        """Return the name of the group of Slurm's job that a process belongs to."""
        found = _JOB.search(text_of(f"{self._root}/{pid}/cgroup"))
        return found[1] if found else None
