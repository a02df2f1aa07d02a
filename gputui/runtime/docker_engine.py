"""What kind of engine it is, read once from its `/version` and `/info`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gputui.domain.container import EngineGpus
from gputui.domain.policy.engine_gpus import CDI_KIND

Json = Mapping[str, Any]

_LEAST_API = (1, 40)
_LEAST_PODMAN = (5, 4)


class GpuMode(StrEnum):
    """How GPUs are asked for."""

    NVIDIA = "nvidia"
    """A device request of the nvidia driver, as `--gpus` makes."""
    CDI = "cdi"
    """Fully qualified device names of the Container Device Interface."""
    NONE = "none"
    """The engine would ignore the request without a word."""


@dataclass(frozen=True)
class EngineFacts:
    """What of an engine matters here."""

    version: str
    cpus: int
    gpu_mode: GpuMode = GpuMode.NVIDIA
    is_podman: bool = False
    is_too_old: bool = False
    default_runtime: str = "runc"
    live_restore: bool = False
    warnings: tuple[str, ...] = ()
    gpus: EngineGpus = EngineGpus()
    """For `doctor`; whether the engine is local is not known here."""

    @property
    def name(self) -> str:
        """Its name and version."""
        return f"{'Podman' if self.is_podman else 'Docker'} {self.version}"


def read_facts(version: Json, info: Json) -> EngineFacts:
    """The facts in the engine's answers."""
    components = version.get("Components") or ()
    is_podman = any("podman" in str(part.get("Name", "")).lower() for part in components)
    too_old = _numbers(version.get("ApiVersion")) < _LEAST_API
    return EngineFacts(
        version=str(version.get("Version", "?")),
        cpus=int(info.get("NCPU") or 0),
        gpu_mode=_gpu_mode(version, info, is_podman, too_old),
        is_podman=is_podman,
        is_too_old=too_old,
        default_runtime=str(info.get("DefaultRuntime") or "runc"),
        live_restore=bool(info.get("LiveRestoreEnabled")),
        warnings=tuple(_warnings(info, is_podman)),
        gpus=_gpus(version, info, is_podman, too_old),
    )


def _gpus(version: Json, info: Json, is_podman: bool, too_old: bool) -> EngineGpus:
    runtimes = {str(name): str(one.get("path") or "") for name, one in (info.get("Runtimes") or {}).items()}
    listed = [str(one.get("ID", "")) for one in info.get("DiscoveredDevices") or ()]
    return EngineGpus(
        mode=str(_gpu_mode(version, info, is_podman, too_old)),
        runtimes=tuple(sorted(runtimes.items())),
        cdi_devices=tuple(listed) if "DiscoveredDevices" in info else None,
        is_rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or ()),
        is_podman=is_podman,
        warnings=tuple(_gpu_warnings(version, info, is_podman, too_old)),
    )


def _gpu_mode(version: Json, info: Json, is_podman: bool, too_old: bool) -> GpuMode:
    """CDI only where the engine has it and NVIDIA's runtime is not set up: device requests do MIG better."""
    if is_podman:
        return GpuMode.CDI if _numbers(version.get("Version")) >= _LEAST_PODMAN else GpuMode.NONE
    if too_old:
        return GpuMode.NONE
    if "nvidia" in (info.get("Runtimes") or {}):
        return GpuMode.NVIDIA
    return GpuMode.CDI if _has_cdi_gpus(info) else GpuMode.NVIDIA


def _has_cdi_gpus(info: Json) -> bool:
    """Whether NVIDIA's GPUs are known by CDI; an engine that lists no devices at all has CDI only if asked to."""
    if "DiscoveredDevices" in info:
        return any(str(one.get("ID", "")).startswith(CDI_KIND) for one in info["DiscoveredDevices"] or ())
    return bool(info.get("CDISpecDirs"))


def _gpu_warnings(version: Json, info: Json, is_podman: bool, too_old: bool) -> Iterator[str]:
    if is_podman and _numbers(version.get("Version")) < _LEAST_PODMAN:
        yield "Podman before 5.4 ignores requests for GPUs without a word: jobs with GPUs are refused; upgrade Podman"
    if too_old:
        yield f"the engine's API {version.get('ApiVersion')} is too old for GPUs: upgrade to Docker 19.03 or newer"
    if not is_podman and "nvidia" not in (info.get("Runtimes") or {}) and not _has_cdi_gpus(info):
        yield (
            "neither NVIDIA's runtime nor its CDI devices are set up: jobs with GPUs start only if "
            "nvidia-container-runtime-hook is on the engine's PATH; install the NVIDIA container toolkit"
        )


def _warnings(info: Json, is_podman: bool) -> Iterator[str]:
    if not is_podman and not info.get("LiveRestoreEnabled"):
        yield (
            "live-restore is off: restarting the Docker daemon ends every job; "
            'set "live-restore": true in /etc/docker/daemon.json'
        )
    yield from _limits(info)


def _limits(info: Json) -> Iterator[str]:
    fields = {
        "MemoryLimit": "--memory",
        "SwapLimit": "swap of --memory",
        "CpuCfsQuota": "--cpus",
        "CPUShares": "--cpu-shares",
    }
    missing = [option for field, option in fields.items() if info.get(field) is False]
    if missing:
        yield f"the engine's cgroups cannot enforce {', '.join(missing)}: such limits are ignored"


def _numbers(text: object) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text or "0"))[:2])
