"""Use of CPU, memory and disks by an attempt, from the files of its control groups.

Version 2: Documentation/admin-guide/cgroup-v2.rst in Linux; version 1: Documentation/admin-guide/cgroup-v1/. A group
counts only if its name shows that it belongs to the attempt: a container's contains its id, whatever `cgroup_parent`
and driver (`/docker/ID`, `/system.slice/docker-ID.scope`, …), a host job's the name of the attempt.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

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


def _usage(text: bytes) -> float | None:
    """Return the seconds of `usage_usec` in `cpu.stat`."""
    found = dict(line.split(b" ", 1) for line in text.splitlines() if b" " in line).get(b"usage_usec")
    return int(found) / 1e6 if found else None


def _nanoseconds(text: bytes) -> float | None:
    found = _number(text)
    return None if found is None else found / 1e9


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
    "cpu.stat": (("cpu", _usage),),
    "cpuacct.usage": (("cpu", _nanoseconds),),
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


class ConsumptionReader:
    """Reader of control groups, which searches for the files of an attempt once."""

    def __init__(self, mount: Path = MOUNT, proc: Path = _PROC) -> None:
        self._mount = mount
        self._proc = proc
        self._files: dict[str, tuple[str, ...]] = {}
        self._misses: dict[str, int] = {}

    def of_process(self, name: str, pid: int) -> Consumption | None:
        """Return the consumption of that process's groups whose names contain `name`; None if there are none."""
        if name not in self._files:
            groups = tuple(own_groups(name, pid, self._mount, self._proc))
            self._remember(name, files_in(groups or found_groups(name, self._mount)))
        return self._read(name)

    def of_groups(self, name: str, folders: Callable[[], Iterable[str]]) -> Consumption | None:
        """Return the consumption of these groups of an attempt."""
        if name not in self._files:
            self._remember(name, files_in(map(Path, folders())))
        return self._read(name)

    def _remember(self, name: str, files: tuple[str, ...]) -> None:
        if len(self._files) >= _KEPT:
            self._files.clear()
            self._misses.clear()
        self._files[name] = files

    def _read(self, name: str) -> Consumption | None:
        found = read_files(self._files[name])
        misses = self._misses.get(name, 0)
        if found is None and misses < _TRIES:  # its groups do not exist yet, or no longer
            self._misses[name] = misses + 1
            self._files.pop(name, None)
        return found


def own_groups(name: str, pid: int, mount: Path = MOUNT, proc: Path = _PROC) -> Iterator[Path]:
    """Yield the control groups of a process with that name, or those above them: it may have created subgroups."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = path.strip("/").split("/")
        place = next((at for at, part in enumerate(parts) if name in part), None)
        tree = _tree(controllers, mount)
        if place is not None and tree is not None and ".." not in parts:
            yield tree.joinpath(*parts[: place + 1])


def found_groups(name: str, mount: Path = MOUNT) -> Iterator[Path]:
    """Yield the control groups of that name if its process is in another PID namespace: one per hierarchy."""
    unified = (mount / "cgroup.controllers").exists()
    trees = [mount] if unified else [mount / tree for tree in ("cpuacct", "memory", "blkio", "unified")]
    for tree in trees:
        for place, below, _ in os.walk(tree):
            if len(Path(place).relative_to(tree).parts) >= _DEPTH - 1:
                below.clear()
            if (found := next((each for each in below if name in each), None)) is not None:
                yield Path(place, found)
                break


def _tree(controllers: str, mount: Path) -> Path | None:
    """Return the directory of a hierarchy; version 2 has no controllers in its line, and is the only one or `unified`.

    Controllers that share a hierarchy have a common directory, such as `cpu,cpuacct`, or identical ones.
    """
    if not controllers:
        return mount if (mount / "cgroup.controllers").exists() else mount / "unified"
    names = (controllers, *controllers.split(","))
    return next((mount / name for name in names if (mount / name).is_dir()), None)


def files_in(folders: Iterable[Path]) -> tuple[str, ...]:
    """Return the files of these groups that contain consumption."""
    return tuple(f"{folder}/{name}" for folder in folders for name in _names_in(folder))


def _names_in(folder: Path) -> list[str]:
    try:
        found = set(os.listdir(folder))  # noqa: PTH208 - each attempt has up to a dozen groups
    except OSError:
        return []
    if _VERSION_1 in found:
        found.discard("cpu.stat")
    return [name for name in _FILES if name in found]


def read_files(files: Iterable[str]) -> Consumption | None:
    """Return the consumption from these files; None if none can be read."""
    found: dict[str, float] = {}
    for path in files:
        text = _text(path)
        for name, read in _FILES[path.rpartition("/")[2]] if text is not None else ():
            try:
                value = read(text or b"")
            except (ValueError, IndexError):
                continue
            if value is not None:
                found[name] = value
    return Consumption(**found) if found else None  # type: ignore[arg-type]


def _text(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _MOST)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def at_the_end(folders: Iterable[str]) -> Consumption | None:
    """Return the consumption of groups whose processes have all ended; their memory is page cache, if any."""
    found = read_files(files_in(map(Path, folders)))
    return None if found is None else replace(found, memory=None)
