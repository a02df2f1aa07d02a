"""Readings of the host from /proc, and of the disks that jobs need. Part of the probe process.

Control groups are not read: /proc has the figures of the whole host, even in a container. Network counters are the
exception: they belong to a network namespace, so only physical interfaces count, which a container does not have.
"""

from __future__ import annotations

import os
import re
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    ReadGroup = Callable[[str, int], Mapping[str, object] | None]
    """Returns what the group of that name, of a process, has used since its start; None if it has no such group."""

_NET = "/sys/class/net"
_KEPT = 4096
"""Bytes of /proc/stat that are read: its first line is the sum of all processors."""


class HostReader:
    """Reader of the host. Rates are differences between two readings."""

    def __init__(self, proc: str = "/proc", net: str = _NET) -> None:
        self._proc = proc
        self._net = net
        self._busy: tuple[int, int] | None = None
        self._bytes: tuple[float, int, int] | None = None
        self._interfaces: list[str] = []
        self.disks = DiskReader()

    def read(self, now: float, *, seldom: bool) -> dict[str, object]:
        """Return everything that can be read.

        `now` is monotonic time in seconds. Disks come once after each `seldom` reading. The busy share is that since
        the last call; waiting for disks counts as idle, as in top, and guest ticks are included in user ticks.
        """
        if seldom:
            self.disks.request()
            found = physical_interfaces(self._net)
            if found != self._interfaces:  # the sums cannot be compared with earlier ones
                self._interfaces, self._bytes = found, None
        result: dict[str, object] = {"cores": os.sysconf("SC_NPROCESSORS_ONLN")}
        before, self._busy = self._busy, None
        words = text_of(f"{self._proc}/stat", _KEPT).partition("\n")[0].split()
        if len(words) > 5 and words[0] == "cpu":
            ticks = [int(word) for word in words[1:9]]
            self._busy = sum(ticks) - ticks[3] - ticks[4], sum(ticks)
        if before is not None and self._busy is not None and self._busy[1] > before[1]:
            share = (self._busy[0] - before[0]) / (self._busy[1] - before[1])
            result["cpu"] = round(min(1.0, max(0.0, share)), 3)
        try:
            result["load"] = float(text_of(f"{self._proc}/loadavg").split()[0])
        except (IndexError, ValueError):
            result.pop("load", None)
        values = _meminfo(text_of(f"{self._proc}/meminfo"))
        for name, total, free in (("memory", "MemTotal", "MemAvailable"), ("swap", "SwapTotal", "SwapFree")):
            if total in values and free in values:
                result[f"{name}_total"], result[f"{name}_used"] = values[total], max(0, values[total] - values[free])
        result.update(self._network(now))
        disks = self.disks.take()
        return result if disks is None else {**result, "disks": disks}

    def _network(self, now: float) -> dict[str, object]:
        """Return bytes per second since the last call; nothing at first, and after a counter went back."""
        before, self._bytes = self._bytes, None
        counts = []
        try:
            for name in ("rx_bytes", "tx_bytes"):
                texts = (text_of(f"{self._net}/{one}/statistics/{name}") for one in self._interfaces)
                counts.append(sum(map(int, texts)))
        except (OSError, ValueError):  # an interface has just disappeared
            return {}
        if not self._interfaces:
            return {}
        received, sent = counts
        self._bytes = (now, received, sent)
        if before is None or now <= before[0] or received < before[1] or sent < before[2]:
            return {}
        seconds = now - before[0]
        return {"received": round((received - before[1]) / seconds), "sent": round((sent - before[2]) / seconds)}


def physical_interfaces(net: str = _NET) -> list[str]:
    """Return the interfaces that have a device.

    Bridges, bonds, VLANs and interfaces of containers have none, and would count the same bytes again.
    """
    try:
        return sorted(name for name in os.listdir(net) if os.path.exists(f"{net}/{name}/device"))  # noqa: PTH110, PTH208
    except OSError:
        return []


def text_of(path: str, most: int = 65536) -> str:
    """Return the beginning of a file; empty if it cannot be read. `open` makes four more calls of the kernel."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, most).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def memory_total() -> int | None:
    return _meminfo(text_of("/proc/meminfo")).get("MemTotal")


def _meminfo(text: str) -> dict[str, int]:
    values = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[0].isdigit():
            values[name] = int(words[0]) * 1024
    return values


class DiskReader:
    """Reader of file systems in a thread: one that hangs must not look like a hanging driver."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {}
        """Paths by role."""
        self._thread: threading.Thread | None = None
        self._found: list[dict[str, object]] | None = None

    def request(self) -> None:
        """Start reading, unless the last reading still hangs."""
        if self.paths and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._read, args=(dict(self.paths),), daemon=True)
            self._thread.start()

    def take(self) -> list[dict[str, object]] | None:
        """Return the reading since the last call, once; None without one."""
        found, self._found = self._found, None
        return found

    def _read(self, paths: dict[str, str]) -> None:
        found: dict[int, dict[str, object]] = {}
        for role, path in sorted(paths.items(), reverse=True):
            try:
                device, stats = os.stat(path).st_dev, os.statvfs(path)  # noqa: PTH116
                at = os.path.realpath(path)
                while not os.path.ismount(at):
                    at = os.path.dirname(at)  # noqa: PTH120
                mount = at
            except OSError:
                continue
            known = found.setdefault(device, {"mount": mount, "roles": []})
            free = stats.f_bavail * stats.f_frsize
            known["total"], known["free"] = (stats.f_blocks - stats.f_bfree) * stats.f_frsize + free, free
            roles = known["roles"]
            assert isinstance(roles, list)
            roles.append(role)
        self._found = list(found.values())


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
        name = container_id
        if not name:  # a job of Slurm has a group of its name
            found = _JOB.search(text_of(f"{self._root}/{pid}/cgroup"))
            if found is None:
                return None
            name = found[1]
        self._asked.add(name)
        at, used = self._last.get(name, (now - EVERY, None))
        if now - at >= EVERY:
            at, used = self._last[name] = now, self._read(name, pid)
        return (used, now - at) if used else None

    def forget_unseen(self) -> None:
        """Drop groups without a process on a GPU since the last call."""
        self._last = {name: last for name, last in self._last.items() if name in self._asked}
        self._asked.clear()
