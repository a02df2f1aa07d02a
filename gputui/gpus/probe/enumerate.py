"""Enumeration of GPUs and MIG instances by NVML, with their constant facts and links. Part of the probe process."""

from __future__ import annotations

import itertools
import re

import pynvml

from gputui.gpus.probe.calls import CALLS
from gputui.gpus.probe.host import memory_total
from gputui.gpus.probe.nvml import LostError, call, default_power_limit, error_text, lacks, memory_of, power_limit, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Any


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
    """Return all devices, MIG instances after their parents; raises NVMLError when they cannot be counted."""
    devices: list[Device] = []
    for index in range(call("nvmlDeviceGetCount")):
        device = _device(index)
        for each in (device, *_instances(device)):
            twin = next((other for other in devices if other.uuid == each.uuid), None)
            if twin is not None:  # a job that is given it could get the other
                each.error = f"it has the UUID of GPU {twin.index}, {each.uuid}, so no job can be given it"
                each.uuid = f"GPU-unknown-{each.index}" + ("" if each.place is None else f"-{each.place}")
            devices.append(each)
    return devices


def _device(index: int) -> Device:
    """Return the GPU with that index; with an error and a placeholder for its UUID if it cannot be identified."""
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
    return device


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
    return [_instance(parent, place, handle, uuid or "") for place, handle, uuid in found]


def _instance(parent: Device, place: int, handle: object, uuid: str) -> Device:
    is_named = _UUID.fullmatch(uuid) is not None
    error = "" if is_named else f"the driver calls it {uuid!r}, which is no UUID"
    device = Device(parent.index, uuid if is_named else f"GPU-unknown-{parent.index}-{place}", handle, error, parent)
    device.place = place
    return device


def device_facts(device: Device, links: list[dict[str, object]]) -> dict[str, object]:
    """Return the facts that are constant while the driver runs, as far as they can be read."""
    result: dict[str, object] = {"index": device.index, "uuid": device.uuid, "error": device.error, "links": links}
    if device.parent is not None:
        result |= {"mig_parent": device.parent.uuid, "mig_index": device.place}
    try:
        return result | (_instance_facts(device) if device.parent else _gpu_facts(device))
    except LostError:
        return result | {"error": "lost"}


def _gpu_facts(device: Device) -> dict[str, object]:
    if (handle := device.handle) is None:
        return {}
    memory = None if device.unified else memory_of(handle)
    persistence = read("nvmlDeviceGetPersistenceMode", handle)
    return {
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


def _instance_facts(device: Device) -> dict[str, object]:
    name = read("nvmlDeviceGetName", device.handle) or ""
    memory = memory_of(device.handle)
    attributes = read("nvmlDeviceGetAttributes", device.handle)
    model, _, profile = name.partition(" MIG ")
    return {
        "model": model or None,
        "memory_total": (memory and memory.total) or (attributes and attributes.memorySizeMB * 2**20) or None,
        "mig_profile": profile or _profile(attributes),
    }


def _profile(attributes: Any) -> str | None:
    """Return the MIG profile, like `1g.10gb`: compute slices and memory in whole GB, as the driver names it."""
    if attributes is None:
        return None
    return f"{attributes.gpuInstanceSliceCount}g.{round(attributes.memorySizeMB / 1024)}gb"


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
        if link := _link(one, other, lanes):
            links[one.uuid].append(link)
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


def _link(one: Device, other: Device, lanes: dict[str, dict[str, int]]) -> dict[str, object] | None:
    mine, theirs = lanes[one.uuid], lanes[other.uuid]
    direct = mine.get(other.uuid, 0)
    through = min(mine.get("switch", 0), theirs.get("switch", 0))
    if direct or through:
        return {"peer": other.uuid, "kind": "NVLINK", "lanes": direct or through}
    level = _quietly("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle)
    path = _PATHS.get(level) if isinstance(level, int) else None
    return {"peer": other.uuid, "kind": path} if path else None


def _quietly(name: str, *arguments: object) -> object:
    try:
        return read(name, *arguments)
    except LostError:
        return None
