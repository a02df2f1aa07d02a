"""Control groups of host jobs: the kernel's list of an attempt's processes, what they use, and memory and CPU limits.

Without permission to create groups, a limit becomes a note. Version 2 (Documentation/admin-guide/cgroup-v2.rst in
Linux) and the trees of version 1 (Documentation/admin-guide/cgroup-v1/), on hosts that still have them, are used below
the highest writable group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from gputui.domain.job_spec import ContainerOptions

MOUNT = Path("/sys/fs/cgroup")
_PERIOD = 100_000
"""Period of CPU quotas in microseconds."""


_COUNTERS = ("memory", "blkio")
"""Trees of version 1 that count what a group uses; CPU is counted by version 2 too, if that is mounted."""

_TREES = (*_COUNTERS, "cpu", "cpuacct")
"""Trees of version 1 in which an attempt may have a group."""
_STALE = 3600.0
"""Age in seconds at which a group without an attempt is not about to get one."""


class AttemptCgroups(Struct, frozen=True):
    """Control groups created for an attempt."""

    folders: tuple[str, ...] = ()
    counting: tuple[str, ...] = ()
    """Groups that only list and count the attempt's processes; the attempt can run without them."""
    oom_events: str | None = None
    """File in which the kernel counts processes killed for memory."""
    notes: tuple[str, ...] = ()

    def records(self) -> list[tuple[str, str]]:
        """Return the records for the wrapper's plan."""
        joins = [
            ("tracked" if folder in self.counting else "cgroup", f"{folder}/cgroup.procs") for folder in self.folders
        ]
        return joins + ([("oom_events", self.oom_events)] if self.oom_events else [])


class Trees(Struct, frozen=True):
    """Trees of control groups of this host, and this process's groups in them."""

    mount: Path = MOUNT
    own: Path = Path("/proc/self/cgroup")

    def unified(self) -> Path | None:
        """Return the highest group of version 2 in which we may create groups, if version 2 alone is mounted."""
        return self._highest(self.mount, "")

    def beside(self) -> Path | None:
        """Return that group of version 2 if it has its own directory beside the trees of version 1."""
        return self._highest(self.mount / "unified", "")

    def of(self, controller: str) -> Path | None:
        """Return the highest group in a tree of version 1 in which we may create groups."""
        tree = (self.mount / controller).resolve()  # controllers may share a tree: `cpu` is a link to `cpu,cpuacct`
        return self._highest(tree, controller)

    def _highest(self, tree: Path, controller: str) -> Path | None:
        if not (tree if controller else tree / "cgroup.controllers").exists():
            return None
        here = tree / self._own_path(controller)
        writable = [each for each in (here, *here.parents) if each.is_relative_to(tree) and os.access(each, os.W_OK)]
        return writable[-1] if writable else None

    def _own_path(self, controller: str) -> str:
        for line in self.own.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                return path.lstrip("/")
        return ""


_MOUNTED = Trees()
"""Trees of this host."""


def make(name: str, options: ContainerOptions, trees: Trees = _MOUNTED) -> AttemptCgroups:
    """Create groups that list the attempt's processes and enforce its limits, as far as permitted."""
    base = trees.unified()
    folders: list[Path] = []
    notes: list[str] = []
    events = None
    if options.memory is not None:
        folder = _memory(base, trees, name, options.memory)
        if folder is None:
            notes.append("the memory limit is not enforced: this host lets gputui make no control group for it")
        else:
            folders.append(folder)
            events = str(folder / ("memory.events" if (folder / "memory.events").exists() else "memory.oom_control"))
    if options.cpus is not None or options.cpu_shares is not None:
        folder = _cpu(base, trees, name, options)
        if folder is None:
            notes.append("the CPU limit is not enforced: this host lets gputui make no control group for it")
        elif folder not in folders:
            folders.append(folder)
    counting = tuple(str(each) for each in dict.fromkeys(_counting(name, trees)) if each not in folders)
    return AttemptCgroups((*map(str, folders), *counting), counting, events, tuple(notes))


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
    """Send SIGKILL to all processes of these groups at once, from Linux 5.14 on."""
    for folder in folders:
        _write_existing(f"{folder}/cgroup.kill", b"1")


def freeze(folders: Iterable[str], *, is_frozen: bool) -> bool:
    """Stop all processes of these groups, or let them continue; return whether any group could (only version 2)."""
    written = [_write_existing(f"{folder}/cgroup.freeze", b"1" if is_frozen else b"0") for folder in folders]
    return any(written)


def _write_existing(path: str, value: bytes) -> bool:
    """Write to a kernel file; return whether it exists and accepts the value."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, value)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove(folders: Iterable[str]) -> None:
    """Remove the attempt's groups and those below; a group that still has a process stays."""
    for folder in folders:
        for place, _, _ in os.walk(folder, topdown=False):
            try:
                Path(place).rmdir()
            except OSError:
                break


def remove_stale(is_stale: Callable[[str], bool], now: datetime, trees: Trees = _MOUNTED) -> None:
    """Remove groups more than an hour old whose name is stale: a crash left them without an attempt."""
    parents = [trees.unified(), trees.beside(), *map(trees.of, _TREES)]
    for parent in dict.fromkeys(each for each in parents if each is not None):
        for folder in (parent / "gputui").glob("gputui-*"):
            with suppress(FileNotFoundError):  # another process removed it
                if is_stale(folder.name) and now.timestamp() - folder.stat().st_mtime > _STALE:
                    remove([str(folder)])


def _counting(name: str, trees: Trees) -> Iterator[Path]:
    """Create groups without limits, as far as permitted; yield them."""
    base = trees.unified() or trees.beside()
    unified = None if base is None else _create_group(base, name)
    if base is not None and unified is not None:
        _count_use(base)
        yield unified
    if trees.unified() is None:
        for controller in _COUNTERS if unified is not None else (*_COUNTERS, "cpuacct"):
            folder = _create_group(trees.of(controller), name)
            if folder is not None:
                yield folder


def _count_use(base: Path) -> None:
    """Let the kernel count memory and disk use in the groups of attempts, if it does so above them."""
    try:
        above = (base / "cgroup.subtree_control").read_text().split()
        switch = base / "gputui" / "cgroup.subtree_control"
        for controller in {"memory", "io"}.intersection(above).difference(switch.read_text().split()):
            switch.write_text(f"+{controller}")
    except OSError:
        return  # then less is counted


def _memory(base: Path | None, trees: Trees, name: str, limit: int) -> Path | None:
    if base is not None:
        limits = {"memory.max": limit, "memory.swap.max": 0}
        return _create_group(base, name, limits, controller="memory")
    limits = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    return _create_group(trees.of("memory"), name, limits)


def _cpu(base: Path | None, trees: Trees, name: str, options: ContainerOptions) -> Path | None:
    limits: dict[str, object] = {}
    quota = int(options.cpus * _PERIOD) if options.cpus is not None else None
    if base is not None:
        if quota is not None:
            limits["cpu.max"] = f"{quota} {_PERIOD}"
        if options.cpu_shares is not None:  # the engine's own conversion, from 2..262144 to 1..10000
            limits["cpu.weight"] = 1 + (min(max(options.cpu_shares, 2), 262144) - 2) * 9999 // 262142
        return _create_group(base, name, limits, controller="cpu")
    if quota is not None:
        limits |= {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": quota}
    if options.cpu_shares is not None:
        limits["cpu.shares"] = options.cpu_shares
    return _create_group(trees.of("cpu"), name, limits)


def _create_group(
    parent: Path | None, name: str, limits: Mapping[str, object] = {}, *, controller: str = ""
) -> Path | None:
    """Create the group `gputui/NAME` with these values; None if it or the first of them is refused."""
    if parent is None:
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
    return folder if _write_values(folder, limits) else None


def _write_values(folder: Path, limits: Mapping[str, object]) -> bool:
    for place, (file, value) in enumerate(limits.items()):
        try:
            (folder / file).write_text(str(value))
        except OSError:
            if not place:
                remove([str(folder)])
                return False
    return True
