"""Facts about an engine: kind, version, GPU mode, CDI devices, and whether it runs on this machine.

An address alone does not prove locality, since any may be forwarded.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from gputui.domain.container import EngineGpus
from gputui.domain.errors import Cause, CauseCode, OtherEngineError, RuntimeFault, RuntimeUnavailableError
from gputui.domain.kept_data import EngineRecord
from gputui.domain.policy.availability import CDI_KIND
from gputui.ports import EngineBook
from gputui.runtime.docker.endpoint import Endpoint, forwards_elsewhere, listening_pid, tunnel_to

EngineJson = Mapping[str, Any]
_LEAST_API = (1, 40)
"""API version as of which an engine gives GPUs to containers."""
SUPPORTED_API = (1, 41)
"""API version of Docker 20.10, the oldest engine that gputui supports."""
_LEAST_PODMAN = (5, 4)
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_LARGEST = 4 * 1024**2
_KIND = re.compile(rf"""^kind:\s*["']?{re.escape(CDI_KIND)}["']?\s*$""", re.MULTILINE)
_NAME = re.compile(r"""^[\s-]*name:\s*["']?([\w:.-]+)["']?\s*$""", re.MULTILINE)
"""Name in a CDI specification: only devices have one, so nvidia-ctk's YAML needs no parser."""


class GpuMode(StrEnum):
    """Way of requesting GPUs from the engine."""

    NVIDIA = "nvidia"
    """Device request of the nvidia driver, as `--gpus` makes."""
    CDI = "cdi"
    """Qualified device names of the Container Device Interface."""
    NONE = "none"
    """No method: the engine would silently ignore the request."""


class EngineFacts(Struct, frozen=True):
    """Facts of an engine, from its `/version` and `/info`."""

    version: str
    cpus: int
    gpu_mode: GpuMode = GpuMode.NVIDIA
    api: tuple[int, ...] = ()
    """API version; empty if it does not tell which fields the engine knows, as Podman's."""
    default_runtime: str = "runc"
    warnings: tuple[str, ...] = ()
    data_root: str = ""
    """Directory of its images and containers, on its own machine."""
    gpus: EngineGpus = EngineGpus()
    """GPU support, without considering whether the engine is local."""
    remaps_users: bool = False
    """True if root in a container is no user of the machine. False for a rootless engine: there it is the engine's."""

    @property
    def name(self) -> str:
        return f"{'Podman' if self.gpus.is_podman else 'Docker'} {self.version}"


def read_facts(version: EngineJson, info: EngineJson) -> EngineFacts:
    podman = is_podman(version)
    too_old = _numbers(version.get("ApiVersion")) < _LEAST_API
    mode = _gpu_mode(version, info, podman, too_old)
    security = [str(option) for option in info.get("SecurityOptions") or ()]
    runtimes = {str(name): str(one.get("path") or "") for name, one in (info.get("Runtimes") or {}).items()}
    listed = tuple(str(one.get("ID", "")) for one in info.get("DiscoveredDevices") or ())
    gpus = EngineGpus(
        mode=str(mode),
        runtimes=tuple(sorted(runtimes.items())),
        cdi_devices=listed if "DiscoveredDevices" in info else None,
        is_rootless=any("rootless" in option for option in security),
        is_podman=podman,
        warnings=tuple(_gpu_warnings(version, info, podman, too_old)),
    )
    return EngineFacts(
        version=str(version.get("Version", "?")),
        cpus=int(info.get("NCPU") or 0),
        gpu_mode=mode,
        api=() if podman else _numbers(version.get("ApiVersion")),
        default_runtime=str(info.get("DefaultRuntime") or "runc"),
        warnings=tuple(_warnings(version, info, podman)),
        data_root=str(info.get("DockerRootDir") or ""),
        gpus=gpus,
        remaps_users="name=userns" in security,
    )


def engine_of(info: EngineJson, endpoint: Endpoint) -> EngineRecord:
    """Return what tells this engine from others. Podman makes up an id for each request, so its storage counts."""
    machine = str(info.get("Name") or "")
    ident = f"podman {machine}:{info.get('DockerRootDir')}" if "BuildahVersion" in info else str(info.get("ID") or "")
    own = None if endpoint.context else endpoint.tls
    directory = str(own.directory) if own and own.directory else ""
    return EngineRecord(ident, machine, endpoint.url, endpoint.context, directory, own is None or own.verifies)


def admitted(book: EngineBook, info: EngineJson, endpoint: Endpoint) -> EngineRecord | None:
    """Return the engine if the book lacks it as it is now.

    Raises RuntimeUnavailableError unless it has the queue's containers, or may have them as there are none yet.
    """
    found = engine_of(info, endpoint)
    try:
        known = book.read()
    except OSError as error:
        what = f"{book.path} cannot be read, so the engine of this queue is not known: {error.strerror}"
        raise RuntimeUnavailableError(what, hint="repair it; remove it if it is damaged") from error
    if known and known.id != found.id:
        there = known.words if known.words != found.words else "the one that was there before"
        what = f"this queue's jobs are on another engine: {there}, not {found.words}"
        hint = "who runs the scheduler points DOCKER_HOST or the docker context back, or gives this one its own queue "
        hint += f"(--state DIR); if the other is gone for good, `rm {book.path}`: what ran there then counts as lost"
        raise OtherEngineError(what, hint=hint)
    return found if found.id and found != known else None


def is_podman(version: EngineJson) -> bool:
    return any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or ())


def _gpu_mode(version: EngineJson, info: EngineJson, is_podman: bool, too_old: bool) -> GpuMode:
    """Return CDI only if NVIDIA's runtime is not set up: device requests support MIG better."""
    if is_podman:
        return GpuMode.CDI if _numbers(version.get("Version")) >= _LEAST_PODMAN else GpuMode.NONE
    if too_old:
        return GpuMode.NONE
    if "nvidia" in (info.get("Runtimes") or {}):
        return GpuMode.NVIDIA
    return GpuMode.CDI if _has_cdi_gpus(info) else GpuMode.NVIDIA


def _has_cdi_gpus(info: EngineJson) -> bool:
    """Return whether CDI offers NVIDIA's GPUs; an engine that lists no devices has CDI if it has directories for it."""
    if "DiscoveredDevices" in info:
        return any(str(one.get("ID", "")).startswith(CDI_KIND) for one in info["DiscoveredDevices"] or ())
    return bool(info.get("CDISpecDirs"))


def _gpu_warnings(version: EngineJson, info: EngineJson, is_podman: bool, too_old: bool) -> Iterator[str]:
    if is_podman and _numbers(version.get("Version")) < _LEAST_PODMAN:
        yield "Podman before 5.4 silently ignores requests for GPUs: jobs with GPUs are refused; upgrade Podman"
    if too_old:
        yield f"the engine's API {version.get('ApiVersion')} is too old for GPUs: upgrade to Docker 19.03 or newer"
    if not is_podman and "nvidia" not in (info.get("Runtimes") or {}) and not _has_cdi_gpus(info):
        yield (
            "neither NVIDIA's runtime nor its CDI devices are set up: jobs with GPUs start only if "
            "nvidia-container-runtime-hook is on the engine's PATH; install the NVIDIA container toolkit"
        )


def _warnings(version: EngineJson, info: EngineJson, is_podman: bool) -> Iterator[str]:
    if not is_podman and _numbers(version.get("ApiVersion")) < SUPPORTED_API:
        yield (
            f"the engine is too old, its API is {version.get('ApiVersion')}: gputui supports Docker 20.10 (API 1.41) "
            "and newer, and what an older engine does not know it ignores; upgrade Docker"
        )
    if not is_podman and not info.get("LiveRestoreEnabled"):
        yield (
            "live-restore is off: restarting the Docker daemon ends every job; "
            'set "live-restore": true in its daemon.json'
        )
    limits = {
        "MemoryLimit": "--memory",
        "SwapLimit": "swap of --memory",
        "CpuCfsQuota": "--cpus",
        "CPUShares": "--cpu-shares",
    }
    if missing := [option for field, option in limits.items() if info.get(field) is False]:
        yield f"the engine's cgroups cannot enforce {', '.join(missing)}: such limits are ignored"


def _numbers(text: object) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text or "0"))[:2])


def listed_cdi_names(directories: Iterable[str] = ()) -> tuple[str, ...] | None:
    """Return the qualified names of NVIDIA's GPUs in CDI specification files; None without readable files.

    Needed for engines that do not list their devices.
    """
    names: list[str] = []
    for directory in tuple(directories) or DIRECTORIES:
        files: list[Path] = []
        with suppress(OSError):
            files = sorted(file for file in Path(directory).iterdir() if file.suffix in {".yaml", ".yml", ".json"})
        for file in files:
            with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError):
                if file.stat().st_size > _LARGEST:
                    continue
                text = file.read_text(errors="replace")
                if file.suffix == ".json":
                    found = json.loads(text)
                    devices = found.get("devices") or () if found.get("kind") == CDI_KIND else ()
                    names += [str(device["name"]) for device in devices]
                elif _KIND.search(text):
                    names += _NAME.findall(text)
    return tuple(f"{CDI_KIND}={name}" for name in dict.fromkeys(names)) or None


class MachineFacts(Struct, frozen=True):
    """Facts that differ between machines. None: unknown."""

    name: str | None = None
    kernel: str | None = None
    memory: int | None = None
    """Memory in bytes."""

    @classmethod
    def of_engine(cls, info: Mapping[str, Any]) -> MachineFacts:
        return cls(info.get("Name") or None, info.get("KernelVersion") or None, info.get("MemTotal") or None)

    @classmethod
    def here(cls) -> MachineFacts:
        """Return the facts of this machine, read in the same way as the engine does."""
        system, memory = os.uname(), None
        with suppress(OSError, ValueError, IndexError):
            memory = int(Path("/proc/meminfo").read_text().partition("MemTotal:")[2].split()[0]) * 1024
        return cls(system.nodename, system.release, memory)

    @property
    def is_complete(self) -> bool:
        return None not in (self.name, self.kernel, self.memory)


def runs_here(info: Mapping[str, Any], endpoint: Endpoint | None) -> bool:
    """Return whether the engine with that `/info` runs on this machine; False when uncertain."""
    if endpoint is None:
        return False
    if endpoint.is_ssh:
        return tunnel_to(endpoint.url).is_here()
    engine, here = MachineFacts.of_engine(info), MachineFacts.here()
    # names may differ: one of the two may be in a container
    pairs = ((engine.kernel, here.kernel), (engine.memory, here.memory))
    if any(one is not None and two is not None and one != two for one, two in pairs):
        return False
    if endpoint.socket_path:
        if engine == here:
            return True
        return not forwards_elsewhere(endpoint.socket_path)
    if not engine.is_complete or engine != here:
        return False
    host = urlsplit(endpoint.url).hostname or "127.0.0.1"
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind((address[0], 0))  # only an address of this machine can be bound to
                return True
    return False


def engine_began(endpoint: Endpoint | None) -> datetime | None:
    """Return when the engine on this machine was started: when it wrote the file of its pid, beside its socket."""
    with suppress(OSError, ValueError):
        path = Path((endpoint and endpoint.socket_path) or "")
        return datetime.fromtimestamp(path.with_name("docker.pid").stat().st_mtime, UTC)
    return None


def engine_root(socket_path: str | None) -> str:
    """Return the root directory of the engine on this machine as /proc shows it; raises RuntimeFault.

    systemd listens for an engine that it starts on demand, and an engine behind TCP cannot be told: both are taken to
    have the first process's files. If they have not, they cannot mount what is opened there.
    """
    pid = (listening_pid(socket_path) or 0) if socket_path else 1
    root = f"/proc/{pid}/root"
    try:
        os.stat(f"{root}/")  # noqa: PTH116 - a Path would drop the slash, and with it the step into the link
    except OSError as error:
        if _mounts_at_root(pid) & _mounts_at_root(os.getpid()):
            return "/"
        text = f"{root} cannot be opened ({(error.strerror or '').lower()}), so members' mounts cannot be checked"
        hint = "let root schedule; for the service run `gputui install` again"
        raise RuntimeFault(Cause(CauseCode.NOT_ALLOWED, text), hint=hint) from error
    return root


def _mounts_at_root(pid: int) -> set[str]:
    """Return the ids of the mounts at a process's root directory; equal ones mean equal files."""
    with suppress(OSError):
        rows = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_bytes().splitlines()]
        return {row[0].decode() for row in rows if row[4] == b"/"}
    return set()
