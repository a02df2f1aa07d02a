"""Which GPUs a job gets: all it needs at once, or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputui.domain.gpu import Gpu
from gputui.domain.job import Job


def suitable(job: Job, gpus: Iterable[Gpu]) -> list[Gpu]:
    """The GPUs that this job could ever use: the right model, memory and names, and not ones that failed it."""
    request = job.spec.gpus
    return [
        gpu
        for gpu in gpus
        if (request.model is None or request.model.lower() in (gpu.model or "").lower())
        and (request.memory is None or (gpu.memory_total or 0) >= request.memory)
        and (not request.devices or _named(gpu, request.devices))
        and gpu.uuid not in job.avoid_gpus
        and not gpu.mig_enabled
    ]


def _named(gpu: Gpu, devices: tuple[str, ...]) -> bool:
    """By UUID, by at least eight characters of its beginning as NVIDIA's tools take it, or by index."""
    if any(gpu.uuid == name or (len(name) >= 8 and gpu.uuid.startswith(name)) for name in devices):
        return True
    return gpu.mig_parent is None and str(gpu.index) in devices


def wanted(job: Job, node_gpus: int) -> tuple[int, int]:
    """The fewest and the most GPUs it takes on a node of that size."""
    request = job.spec.gpus
    if request.everything:
        return max(1, node_gpus), max(1, node_gpus)
    return request.minimum, request.maximum


def place(job: Job, free: Sequence[Gpu], node_gpus: int) -> tuple[str, ...] | None:
    """UUIDs of the first GPUs that fit, as many as it may have; None when fewer than it needs are free."""
    fewest, most = wanted(job, node_gpus)
    if most == 0:
        return ()
    if len(free) < fewest:
        return None
    fitting = suitable(job, free)
    if len(fitting) < fewest:
        return None
    return tuple(gpu.uuid for gpu in fitting[:most])
