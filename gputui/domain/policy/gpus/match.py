"""Matching of requests and GPUs, regardless of who holds the GPUs now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputui.domain.gpu import Gpu
from gputui.domain.job_spec import GpuRequest
from gputui.domain.units import format_size, plural


def suitable_gpus(request: GpuRequest, gpus: Iterable[Gpu]) -> list[Gpu]:
    """Return the GPUs of the right model, memory and names."""
    return [
        gpu
        for gpu in gpus
        if (request.model is None or request.model.lower() in (gpu.model or "").lower())
        and (request.memory is None or (gpu.memory_total or 0) >= request.memory)
        and (not request.devices or is_named(gpu, request.devices))
        and not gpu.mig_enabled
    ]


def shortage(request: GpuRequest, gpus: Sequence[Gpu]) -> str:
    """Return why the request can never be met by these GPUs; empty when it can, or when no GPU is known."""
    if not gpus or not request.minimum or request.everything:
        return ""
    fitting = len(suitable_gpus(request, gpus))
    if fitting >= request.minimum:
        return ""
    here = sum(not gpu.mig_enabled for gpu in gpus)
    if not here:
        return f"asks for {plural(request.minimum, 'GPU')}, but all here are in MIG mode without instances"
    words = [f"of model {request.model}"] if request.model else []
    words += [f"with {format_size(request.memory)}"] if request.memory else []
    words += [f"among {', '.join(request.devices)}"] if request.devices else []
    wants = " ".join([plural(request.minimum, "GPU"), *words])
    if not words:
        return f"asks for {wants}, this server has {here}"
    return f"asks for {wants}, {fitting or 'none'} of {here} here {'is' if fitting < 2 else 'are'} suitable"


def is_named(gpu: Gpu, names: Sequence[str]) -> bool:
    """Return whether one of the names means this GPU.

    Its UUID, at least eight characters of its beginning, or its index.
    """
    if any(gpu.uuid == name or (len(name) >= 8 and gpu.uuid.startswith(name)) for name in names):
        return True
    return gpu.mig_parent is None and str(gpu.index) in names
