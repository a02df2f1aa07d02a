"""Control groups for host jobs: the kernel's list of an attempt's processes, and memory and CPU limits.

Where this host lets us make no group, a limit becomes a note. Version 2 (Documentation/admin-guide/cgroup-v2.rst in
Linux) below the highest group we may write to; version 1's memory and cpu trees (Documentation/admin-guide/cgroup-v1/)
where the host still has those.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gputui.domain.job import ContainerOptions

MOUNT = Path("/sys/fs/cgroup")
_PERIOD = 100_000
"""Microseconds over which a share of CPUs is measured out."""


@dataclass(frozen=True)
class Group:
    """What was made for an attempt."""

    folders: tuple[str, ...] = ()
    tracked: str | None = None
    """The one of them that only lists the attempt's processes: it may run without that."""
    oom_events: str | None = None
    """The file in which the kernel counts what it killed for memory."""
    notes: tuple[str, ...] = ()

    def records(self) -> list[tuple[str, str]]:
        """What the wrapper must know."""
        joins = [
            ("tracked" if folder == self.tracked else "cgroup", f"{folder}/cgroup.procs") for folder in self.folders
        ]
        return joins + ([("oom_events", self.oom_events)] if self.oom_events else [])


def make(name: str, options: ContainerOptions, mount: Path = MOUNT, own: Path = Path("/proc/self/cgroup")) -> Group:
    """Make groups that list the attempt's processes and hold it to its limits, as far as the host lets us."""
    base = _base(mount, own)
    folders: list[Path] = []
    notes: list[str] = []
    events = None
    if options.memory is not None:
        folder = _memory(base, mount, name, options.memory)
        if folder is None:
            notes.append("the memory limit is not enforced: this host lets gputui make no control group for it")
        else:
            folders.append(folder)
            events = str(folder / ("memory.events" if (folder / "memory.events").exists() else "memory.oom_control"))
    if options.cpus is not None or options.cpu_shares is not None:
        folder = _cpu(base, mount, name, options)
        if folder is None:
            notes.append("the CPU limit is not enforced: this host lets gputui make no control group for it")
        elif folder not in folders:
            folders.append(folder)
    tracked = _tracking(name, mount, own)
    if tracked is None or tracked in folders:
        return Group(tuple(map(str, folders)), None, events, tuple(notes))
    return Group((*map(str, folders), str(tracked)), str(tracked), events, tuple(notes))


def members(folders: Iterable[str]) -> frozenset[int]:
    """Return the pids of all processes in these groups and the groups below them."""
    found: set[int] = set()
    for folder in folders:
        for place, _, _ in os.walk(folder):
            try:
                found.update(map(int, Path(place, "cgroup.procs").read_text().split()))
            except (OSError, ValueError):
                continue
    return frozenset(found)


def kill(folders: Iterable[str]) -> None:
    """Send SIGKILL to all processes of these groups at once, where the kernel can (Linux 5.14)."""
    for folder in folders:
        try:
            descriptor = os.open(f"{folder}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            os.write(descriptor, b"1")
        except OSError:
            continue
        finally:
            os.close(descriptor)


def remove(folders: Iterable[str]) -> None:
    """Remove the attempt's groups and those its processes made; one that still holds a process stays as it is."""
    for folder in folders:
        for place, _, _ in os.walk(folder, topdown=False):
            try:
                Path(place).rmdir()
            except OSError:
                break


def _tracking(name: str, mount: Path, own: Path) -> Path | None:
    """Make a group of version 2 without limits; None where we may not, or only version 1 is there."""
    for tree in (mount, mount / "unified"):
        if (base := _base(tree, own)) is not None:
            folder = base / "gputui" / name
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                return None
            return folder
    return None


def _base(mount: Path, own: Path) -> Path | None:
    """The highest group of version 2 that we may make groups in."""
    if not (mount / "cgroup.controllers").exists():
        return None
    lines = own.read_text().splitlines()
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::")), "")
    here = mount / path
    writable = [each for each in (here, *here.parents) if each.is_relative_to(mount) and os.access(each, os.W_OK)]
    return writable[-1] if writable else None


def _memory(base: Path | None, mount: Path, name: str, limit: int) -> Path | None:
    if base is not None:
        wishes = {"memory.max": limit, "memory.swap.max": 0}
        return _made(base, name, wishes, required="memory.max", controller="memory")
    wishes = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    return _made(mount / "memory", name, wishes, required="memory.limit_in_bytes")


def _cpu(base: Path | None, mount: Path, name: str, options: ContainerOptions) -> Path | None:
    wishes: dict[str, object] = {}
    quota = int(options.cpus * _PERIOD) if options.cpus is not None else None
    if base is not None:
        if quota is not None:
            wishes["cpu.max"] = f"{quota} {_PERIOD}"
        if options.cpu_shares is not None:  # the engine's own conversion, from 2..262144 to 1..10000
            wishes["cpu.weight"] = 1 + (min(max(options.cpu_shares, 2), 262144) - 2) * 9999 // 262142
        return _made(base, name, wishes, required=next(iter(wishes)), controller="cpu")
    if quota is not None:
        wishes |= {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": quota}
    if options.cpu_shares is not None:
        wishes["cpu.shares"] = options.cpu_shares
    return _made(mount / "cpu", name, wishes, required=next(iter(wishes)))


def _made(parent: Path, name: str, wishes: Mapping[str, object], *, required: str, controller: str = "") -> Path | None:
    """The group `gputui/NAME` with these values; None when it, or the required value, is refused."""
    if not parent.is_dir():
        return None
    folder = parent / "gputui" / name
    try:
        folder.parent.mkdir(exist_ok=True)
        for above in (parent, folder.parent) if controller else ():
            if controller not in (above / "cgroup.subtree_control").read_text().split():
                (above / "cgroup.subtree_control").write_text(f"+{controller}")
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    return folder if _set(folder, wishes, required) else None


def _set(folder: Path, wishes: Mapping[str, object], required: str) -> bool:
    for file, value in wishes.items():
        try:
            (folder / file).write_text(str(value))
        except OSError:
            if file == required:
                remove([str(folder)])
                return False
    return True
