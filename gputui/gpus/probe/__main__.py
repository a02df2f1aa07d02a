"""The probe process: `python -m gputui.gpus.probe [SAMPLE PROCESSES SLOW [DIRECTORY [PATIENCE [FD SKIPPED]]]]`.

On another machine, which has no gputui, it runs from source that `gputui.gpus.remote_probe` sends: Python 3.8 must do.

The first three and PATIENCE are seconds.
It keeps NVML open and writes one JSON line a sweep to stdout: `facts` (what does not change), `sweep` (readings) or
`failed` (why it ends), and `calls` if asked to; `gputui.gpus.readings` reads them. Commands on stdin: `refresh`,
`pcie UUID|-` (the GPU shown in detail), `shares UUID...` (GPUs whose processes are told apart), and `disks` with
{ROLE: PATH} as JSON (paths whose file systems are read). Others, such as `alive`, do nothing. It ends when stdin does,
or after PATIENCE without a command: the end of a connection that was cut may not be told.
It is a process of its own because a call stuck in the driver can be
neither cancelled nor waited for, and it imports as little as possible because every start of a console waits for it.
GPUs have performance counters from Hopper on. The driver compares two samples, so a reading of them is the mean over
the time between them.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time

import pynvml

from gputui.gpus.probe.calls import CALLS, UNSHARED
from gputui.gpus.probe.host import GroupUse, HostReader
from gputui.gpus.probe.nvml import (
    DetailReadings,
    Device,
    LostError,
    ProcessFacts,
    call,
    cannot_list,
    device_facts,
    error_text,
    light_readings,
    links_of,
    list_devices,
    list_other_processes,
    list_processes,
    pcie_throughput,
    read,
    slow_readings,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gputui.gpus.probe.host import ReadGroup
    from gputui.gpus.probe.nvml import Device


_SM, _MEMORY = 2, 10
"""NVML_GPM_METRIC_SM_UTIL and NVML_GPM_METRIC_DRAM_BW_UTIL, both in percent."""

_UNKNOWN = {"sm_activity": None, "memory_activity": None}


class ActivityReader:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._whole = device.parent or device
        self._instance = read("nvmlDeviceGetGpuInstanceId", device.handle) if device.parent else None
        self._last: Any = None
        self._spare: Any = None
        support = read("nvmlGpmQueryDeviceSupport", self._whole.handle)
        is_known = device.parent is None or self._instance is not None
        self._is_supported = bool(support and support.isSupportedDevice and is_known)

    def read(self) -> dict[str, object]:
        """Return the means since the last call, 0 to 1, None at the first; empty if the GPU has no counters."""
        if not self._is_supported:
            return {}
        taken = self._spare or read("nvmlGpmSampleAlloc")  # None if the driver provides none
        if taken is not None and self._instance is None:
            taken = read("nvmlGpmSampleGet", self._whole.handle, taken)
        elif taken is not None:
            taken = read("nvmlGpmMigSampleGet", self._whole.handle, self._instance, taken)
        self._last, self._spare, before = taken, self._last, self._last
        if taken is None or before is None:
            return dict(_UNKNOWN)
        wanted = pynvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 2
        wanted.sample1, wanted.sample2 = before, taken
        wanted.metrics[0].metricId, wanted.metrics[1].metricId = _SM, _MEMORY
        if read("nvmlGpmMetricsGet", wanted) is None:
            return dict(_UNKNOWN)
        return {"sm_activity": _share(wanted.metrics[0]), "memory_activity": _share(wanted.metrics[1])}

    def close(self) -> None:
        for sample in filter(None, (self._last, self._spare)):
            read("nvmlGpmSampleFree", sample)
        self._last = self._spare = None


def _share(metric: Any) -> float | None:
    value = float(metric.value)
    is_known = metric.nvmlReturn == pynvml.NVML_SUCCESS and value >= 0  # a NaN compares as False
    return min(1.0, value / 100) if is_known else None


ALL_SHARES = "GPU-all"
"""Same value as in `domain.gpu`, which takes long to import."""


class ProbeFailedError(Exception):
    """Failure that ends the probe: a code of domain.gpu.ProbeCode and the driver's text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class RestartRequired(Exception):  # noqa: N818 - nothing went wrong
    """The kernel module drives other GPUs than when NVML was initialised, which counts them only then."""


_FIRST_LINKS, _MORE_LINKS = 1.0, 0.1
"""Seconds for which links are read before the first regular sweep, and after each later one."""


class Due:
    """Interval timer without drift; fires up to `slack` seconds early rather than a whole sweep late."""

    def __init__(self, interval: float, slack: float = 0.0) -> None:
        self.interval = interval
        self.slack = min(slack, interval / 2)
        self.at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether the interval has passed; if so, start the next one."""
        if now < self.at - self.slack:
            return False
        on_time = self.at + self.interval
        self.at = on_time if now < on_time else now + self.interval
        return True


class Probe:
    """Sweeps over all GPUs, written as lines to stdout."""

    def __init__(
        self, sample: float, process: float, seldom: float, directory: str, groups: GroupUse | None = None
    ) -> None:
        """`groups` adds to processes what their control groups have used."""
        self._groups = groups
        self._directory = directory
        self._driven = driven_gpus(directory)
        self.sample = Due(sample)
        self.process = Due(process, slack=sample / 2)
        self.slow = Due(seldom, slack=sample / 2)
        self._devices: list[Device] = []
        self._processes = ProcessFacts()
        self._others: dict[str, dict[int, tuple[int | None, bool]]] = {}
        self._links: dict[str, list[dict[str, object]]] = {}
        self._linking: Iterator[dict[str, list[dict[str, object]]] | None] = iter(())
        self._xids = Xids([])
        self._focus = DetailReadings()
        self._activity: dict[str, ActivityReader] = {}
        self._sharing: dict[str, DetailReadings] = {}
        """Readings of the GPUs with wanted process shares, except the GPU in focus."""
        self.shared: frozenset[str] = frozenset()
        """UUIDs of GPUs that several jobs hold; shares of their processes are always wanted."""
        self.host = HostReader()

    def begin(self) -> None:
        self._relist(_list_cards())
        emit(self._sweep(lists=False, seldom=False))
        emit(self._sweep(lists=True, seldom=True))
        self._read_links(_FIRST_LINKS)
        now = time.monotonic()
        for due in (self.sample, self.process, self.slow):
            due.is_due(now)

    def step(self, now: float, *, refresh: bool, pcie_of: str | None) -> None:
        """Write a requested sweep, with process lists but without slow readings; then the sweep that is due."""
        if pcie_of != self._focus.uuid:
            self._focus, self._sharing = DetailReadings(pcie_of), {}
        if refresh:
            emit(self._sweep(lists=True, seldom=False))
        if not self.sample.is_due(now):
            return
        seldom = self.slow.is_due(now)
        if seldom:
            if driven_gpus(self._directory) != self._driven:
                raise RestartRequired
            devices = _list_cards()
            if [device.identity for device in devices] != [device.identity for device in self._devices]:
                self._relist(devices)
        emit(self._sweep(lists=self.process.is_due(now), seldom=seldom, pcie_of=pcie_of))
        self._read_links(_MORE_LINKS)

    def watch_disks(self, paths: dict[str, str]) -> None:
        """Read the file systems of these paths from now on, at once the first time."""
        self.host.disks.paths = paths
        self.host.disks.request()

    def _relist(self, devices: list[Device]) -> None:
        pending = self._xids.collect()
        self._xids.close()
        for reader in self._activity.values():
            try:
                reader.close()
            except LostError:
                continue
        self._devices, self._activity = devices, {}
        self._xids = Xids(devices)
        self._links, self._linking = {}, links_of(devices)
        self._others = {}
        self._send_facts()
        if pending:
            emit({"kind": "sweep", "xids": pending})

    def _read_links(self, seconds: float) -> None:
        """Go on reading the links for so long, and write them once all are known."""
        until = time.monotonic() + seconds
        for found in self._linking:
            if found is not None and any(found.values()):
                self._links = found
                self._send_facts()
            if time.monotonic() >= until:
                return

    def _send_facts(self) -> None:
        result = [device_facts(device, self._links.get(device.uuid, [])) for device in self._devices]
        versions = {"driver": read("nvmlSystemGetDriverVersion"), "cuda": read("nvmlSystemGetCudaDriverVersion_v2")}
        emit({"kind": "facts", **versions, "gpus": result})

    def _sweep(self, *, lists: bool, seldom: bool, pcie_of: str | None = None) -> dict[str, object]:
        result: dict[str, object] = {
            "kind": "sweep",
            "samples": [self._reading(device, lists=lists, seldom=seldom, pcie_of=pcie_of) for device in self._devices],
            "xids": self._xids.collect(),
        }
        if lists:
            result["lists"], result["clock"] = True, time.time()
            result["hosts_pids"] = self._processes.is_hosts_namespace()
            self._processes.forget_unseen()
            if self._groups is not None:
                self._groups.forget_unseen()
            result["host"] = self.host.read(time.monotonic(), seldom=seldom)
        return result

    def _reading(self, device: Device, *, lists: bool, seldom: bool, pcie_of: str | None) -> dict[str, object]:
        result: dict[str, object] = {"uuid": device.uuid, "unidentified": device.error}
        if device.handle is None:
            return {"uuid": device.uuid, "error": device.error}
        try:
            result.update(light_readings(device.handle))
            if device.unified:  # what the driver reports, if anything, is the machine's
                result.update(memory_used=None, memory_total=None)
            if device.uuid == pcie_of:
                result.update(pcie_throughput(device.handle))
            if device.uuid == self._focus.uuid:
                result.update(self._focus.nvlink(device.handle))
            if seldom:
                result["slow"] = slow_readings(device.handle)
                self._others[device.uuid] = list_other_processes(device.handle)
            if lists:
                if device.uuid not in self._activity:
                    self._activity[device.uuid] = ActivityReader(device)
                result.update(self._activity[device.uuid].read())
                result["processes"] = processes = self._list(device)
                result["lists_processes"] = processes is not None or not cannot_list(device.handle)
        except LostError:
            return {"uuid": device.uuid, "error": "lost"}
        return result

    def _list(self, device: Device) -> list[dict[str, object]] | None:
        found = list_processes(device.handle, self._others.get(device.uuid, {}))
        if found is None:
            return None
        details, uuid = None, device.uuid
        if uuid == self._focus.uuid:
            details = self._focus
        elif self._focus.uuid == ALL_SHARES or uuid in self.shared:
            details = self._sharing.setdefault(uuid, DetailReadings(uuid))
        shares = details.shares(device.handle) if details is not None else {}
        processes = []
        for pid, memory, compute in found:
            process: dict[str, object] = {"pid": pid, "memory": memory, "compute": compute}
            if pid in shares:
                process["sm"] = shares[pid]
            facts = self._processes.facts(pid)
            process.update(facts)
            if self._groups is not None and facts.get("visible", True):
                container_id = facts["container_id"]
                used = self._groups.of(pid, str(container_id) if container_id else None, time.monotonic())
                process.update({"used": used[0], "used_age": round(used[1], 3)} if used is not None else {})
            processes.append(process)
        return processes


def driven_gpus(directory: str) -> frozenset[str] | None:
    """Return the GPUs that the kernel module drives; None if it does not report them."""
    try:
        return frozenset(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return None


def _list_cards() -> list[Device]:
    try:
        devices = list_devices()
    except (pynvml.NVMLError, LostError) as error:
        raise ProbeFailedError("CountFailed", error_text(error)) from None
    if not devices:
        raise ProbeFailedError("NoGpus", "")
    return devices


_WRITING = threading.Lock()


def emit(line: dict[str, object]) -> None:
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    with _WRITING:
        while data:
            data = data[os.write(1, data) :]


def tell_calls() -> None:
    """Write `calls` every second, for a supervisor that cannot share memory; end the process when nobody listens.

    It runs as a thread, which goes on while a call to the driver hangs.
    """
    ends = select.poll()
    ends.register(0, select.POLLRDHUP)
    try:
        emit(CALLS.line())
        while not ends.poll(1000):
            emit(CALLS.line())
    finally:
        os._exit(0)


class Xids:
    """Event set with all GPUs that support events."""

    def __init__(self, devices: list[Device]) -> None:
        self._set: object = read("nvmlEventSetCreate")
        self._uuids: dict[int, str] = {}
        for device in devices:
            if self._set is not None and device.parent is None and device.handle is not None:
                self._uuids[_address(device.handle)] = device.uuid
                try:
                    read("nvmlDeviceRegisterEvents", device.handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
                except LostError:
                    continue

    def collect(self) -> list[tuple[str | None, int]]:
        """Return UUID (None if the driver does not name it) and code of each event since the last call."""
        found: list[tuple[str | None, int]] = []
        while self._set is not None and len(found) < 100:
            try:
                event = call("nvmlEventSetWait_v2", self._set, 0)
            except (pynvml.NVMLError, LostError):
                break  # no event, or a lost GPU, which the sweep reports itself
            uuid = self._uuids.get(_address(event.device))
            if uuid is None and event.device:
                try:
                    named = read("nvmlDeviceGetUUID", event.device)
                    uuid = None if named is None else str(named)
                except LostError:
                    uuid = None
            found.append((uuid, int(event.eventData)))
        return found

    def close(self) -> None:
        if self._set is not None:
            read("nvmlEventSetFree", self._set)
            self._set = None


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


_PR_SET_PDEATHSIG = 1
_DRIVERS_LIST = "/proc/driver/nvidia/gpus"
"""Directory in which the kernel module has a directory per GPU."""
_FAILURES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NoLibrary",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "DriverMismatch",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "DriverNotLoaded",
    pynvml.NVML_ERROR_UNINITIALIZED: "DriverNotLoaded",
    pynvml.NVML_ERROR_NO_PERMISSION: "NoPermission",
    pynvml.NVML_ERROR_UNKNOWN: "UnknownError",
    pynvml.NVML_ERROR_OPERATING_SYSTEM: "Blocked",
    pynvml.NVML_ERROR_RESET_REQUIRED: "ResetRequired",
}


class Commands:
    def __init__(self, patience: int = 0) -> None:
        self._patience = patience
        signal.alarm(patience)  # it ends the process, also while that waits for a reader of its output
        self.refresh = False
        self.pcie: str | None = None
        self.disks: dict[str, str] | None = None
        """Paths by role that arrived since the last sweep."""
        self.shared: frozenset[str] = frozenset()
        """UUIDs of the GPUs for which shares of processes are wanted."""
        self._buffer = b""

    def wait(self, seconds: float) -> bool:
        """Wait for commands, up to `seconds`; return False when stdin has ended."""
        if not select.select([0], [], [], max(0.0, seconds))[0]:
            return True
        data = os.read(0, 4096)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if lines:
            signal.alarm(self._patience)
        for line in lines:
            text = line.decode(errors="replace")
            words = text.split()
            if words[:1] == ["disks"]:
                self.disks = json.loads(text[len("disks") :])
            elif words[:1] == ["shares"]:
                self.shared = frozenset(words[1:])
            elif words == ["refresh"]:
                self.refresh = True
            elif len(words) == 2 and words[0] == "pcie":
                self.pcie = None if words[1] == "-" else words[1]
        return bool(data)


def run(
    sample: str = "1",
    process: str = "2",
    seldom: str = "15",
    directory: str = "",
    patience: str = "0",
    memory: str = "",
    skipped: str = "",
    *,
    read_group: ReadGroup | None = None,
) -> None:
    """Sweep until stdin ends; raises ProbeFailedError or NVMLError when the driver fails.

    `patience` ends the process after so many seconds without a command; 0: never. `memory` is the file descriptor in
    which the supervisor reads which call is made, UNSHARED if it is told in lines, and `skipped` lists the calls not to
    make. `read_group` adds to processes what their control groups have used.
    """
    if memory:
        CALLS.share(int(memory), skipped)
    if memory == UNSHARED:
        threading.Thread(target=tell_calls, daemon=True).start()
    call("nvmlInit")
    groups = GroupUse(read_group) if read_group is not None else None
    probe = Probe(float(sample), float(process), float(seldom), directory or _DRIVERS_LIST, groups)
    commands = Commands(int(patience))
    probe.begin()
    while commands.wait(probe.sample.at - time.monotonic()):
        refresh, commands.refresh = commands.refresh, False
        probe.shared = commands.shared
        if commands.disks is not None:
            probe.watch_disks(commands.disks)
            commands.disks = None
        probe.step(time.monotonic(), refresh=refresh, pcie_of=commands.pcie)


def main(arguments: list[str], read_group: ReadGroup | None = None) -> int:
    """Run the probe; return 1 after a failure, which was written as a line. For `read_group` see `run`."""
    # the kernel kills this process when its supervisor dies, even while a driver call hangs
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        run(*arguments, read_group=read_group)
    except BrokenPipeError:
        return 0
    except RestartRequired:
        read("nvmlShutdown")
        if UNSHARED in arguments:  # its source came by stdin
            emit({"kind": "failed", "code": "Restart", "text": ""})
            return 0
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 - as it was started; the same process and pipes with a fresh NVML
    except ProbeFailedError as error:
        emit({"kind": "failed", "code": error.code, "text": str(error)})
        return 1
    except LostError:
        emit({"kind": "failed", "code": "GpuLost", "text": "nvmlInit"})
        return 1
    except pynvml.NVMLError as error:
        emit({"kind": "failed", "code": _FAILURES.get(error.value, "Failed"), "text": error_text(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
