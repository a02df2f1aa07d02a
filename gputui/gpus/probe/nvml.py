"""GPUs by NVML: the list, readings (None if the driver has none), links and processes. Part of the probe process.

Field numbers, units and scopes are those of nvml.h.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import re
import time

import pynvml

from gputui.gpus.probe.calls import CALLS
from gputui.gpus.probe.host import memory_total, text_of

TYPE_CHECKING = False  # `typing` itself takes longer to import than a sweep takes
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

_LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND})
_LACKING = frozenset({pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND})
_GONE = frozenset({pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
_RECOVERY_FIELD = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, missing in older nvidia-ml-py."""
_SENT = 138
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: KiB of payload, without protocol overhead."""
_RECEIVED = 139
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, in KiB of payload."""
_ALL_LINKS = 0xFFFFFFFF
_MEMBERS = {1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}
"""Integer members of nvmlValue_t by nvmlValueType_t."""
_PATIENCE = 1.0
"""Seconds between requests for process samples, since the driver has no newer ones before that."""


class LostError(Exception):
    """The driver has lost the GPU."""


def error_text(error: Exception) -> str:
    """Return the driver's text for an error, with NVML's error number."""
    number = getattr(error, "value", None)
    return f"{error} (NVML error {number})" if number else str(error) or "the GPU is lost"


def by_name(name: str, *arguments: object) -> Any:
    """Call pynvml's function of that name; raises NVMLError if an older pynvml has none.

    Bytes that are not UTF-8, which pynvml cannot decode, are replaced.
    """
    function = getattr(pynvml, name, None)
    if function is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    try:
        return function(*arguments)
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def call(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> Any:
    """Return the result of a function; raises LostError or NVMLError, the latter too if it is to be skipped."""
    if not CALLS.begin(name, arguments):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
    try:
        return ask(name, *arguments)
    except pynvml.NVMLError as error:
        if error.value in _LOST:
            raise LostError from None
        raise
    finally:
        CALLS.end()


def read(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> Any:
    """Return the result, or None if the function fails; raises LostError, and NVMLError if the driver is gone."""
    try:
        return call(name, *arguments, ask=ask)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise
        return None


def lacks(name: str, *arguments: object, ask: Callable[..., Any] = by_name) -> bool:
    """Return whether the function fails because this GPU or driver has no such value; raises LostError."""
    try:
        call(name, *arguments, ask=ask)
    except pynvml.NVMLError as error:
        return error.value in _LACKING
    return False


def light_readings(handle: object) -> dict[str, object]:
    """Return the readings of every second: about ten calls that take microseconds."""
    rates = read("nvmlDeviceGetUtilizationRates", handle)
    memory = memory_of(handle)
    power = read("nvmlDeviceGetPowerUsage", handle)
    temperature = read("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU)
    if temperature is None:
        temperature = read("nvmlDeviceGetTemperatureV", handle, pynvml.NVML_TEMPERATURE_GPU)
    clocks = {
        "sm_clock": read("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM),
        "memory_clock": read("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM),
    }
    throttle = read("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if throttle is None:
        throttle = read("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return {
        "utilization": rates and rates.gpu / 100,
        "memory_utilization": rates and rates.memory / 100,
        "memory_used": memory and memory.used,
        "memory_total": (memory and memory.total) or None,
        "temperature": temperature,
        "power": None if power is None else power / 1000,
        **clocks,
        "throttle": throttle,
    }


def memory_of(handle: object) -> Any:
    """Return the memory info; version 2 of the call does not count the driver's own reserve as `used`."""
    version = getattr(pynvml, "nvmlMemory_v2", None)
    found = read("nvmlDeviceGetMemoryInfo", handle, version) if version else None
    return found or read("nvmlDeviceGetMemoryInfo", handle)


def slow_readings(handle: object) -> dict[str, object]:
    """Return readings that seldom change: memory errors, remapped rows, recovery action, power limit, fan."""
    rows = read("nvmlDeviceGetRemappedRows", handle)
    fan = read("nvmlDeviceGetFanSpeed", handle)
    corrected, uncorrected = (
        read("nvmlDeviceGetTotalEccErrors", handle, kind, pynvml.NVML_VOLATILE_ECC)
        for kind in (pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    )
    values = read("nvmlDeviceGetFieldValues", handle, [_RECOVERY_FIELD])
    has_recovery = values and values[0].nvmlReturn == pynvml.NVML_SUCCESS
    return {
        "ecc_corrected": corrected,
        "ecc_uncorrected": uncorrected,
        "remap_pending": rows and bool(rows[2]),
        "remap_failed": rows and bool(rows[3]),
        "recovery": int(values[0].value.uiVal) if has_recovery else None,
        "power_limit": power_limit(handle),
        "fan": None if fan is None else fan / 100,
    }


def power_limit(handle: object) -> float | None:
    """Return the enforced power limit in watts."""
    limit = read("nvmlDeviceGetEnforcedPowerLimit", handle)
    limit = read("nvmlDeviceGetPowerManagementLimit", handle) if limit is None else limit
    return None if limit is None else limit / 1000


def default_power_limit(handle: object) -> float | None:
    """Return the power limit in watts that the board has without anybody's settings."""
    limit = read("nvmlDeviceGetPowerManagementDefaultLimit", handle)
    return None if limit is None else limit / 1000


def pcie_throughput(handle: object) -> dict[str, object]:
    """Return PCIe throughput in bytes per second. The driver measures each direction for 20 ms."""
    sent = read("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = read("nvmlDeviceGetPcieThroughput", handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return {"pcie_tx": sent and sent * 1024, "pcie_rx": received and received * 1024}


class DetailReadings:
    """Detail readings of the GPU that a console shows: NVLink throughput and shares of processes.

    Rates are differences between two readings.
    """

    def __init__(self, uuid: str | None = None) -> None:
        self.uuid = uuid
        self._counted: dict[int, int] = {}
        self._counted_at = 0.0
        self._shares: dict[int, float] = {}
        self._shares_at = 0.0
        self._newest = 0

    def nvlink(self, handle: object) -> dict[str, object]:
        """Return NVLink throughput in bytes per second since the last call; None at first and after a counter reset."""
        before, since = self._counted, self._counted_at
        values = read("nvmlDeviceGetFieldValues", handle, [(_SENT, _ALL_LINKS), (_RECEIVED, _ALL_LINKS)]) or ()
        self._counted = {  # KiB since the driver was loaded; without what this GPU does not count
            value.fieldId: int(getattr(value.value, _MEMBERS[value.valueType]))
            for value in values
            if value.nvmlReturn == pynvml.NVML_SUCCESS and value.valueType in _MEMBERS
        }
        self._counted_at = time.monotonic()
        seconds = self._counted_at - since

        def rate(field: int) -> float | None:
            more = self._counted.get(field, -1) - before.get(field, 1 << 64)
            return more * 1024 / seconds if more >= 0 and seconds > 0 else None

        return {"nvlink_tx": rate(_SENT), "nvlink_rx": rate(_RECEIVED)}

    def shares(self, handle: object) -> dict[int, float]:
        """Return the fraction of time, 0 to 1, in which each sampled process kept the multiprocessors busy."""
        now = time.monotonic()
        if not self._shares_at or now - self._shares_at >= _PATIENCE:
            self._shares_at = now
            samples = read("nvmlDeviceGetProcessUtilization", handle, self._newest) or ()
            latest = sorted((sample.timeStamp, sample.pid, sample.smUtil) for sample in samples)
            self._newest = max(self._newest, latest[-1][0]) if latest else self._newest
            # some drivers report values above 100 for processes that have just started
            self._shares = {pid: percent / 100 for _, pid, percent in latest if percent <= 100}
        return self._shares


_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names of nvmlGpuTopologyLevel_t as in `nvidia-smi topo -m`; two GPUs of one board count as PIX."""
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)
_INTEGRATED = re.compile(r"\b(?:GB10|Thor|Orin|Xavier|Tegra|nvgpu)\b")
"""Names of GPUs in one package with the processor, whose memory they share: DGX Spark and the Jetsons."""
_ATS = 2
"""NVML_DEVICE_ADDRESSING_MODE_ATS: processor and GPU use one set of page tables."""
_EXACT, _NEAR = 2**26, 0.05
"""Bytes, and the share, by which a GPU's memory may differ from the machine's to be taken for it; the latter only with
ATS, because a machine may well have about as much memory as a board."""
_INSTANCE = "nvmlDeviceGetMigDeviceHandleByIndex"
_MOST_INSTANCES = 64
_MOST_LANES = getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)


class Device:
    """GPU or MIG instance as the driver lists it."""

    __slots__ = ("error", "handle", "index", "mig", "parent", "place", "unified", "uuid")

    def __init__(self, index: int, uuid: str, handle: object, error: str = "", parent: Device | None = None) -> None:
        self.index = index
        self.uuid = uuid
        self.handle = handle
        """NVML handle; None when there is none: the library crashes on a NULL handle."""
        self.error = error
        """`lost`, or why it cannot be identified; empty if all is well."""
        self.parent = parent
        self.place: int | None = None
        """Index among its parent's MIG instances."""
        self.mig = False
        self.unified = False
        """True if it has no memory of its own and uses the machine's."""

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that cause the facts to be sent again when they change."""
        return (self.index, self.uuid, self.error, self.mig, self.unified, self.parent and self.parent.uuid)


def list_devices() -> list[Device]:
    """Return all devices, MIG instances after their parents; raises NVMLError when they cannot be counted.

    One that cannot be identified has an error, and a placeholder for its UUID.
    """
    devices: list[Device] = []
    for index in range(call("nvmlDeviceGetCount")):
        device = Device(index, f"GPU-unknown-{index}", None)
        try:
            device.handle = call("nvmlDeviceGetHandleByIndex", index)
            CALLS.name(device.handle, str(index))
            device.unified = _is_unified(device.handle)
            uuid = call("nvmlDeviceGetUUID", device.handle)
        except LostError:
            device.handle, device.error = None, "lost"
        except pynvml.NVMLError as error:
            device.error = error_text(error)
        else:
            if _UUID.fullmatch(uuid):
                device.uuid = uuid
            else:
                device.error = f"the driver calls it {uuid!r}, which is no UUID"
        for each in (device, *_instances(device)):
            twin = next((other for other in devices if other.uuid == each.uuid), None)
            if twin is not None:  # a job that is given it could get the other
                each.error = f"it has the UUID of GPU {twin.index}, {each.uuid}, so no job can be given it"
                each.uuid = f"GPU-unknown-{each.index}" + ("" if each.place is None else f"-{each.place}")
            devices.append(each)
    return devices


def _is_unified(handle: object) -> bool:
    """Return whether a GPU uses the machine's memory: the driver reports none, or that of the machine."""
    memory = memory_of(handle)
    if memory is None:
        return lacks("nvmlDeviceGetMemoryInfo", handle)
    total, machine = int(memory.total), memory_total() or 0
    if not total or abs(total - machine) <= _EXACT or _INTEGRATED.search(read("nvmlDeviceGetName", handle) or ""):
        return True
    is_near = abs(total - machine) <= _NEAR * machine
    return is_near and bool(read("nvmlDeviceGetAddressingMode", handle) == _ATS)


def _instances(parent: Device) -> list[Device]:
    if parent.handle is None:
        return []
    try:
        mode = read("nvmlDeviceGetMigMode", parent.handle)
        is_off = mode is not None and not mode[0]
        most = 0 if is_off else read("nvmlDeviceGetMaxMigDeviceCount", parent.handle)
        places = {place: read(_INSTANCE, parent.handle, place) for place in range(min(most or 0, _MOST_INSTANCES))}
        for place, handle in places.items():
            if handle is not None:
                CALLS.name(handle, f"{parent.index}m{place}")
        found = [(n, handle, read("nvmlDeviceGetUUID", handle)) for n, handle in places.items() if handle is not None]
    except LostError:
        return []  # the next sweep reports it for the parent
    parent.mig = bool(mode[0] if mode is not None else found)
    instances = []
    for place, handle, uuid in found:
        is_named = _UUID.fullmatch(uuid or "") is not None
        error = "" if is_named else f"the driver calls it {uuid or ''!r}, which is no UUID"
        name = uuid if is_named else f"GPU-unknown-{parent.index}-{place}"
        instances.append(device := Device(parent.index, name, handle, error, parent))
        device.place = place
    return instances


def device_facts(device: Device, links: list[dict[str, object]]) -> dict[str, object]:
    """Return the facts that are constant while the driver runs, as far as they can be read."""
    result: dict[str, object] = {"index": device.index, "uuid": device.uuid, "error": device.error, "links": links}
    if device.parent is not None:
        result.update(mig_parent=device.parent.uuid, mig_index=device.place)
    if (handle := device.handle) is None:
        return result
    try:
        memory = None if device.unified else memory_of(handle)
        if device.parent is not None:
            name = read("nvmlDeviceGetName", handle) or ""
            attributes = read("nvmlDeviceGetAttributes", handle)
            model, _, profile = name.partition(" MIG ")
            if attributes and not profile:  # compute slices and memory in whole GB, as the driver names it
                profile = f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"
            return {
                **result,
                "model": model or None,
                "memory_total": (memory and memory.total) or (attributes and attributes.memorySizeMB * 2**20) or None,
                "mig_profile": profile or None,
            }
        persistence = read("nvmlDeviceGetPersistenceMode", handle)
        return {
            **result,
            "model": read("nvmlDeviceGetName", handle),
            "memory_total": memory_total() if device.unified else memory and memory.total,
            "unified": device.unified,
            "pci_bus_id": bus_id(read("nvmlDeviceGetPciInfo", handle)),
            "numa_node": read("nvmlDeviceGetNumaNodeId", handle),
            "minor": read("nvmlDeviceGetMinorNumber", handle),
            "mig_enabled": device.mig,
            "power_limit": power_limit(handle),
            "default_power_limit": default_power_limit(handle),
            "persistence": None if persistence is None else bool(persistence),
        }
    except LostError:
        return {**result, "error": "lost"}


def bus_id(pci: Any) -> str | None:
    """Return the PCI bus id, like `00000000:1A:00.0`."""
    if pci is None:
        return None
    try:
        text = pci.busId
    except UnicodeDecodeError as error:
        text = error.object
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


def links_of(devices: list[Device]) -> Iterator[dict[str, list[dict[str, object]]] | None]:
    """Yield None after each few calls, and at last the links of each GPU to every other one, by UUID.

    There are many calls, and sweeps must not wait for all of them. MIG instances have no links.
    """
    whole = [device for device in devices if device.parent is None and device.handle is not None]
    places = {bus_id(_quietly("nvmlDeviceGetPciInfo", device.handle)): device.uuid for device in whole}
    lanes: dict[str, dict[str, int]] = {}
    for device in whole:
        lanes[device.uuid] = yield from _lanes(device, places)
    links: dict[str, list[dict[str, object]]] = {device.uuid: [] for device in whole}
    for one, other in itertools.permutations(whole, 2):
        mine, theirs = lanes[one.uuid], lanes[other.uuid]
        if joined := mine.get(other.uuid, 0) or min(mine.get("switch", 0), theirs.get("switch", 0)):
            links[one.uuid].append({"peer": other.uuid, "kind": "NVLINK", "lanes": joined})
        else:
            level = _quietly("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
            if isinstance(level, int) and (path := _PATHS.get(level)):
                links[one.uuid].append({"peer": other.uuid, "kind": path})
        yield None
    yield links


def _lanes(device: Device, places: dict[str | None, str]) -> Generator[None, None, dict[str, int]]:
    """Return the number of active NVLink lanes by the UUID at their other end; `switch` for an NVSwitch."""
    counted: dict[str, int] = {}
    for lane in range(_MOST_LANES):
        yield
        try:
            if not call("nvmlDeviceGetNvLinkState", device.handle, lane):
                continue
        except (pynvml.NVMLError, LostError):
            break  # no such lane, or no NVLink at all
        end = places.get(bus_id(_quietly("nvmlDeviceGetNvLinkRemotePciInfo", device.handle, lane)))
        if end is None:
            kind = _quietly("nvmlDeviceGetNvLinkRemoteDeviceType", device.handle, lane)
            end = "switch" if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH else "elsewhere"
        counted[end] = counted.get(end, 0) + 1
    return counted


def _quietly(name: str, *arguments: object) -> object:
    try:
        return read(name, *arguments)
    except LostError:
        return None


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
        if name not in _FUNCTIONS:  # of the library that pynvml has loaded
            _FUNCTIONS[name] = getattr(ctypes.CDLL(_LIBRARY), f"{name}_v3")
        function = _FUNCTIONS[name]
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


class ProcessFacts:
    """Facts about processes by pid, cached while they live."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._known: dict[int, tuple[str, dict[str, object]]] = {}
        self._asked: set[int] = set()
        self._users: dict[int, str] = {}
        self._own = frozenset(container_ids(self._text("self", "cgroup")))

    def facts(self, pid: int) -> dict[str, object]:
        """Return user, command, container, session, attempt and start; `visible` is False for a pid not found here.

        The start is ticks since boot, and the time that the clock shows for it, in whole seconds.
        """
        self._asked.add(pid)
        fields = stat_fields(self._text(pid, "stat"))
        if fields is None:
            self._known.pop(pid, None)
            return {"visible": False}
        session, started = fields
        known = self._known.get(pid)
        if known is not None and known[0] == started:
            return known[1]
        inside = [found for found in container_ids(self._text(pid, "cgroup")) if found not in self._own]
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / _TICKS
        facts: dict[str, object] = {
            "user": self._user(pid),
            "command": short_command(self._text(pid, "cmdline")) or self._text(pid, "comm").strip() or None,
            "container_id": inside[0] if inside else None,  # the outermost container, which this host's engine knows
            "session": session,
            "attempt": attempt_of(self._text(pid, "environ")),
            "ticks": int(started),
            "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(round(time.time() - age))),
        }
        self._known[pid] = (started, facts)
        return facts

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
