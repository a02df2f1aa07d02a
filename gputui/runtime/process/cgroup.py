"""Control groups of host jobs: the kernel's list of an attempt's processes, and memory and CPU limits.

Without permission to create groups, a limit becomes a note. Version 2 (Documentation/admin-guide/cgroup-v2.rst in
Linux) is used below the highest writable group; version 1's memory and cpu trees (Documentation/admin-guide/cgroup-v1/)
on hosts that still have them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gputui.domain.container_options import ContainerOptions

MOUNT = Path("/sys/fs/cgroup")
_PERIOD = 100_000
"""Period of CPU quotas in microseconds."""


@dataclass(frozen=True)
class AttemptCgroups:
    """Control groups created for an attempt."""

    folders: tuple[str, ...] = ()
    tracked: str | None = None
    """Group that only lists the attempt's processes; the attempt can run without it."""
    oom_events: str | None = None
    """File in which the kernel counts processes killed for memory."""
    notes: tuple[str, ...] = ()

    def records(self) -> list[tuple[str, str]]:
        """Return the records for the wrapper's plan."""
        joins = [
            ("tracked" if folder == self.tracked else "cgroup", f"{folder}/cgroup.procs") for folder in self.folders
        ]
        return joins + ([("oom_events", self.oom_events)] if self.oom_events else [])


def make(
    name: str, options: ContainerOptions, mount: Path = MOUNT, own: Path = Path("/proc/self/cgroup")
) -> AttemptCgroups:
    """Create groups that list the attempt's processes and enforce its limits, as far as permitted."""
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
        return AttemptCgroups(tuple(map(str, folders)), None, events, tuple(notes))
    return AttemptCgroups((*map(str, folders), str(tracked)), str(tracked), events, tuple(notes))


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


def _tracking(name: str, mount: Path, own: Path) -> Path | None:
    """Create a version 2 group without limits; None without permission or version 2."""
    for tree in (mount, mount / "unified"):
        if (base := _base(tree, own)) is not None:
            folder = base / "gputui" / name
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                return None
            _count_use(base)
            return folder
    return None


def _count_use(base: Path) -> None:
    """Let the kernel count memory and disk use in the groups of attempts, if it does so above them."""
    try:
        above = (base / "cgroup.subtree_control").read_text().split()
        switch = base / "gputui" / "cgroup.subtree_control"
        for controller in {"memory", "io"}.intersection(above).difference(switch.read_text().split()):
            switch.write_text(f"+{controller}")
    except OSError:
        return  # then less is counted


def _base(mount: Path, own: Path) -> Path | None:
    """Return the highest version 2 group in which we may create groups; None if there is none."""
    if not (mount / "cgroup.controllers").exists():
        return None
    lines = own.read_text().splitlines()
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::")), "")
    here = mount / path
    writable = [each for each in (here, *here.parents) if each.is_relative_to(mount) and os.access(each, os.W_OK)]
    return writable[-1] if writable else None


def _memory(base: Path | None, mount: Path, name: str, limit: int) -> Path | None:
    if base is not None:
        limits = {"memory.max": limit, "memory.swap.max": 0}
        return _create_group(base, name, limits, required="memory.max", controller="memory")
    limits = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
    return _create_group(mount / "memory", name, limits, required="memory.limit_in_bytes")


def _cpu(base: Path | None, mount: Path, name: str, options: ContainerOptions) -> Path | None:
    limits: dict[str, object] = {}
    quota = int(options.cpus * _PERIOD) if options.cpus is not None else None
    if base is not None:
        if quota is not None:
            limits["cpu.max"] = f"{quota} {_PERIOD}"
        if options.cpu_shares is not None:  # the engine's own conversion, from 2..262144 to 1..10000
            limits["cpu.weight"] = 1 + (min(max(options.cpu_shares, 2), 262144) - 2) * 9999 // 262142
        return _create_group(base, name, limits, required=next(iter(limits)), controller="cpu")
    if quota is not None:
        limits |= {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": quota}
    if options.cpu_shares is not None:
        limits["cpu.shares"] = options.cpu_shares
    return _create_group(mount / "cpu", name, limits, required=next(iter(limits)))


def _create_group(
    parent: Path, name: str, limits: Mapping[str, object], *, required: str, controller: str = ""
) -> Path | None:
    """Create the group `gputui/NAME` with these values; None if it or the required value is refused."""
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
    return folder if _write_values(folder, limits, required) else None


def _write_values(folder: Path, limits: Mapping[str, object], required: str) -> bool:
    for file, value in limits.items():
        try:
            (folder / file).write_text(str(value))
        except OSError:
            if file == required:
                remove([str(folder)])
                return False
    return True
