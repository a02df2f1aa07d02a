"""Processes on a GPU, listed by NVML, with facts from /proc. Part of the probe process.

pynvml calls the driver twice, for the number and for the list, and each call holds the driver's lock for milliseconds.
So the list is requested here in one call with room for the usual number, and through pynvml if that is too small.

Only new processes are read completely from /proc, later only their start times. Paths are strings because importing
pathlib takes milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import time

import pynvml

from gputui.gpus.probe.host import text_of
from gputui.gpus.probe.nvml import lacks, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_FUNCTIONS: dict[str, Any] = {}
"""Functions of the library by name; `CDLL` would open it again at every call."""
_ROOM = 64
"""Length of lists for which one call to the driver suffices."""
_UNKNOWN = 0xFFFFFFFFFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE: memory use is unknown."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
"""Docker, containerd, podman, CRI-O and kubelet all end in the container's full id: `/docker/<id>`,
`docker-<id>.scope`, `libpod-<id>.scope`, `cri-containerd-<id>.scope`, `/kubepods/…/<id>`."""
_OF_HOST = 4026531836
"""Inode of the kernel's first PID namespace: PROC_PID_INIT_INO."""
_LONGEST = 200
_TICKS = os.sysconf("SC_CLK_TCK")


def list_processes(
    handle: object, others: dict[int, tuple[int | None, bool]]
) -> list[tuple[int, int | None, bool]] | None:
    """Return pid, memory in bytes and whether it computes, for each process; None if the list cannot be read.

    `others` is the last result of `list_other_processes`.
    """
    found = _list("Compute", handle)
    if found is None:
        return None
    merged = dict(others)
    merged.update({pid: (memory, True) for pid, memory in found})
    return [(pid, memory, compute) for pid, (memory, compute) in merged.items()]


def cannot_list(handle: object) -> bool:
    """Return whether the driver has no list of processes at all, as under WSL 2."""
    return lacks("nvmlDeviceGetComputeRunningProcesses", handle, ask=_ask_once)


def list_other_processes(handle: object) -> dict[int, tuple[int | None, bool]]:
    """Return graphics processes and MPS clients. These lists are as expensive as the main one and seldom change."""
    drawing = _list("Graphics", handle) or []
    clients = _list("MPSCompute", handle) or []
    merged: dict[int, tuple[int | None, bool]] = {pid: (memory, False) for pid, memory in drawing}
    merged.update({pid: (memory, True) for pid, memory in clients})
    return merged


def _list(kind: str, handle: object) -> list[tuple[int, int | None]] | None:
    """Return pid and memory of each process; None when the list cannot be read."""
    found = read(f"nvmlDeviceGet{kind}RunningProcesses", handle, ask=_ask_once)
    return None if found is None else [(p.pid, None if p.usedGpuMemory == _UNKNOWN else p.usedGpuMemory) for p in found]


def _ask_once(name: str, handle: object) -> Any:
    """Return the list, with a single call to the driver unless it is longer than `_ROOM`."""
    try:
        function = _function(f"{name}_v3")
        room = (pynvml.c_nvmlProcessInfo_v3_t * _ROOM)()
    except (AttributeError, OSError):  # another pynvml, or an old driver
        return getattr(pynvml, name)(handle)
    count = ctypes.c_uint(_ROOM)
    code = function(handle, ctypes.byref(count), room)
    if code == pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
        return getattr(pynvml, name)(handle)
    if code != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(code)
    return room[: count.value]


def _function(name: str) -> Any:
    """Return a function of the NVML library, which pynvml has loaded; raises AttributeError if it is missing."""
    if name not in _FUNCTIONS:
        _FUNCTIONS[name] = getattr(ctypes.CDLL(_LIBRARY), name)
    return _FUNCTIONS[name]


class ProcessFacts:
    """Facts about processes by pid, cached while they live."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._known: dict[int, tuple[str, dict[str, object]]] = {}
        self._asked: set[int] = set()
        self._users: dict[int, str] = {}
        self._own = frozenset(container_ids(self._text("self", "cgroup")))

    def facts(self, pid: int) -> dict[str, object]:
        """Return user, command, container, session, attempt and start; `visible` is False for a pid not found here."""
        self._asked.add(pid)
        fields = stat_fields(self._text(pid, "stat"))
        if fields is None:
            self._known.pop(pid, None)
            return {"visible": False}
        session, started = fields
        known = self._known.get(pid)
        if known is None or known[0] != started:
            known = self._known[pid] = (started, self._read_facts(pid, session) | _start(int(started)))
        return known[1]

    def forget_unseen(self) -> None:
        """Drop facts of processes that were not requested since the last call: they left their GPUs."""
        for pid in self._known.keys() - self._asked:
            del self._known[pid]
        self._asked.clear()

    def is_hosts_namespace(self) -> bool:
        """Return whether this process sees the host's pids, which are the driver's."""
        try:
            return os.stat(f"{self._root}/self/ns/pid").st_ino == _OF_HOST  # noqa: PTH116
        except OSError:
            return True

    def _read_facts(self, pid: int, session: int) -> dict[str, object]:
        inside = [found for found in container_ids(self._text(pid, "cgroup")) if found not in self._own]
        return {
            "user": self._user(pid),
            "command": short_command(self._text(pid, "cmdline")) or self._text(pid, "comm").strip() or None,
            "container_id": inside[0] if inside else None,  # the outermost container, which this host's engine knows
            "session": session,
            "attempt": attempt_of(self._text(pid, "environ")),
        }

    def _user(self, pid: int) -> str | None:
        try:
            uid = os.stat(f"{self._root}/{pid}").st_uid  # noqa: PTH116
        except OSError:
            return None
        if uid not in self._users:
            try:
                self._users[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def _text(self, pid: int | str, name: str) -> str:
        return text_of(f"{self._root}/{pid}/{name}")


def _start(ticks: int) -> dict[str, object]:
    """Return the start as ticks since boot, and as the time that the clock shows for it, in whole seconds."""
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / _TICKS
    started = time.gmtime(round(time.time() - age))
    return {"ticks": ticks, "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", started)}


def stat_fields(text: str) -> tuple[int, str] | None:
    """Return session and start time from /proc/<pid>/stat, whose command may contain brackets and spaces."""
    fields = text.rpartition(")")[2].split(None, 20)
    return (int(fields[3]), fields[19]) if len(fields) > 19 else None


def container_ids(cgroup: str) -> list[str]:
    """Return the ids of the containers of a process, outermost first, from the cgroup line with the most ids."""
    return max((_CONTAINER.findall(line) for line in cgroup.splitlines()), key=len, default=[])


def short_command(cmdline: str) -> str:
    """Return the command line without the program's directory, cut to 200 characters."""
    words = cmdline.rstrip("\0").split("\0")
    words[0] = words[0].rpartition("/")[2] or words[0]
    return " ".join(words)[:_LONGEST]


def attempt_of(environ: str) -> str | None:
    """Return the value of GPUTUI_ATTEMPT; None without it."""
    return next((word[15:] for word in environ.split("\0") if word.startswith("GPUTUI_ATTEMPT=")), None)
