"""Which GPUs a container of others has asked for, by any of the ways there are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gputui.domain.container import ForeignContainer
from gputui.domain.policy.engine_gpus import CDI_KIND
from gputui.runtime.docker_create import USER

Json = Mapping[str, Any]

_NOTHING = {"", "void", "none"}
_NODE = re.compile(r"/dev/nvidia(\d+)")
_MOUNTED = "/var/run/nvidia-container-devices/"
"""NVIDIA's runtime takes mounts below this path as names of devices, where so configured."""


def foreign_of(inspected: Json, default_runtime: str) -> ForeignContainer | None:
    """The container with the devices it asked for; None when it asked for none."""
    devices = tuple(dict.fromkeys(_devices(inspected, default_runtime)))
    if not devices:
        return None
    labels = inspected["Config"].get("Labels") or {}
    return ForeignContainer(
        id=inspected["Id"],
        name=str(inspected.get("Name", "")).lstrip("/"),
        user=labels.get(USER) or None,
        devices=devices,
        image=str(inspected["Config"].get("Image", "")),
    )


def _devices(inspected: Json, default_runtime: str) -> Iterator[str]:
    host = inspected["HostConfig"]
    requested = [token for request in host.get("DeviceRequests") or () for token in _requested(request)]
    yield from requested
    for device in host.get("Devices") or ():
        yield from _node(str(device.get("PathOnHost", "")))
    runtime = host.get("Runtime") or default_runtime
    # where there is a request the engine overrides the variable
    if not requested and runtime.startswith("nvidia"):
        yield from _by_runtime(inspected)


def _requested(request: Json) -> Iterator[str]:
    """The devices of one device request: ids, else a count of the first ones, -1 being all."""
    driver = request.get("Driver") or ""
    wants_gpu = any("gpu" in one_of or "nvidia" in one_of for one_of in request.get("Capabilities") or ())
    ids = [name for text in request.get("DeviceIDs") or () for name in text.split(",")]
    if driver == "cdi":
        yield from _tokens([name for name in ids if name.startswith(f"{CDI_KIND}=")])
    elif driver == "nvidia" or wants_gpu:
        count = int(request.get("Count") or 0)
        if ids:
            yield from _tokens(ids)
        elif count < 0:
            yield "all"
        else:
            yield from map(str, range(count))


def _by_runtime(inspected: Json) -> Iterator[str]:
    """What NVIDIA's runtime gives: mounts that name devices, else the variable of the container or its image."""
    mounted = [str(mount.get("Destination", "")) for mount in inspected.get("Mounts") or ()]
    names = [path.removeprefix(_MOUNTED) for path in mounted if path.startswith(_MOUNTED)]
    env = dict(text.partition("=")[::2] for text in inspected["Config"].get("Env") or ())
    yield from _tokens(names or env.get("NVIDIA_VISIBLE_DEVICES", "").split(","))


def _tokens(names: list[str]) -> Iterator[str]:
    """`0`, `0:1` (a MIG instance), `all`, `GPU-…` or `MIG-…`, without the prefix CDI names have."""
    for name in names:
        token = name.strip().removeprefix(f"{CDI_KIND}=")
        if token not in _NOTHING:
            yield token


def _node(path: str) -> Iterator[str]:
    """`/dev/nvidia3` names a GPU by its minor number, which is not its index; other paths name none."""
    if found := _NODE.fullmatch(path):
        yield f"minor:{found[1]}"
    elif path.startswith(f"{CDI_KIND}="):
        yield from _tokens([path])
