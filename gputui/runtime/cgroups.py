"""Use of CPU, memory and disks by an attempt, from the files of its control groups.

Version 2: Documentation/admin-guide/cgroup-v2.rst in Linux; version 1: Documentation/admin-guide/cgroup-v1/. A group
counts only if its name shows that it belongs to the attempt: a container's contains its id, whatever `cgroup_parent`
and driver (`/docker/ID`, `/system.slice/docker-ID.scope`, …), a host job's the name of the attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, field

from gputui.domain.job_spec import ContainerOptions
from gputui.domain.telemetry import Consumption

MOUNT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_MOST = 1 << 16
"""Maximum bytes of a file that are read: `io.stat` has a line for each disk."""
_KEPT = 4096
"""Number of attempts whose files are remembered."""
_TRIES = 3
"""Number of attempts to find the groups of an attempt that has none."""
_DEPTH = 4
"""Levels of the tree in which the group of a container is searched by its name."""

_Field: TypeAlias = tuple[str, Callable[[bytes], float | None]]


def _number(text: bytes) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _seconds(text: bytes) -> float | None:
    """Return the seconds of `usage_usec` in `cpu.stat`."""
    found = dict(line.split(b" ", 1) for line in text.splitlines() if b" " in line).get(b"usage_usec")
    return int(found) / 1e6 if found else None


def _sum_of(key: bytes) -> Callable[[bytes], int]:
    """Return a parser for a key of `io.stat` (`8:0 rbytes=1 wbytes=2 …`), summed over disks."""

    def read(text: bytes) -> int:
        return sum(int(word[len(key) :]) for word in text.split() if word.startswith(key))

    return read


def _operations(name: bytes) -> Callable[[bytes], int | None]:
    """Return a parser for an operation of `blkio.throttle.io_service_bytes` (`8:0 Read 512`), summed over disks.

    Without any disk it is unknown: from Linux 6.10 on, only disks on which some group has a limit are counted.
    """

    def read(text: bytes) -> int | None:
        lines = (line.split() for line in text.splitlines())
        counted = [int(words[2]) for words in lines if len(words) == 3 and words[1] == name]
        return sum(counted) if counted else None

    return read


_FILES: dict[str, tuple[_Field, ...]] = {
    "cpu.stat": (("cpu", _seconds),),
    "cpuacct.usage": (("cpu", lambda text: int(text) / 1e9),),
    "memory.current": (("memory", _number),),
    "memory.peak": (("memory_peak", _number),),
    "memory.usage_in_bytes": (("memory", _number),),
    "memory.max_usage_in_bytes": (("memory_peak", _number),),
    "io.stat": (("io_read", _sum_of(b"rbytes=")), ("io_written", _sum_of(b"wbytes="))),
    "blkio.throttle.io_service_bytes_recursive": (
        ("io_read", _operations(b"Read")),
        ("io_written", _operations(b"Write")),
    ),
}
"""Parsers of each file by field of `Consumption`; at most one file of a group provides a field."""


_VERSION_1 = "cpu.shares"
"""File of version 1, whose `cpu.stat` counts other things."""


class ConsumptionReader(Struct, eq=False):
    """Reader of control groups, which searches for the files of an attempt once."""

    _mount: Path = MOUNT
    _proc: Path = _PROC
    _files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _misses: dict[str, int] = field(default_factory=dict)

    def of_process(self, name: str, pid: int) -> Consumption | None:
        """Return the consumption of that process's groups whose names contain `name`; None if there are none."""
        return self.of_groups(name, lambda: tuple(self._own_groups(name, pid)) or self._found_groups(name))

    def _own_groups(self, name: str, pid: int) -> Iterator[Path]:
        """Yield the control groups of a process with that name, or those above them: it may have created subgroups."""
        try:
            lines = (self._proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
        except OSError:
            return
        mount = self._mount
        for line in lines:
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            parts = path.strip("/").split("/")
            place = next((at for at, part in enumerate(parts) if name in part), None)
            if place is None or ".." in parts:
                continue
            tree: Path | None
            if controllers:  # those that share a hierarchy have one directory, `cpu,cpuacct`, or identical ones
                names = (controllers, *controllers.split(","))
                tree = next((mount / each for each in names if (mount / each).is_dir()), None)
            else:  # version 2, which is the only one or `unified`
                tree = mount if (mount / "cgroup.controllers").exists() else mount / "unified"
            if tree is not None:
                yield tree.joinpath(*parts[: place + 1])

    def _found_groups(self, name: str) -> Iterator[Path]:
        """Yield the control groups of that name if its process is in another PID namespace: one per hierarchy."""
        mount = self._mount
        unified = (mount / "cgroup.controllers").exists()
        trees = [mount] if unified else [mount / tree for tree in ("cpuacct", "memory", "blkio", "unified")]
        for tree in trees:
            for place, below, _ in os.walk(tree):
                if len(Path(place).relative_to(tree).parts) >= _DEPTH - 1:
                    below.clear()
                if (found := next((each for each in below if name in each), None)) is not None:
                    yield Path(place, found)
                    break

    def of_groups(self, name: str, folders: Callable[[], Iterable[str | Path]]) -> Consumption | None:
        """Return the consumption of the groups in these folders, which are asked for as long as none was found."""
        if name not in self._files:
            if len(self._files) >= _KEPT:
                self._files.clear()
                self._misses.clear()
            self._files[name] = files_in(folders())
        found = read_files(self._files[name])
        misses = self._misses.get(name, 0)
        if found is None and misses < _TRIES:  # its groups do not exist yet, or no longer
            self._misses[name] = misses + 1
            self._files.pop(name, None)
        return found


def files_in(folders: Iterable[str | Path]) -> tuple[str, ...]:
    files: list[str] = []
    for folder in folders:
        try:
            found = set(os.listdir(folder))  # noqa: PTH208 - each attempt has up to a dozen groups
        except OSError:
            continue
        if _VERSION_1 in found:
            found.discard("cpu.stat")
        files += [f"{folder}/{name}" for name in _FILES if name in found]
    return tuple(files)


def read_files(files: Iterable[str]) -> Consumption | None:
    found: dict[str, float] = {}
    for path in files:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            text = os.read(descriptor, _MOST)
        except OSError:
            continue
        finally:
            os.close(descriptor)
        for name, read in _FILES[path.rpartition("/")[2]]:
            with suppress(ValueError, IndexError):
                if (value := read(text)) is not None:
                    found[name] = value
    return Consumption(**found) if found else None  # type: ignore[arg-type]


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
        here = tree
        for line in self.own.read_text().splitlines():
            _, names, path = line.split(":", 2)
            if controller in names.split(","):
                here = tree / path.lstrip("/")
                break
        writable = [each for each in (here, *here.parents) if each.is_relative_to(tree) and os.access(each, os.W_OK)]
        return writable[-1] if writable else None


_MOUNTED = Trees()
"""Trees of this host."""


def make(name: str, options: ContainerOptions, trees: Trees = _MOUNTED) -> AttemptCgroups:
    """Create groups that list the attempt's processes and enforce its limits, as far as permitted."""
    base = trees.unified()
    folders: list[Path] = []
    notes: list[str] = []
    events = None
    if options.memory is not None:
        limits: dict[str, object] = {"memory.max": options.memory, "memory.swap.max": 0}
        if base is None:
            limits = {"memory.limit_in_bytes": options.memory, "memory.memsw.limit_in_bytes": options.memory}
        folder = _create_group(base or trees.of("memory"), name, limits, controller="memory" if base else "")
        if folder is None:
            notes.append("the memory limit is not enforced: this host lets gputui make no control group for it")
        else:
            folders.append(folder)
            events = str(folder / ("memory.events" if (folder / "memory.events").exists() else "memory.oom_control"))
    if options.cpus is not None or options.cpu_shares is not None:
        limits = _cpu_limits(options, is_unified=base is not None)
        folder = _create_group(base or trees.of("cpu"), name, limits, controller="cpu" if base else "")
        if folder is None:
            notes.append("the CPU limit is not enforced: this host lets gputui make no control group for it")
        elif folder not in folders:
            folders.append(folder)
    counting = tuple(str(each) for each in dict.fromkeys(_counting(name, trees)) if each not in folders)
    return AttemptCgroups((*map(str, folders), *counting), counting, events, tuple(notes))


def _cpu_limits(options: ContainerOptions, *, is_unified: bool) -> dict[str, object]:
    limits: dict[str, object] = {}
    quota = int(options.cpus * _PERIOD) if options.cpus is not None else None
    shares = options.cpu_shares
    if quota is not None:
        v1 = {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": quota}
        limits |= {"cpu.max": f"{quota} {_PERIOD}"} if is_unified else v1
    if shares is not None:  # version 2: the engine's own conversion, from 2..262144 to 1..10000
        weight = 1 + (min(max(shares, 2), 262144) - 2) * 9999 // 262142
        limits |= {"cpu.weight": weight} if is_unified else {"cpu.shares": shares}
    return limits


def _counting(name: str, trees: Trees) -> Iterator[Path]:
    base = trees.unified() or trees.beside()
    unified = None if base is None else _create_group(base, name)
    if base is not None and unified is not None:
        with suppress(OSError):  # let the kernel count memory and disk use there, if it does so above; else less is
            above = (base / "cgroup.subtree_control").read_text().split()
            switch = base / "gputui" / "cgroup.subtree_control"
            for controller in {"memory", "io"}.intersection(above).difference(switch.read_text().split()):
                switch.write_text(f"+{controller}")
        yield unified
    if trees.unified() is None:
        for controller in _COUNTERS if unified is not None else (*_COUNTERS, "cpuacct"):
            folder = _create_group(trees.of(controller), name)
            if folder is not None:
                yield folder


def members(folders: Iterable[str]) -> frozenset[int]:
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
    for place, (file, value) in enumerate(limits.items()):
        try:
            (folder / file).write_text(str(value))
        except OSError:
            if not place:
                remove([str(folder)])
                return None
    return folder
