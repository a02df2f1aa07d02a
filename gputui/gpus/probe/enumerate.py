"""Enumeration of GPUs and MIG instances by NVML, with their constant facts and links. Part of the probe process."""

from __future__ import annotations

import pynvml

from gputui.gpus.probe.nvml import LostError, call, error_text, memory_of, power_limit, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names of nvmlGpuTopologyLevel_t as in `nvidia-smi topo -m`; two GPUs of one board count as PIX."""
_MOST_LANES = getattr(pynvml, "NVML_NVLINK_MAX_LINKS", 18)


class Device:
    """GPU or MIG instance as the driver lists it."""

    __slots__ = ("error", "handle", "index", "mig", "parent", "place", "uuid")

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

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that cause the facts to be sent again when they change."""
        return (self.index, self.uuid, self.error, self.mig, self.parent and self.parent.uuid)


def list_devices() -> list[Device]:
    """Return all devices, MIG instances after their parents; raises NVMLError when they cannot be counted."""
    devices: list[Device] = []
    for index in range(call("nvmlDeviceGetCount")):
        device = _device(index)
        devices.append(device)
        devices.extend(_instances(device))
    return devices


def _device(index: int) -> Device:
    """Return the GPU with that index; a placeholder if the driver cannot reach it."""
    unknown = f"GPU-unknown-{index}"
    try:
        handle = call("nvmlDeviceGetHandleByIndex", index)
        return Device(index, call("nvmlDeviceGetUUID", handle), handle)
    except LostError:
        return Device(index, unknown, None, "lost")
    except pynvml.NVMLError as error:
        return Device(index, unknown, None, error_text(error))


def _instances(parent: Device) -> list[Device]:
    if parent.handle is None:
        return []
    try:
        mode = read("nvmlDeviceGetMigMode", parent.handle)
        parent.mig = bool(mode and mode[0])
        most = read("nvmlDeviceGetMaxMigDeviceCount", parent.handle) if parent.mig else 0
        places = {
            place: read("nvmlDeviceGetMigDeviceHandleByIndex", parent.handle, place) for place in range(most or 0)
        }
        found = [(n, handle, read("nvmlDeviceGetUUID", handle)) for n, handle in places.items() if handle is not None]
    except LostError:
        return []  # the next sweep reports it for the parent
    return [_instance(parent, place, handle, uuid) for place, handle, uuid in found if uuid]


def _instance(parent: Device, place: int, handle: object, uuid: str) -> Device:
    device = Device(parent.index, uuid, handle, parent=parent)
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
    memory = memory_of(handle)
    persistence = read("nvmlDeviceGetPersistenceMode", handle)
    return {
        "model": read("nvmlDeviceGetName", handle),
        "memory_total": memory and memory.total,
        "pci_bus_id": bus_id(read("nvmlDeviceGetPciInfo", handle)),
        "numa_node": read("nvmlDeviceGetNumaNodeId", handle),
        "minor": read("nvmlDeviceGetMinorNumber", handle),
        "mig_enabled": device.mig,
        "power_limit": power_limit(handle),
        "persistence": None if persistence is None else bool(persistence),
    }


def _instance_facts(device: Device) -> dict[str, object]:
    name = read("nvmlDeviceGetName", device.handle) or ""
    memory = memory_of(device.handle)
    model, _, profile = name.partition(" MIG ")
    return {
        "model": model or None,
        "memory_total": memory and memory.total,
        "mig_profile": profile or _profile(read("nvmlDeviceGetAttributes", device.handle)),
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
    text = pci.busId
    return text.decode() if isinstance(text, bytes) else str(text)


def links_of(devices: list[Device]) -> dict[str, list[dict[str, object]]]:
    """Return the links of each GPU to every other one, by UUID. MIG instances have none."""
    whole = [device for device in devices if device.parent is None and device.handle is not None]
    places = {bus_id(_quietly("nvmlDeviceGetPciInfo", device.handle)): device.uuid for device in whole}
    lanes = {device.uuid: _lanes(device, places) for device in whole}
    return {one.uuid: [link for other in whole if (link := _link(one, other, lanes))] for one in whole}


def _lanes(device: Device, places: dict[str | None, str]) -> dict[str, int]:
    """Return the number of active NVLink lanes by the UUID at their other end; `switch` for an NVSwitch."""
    counted: dict[str, int] = {}
    for lane in range(_MOST_LANES):
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
    if one is other:
        return None
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
