"""What a simulated GPU tells more of while somebody looks at it."""

from __future__ import annotations

from dataclasses import replace

from gputui.domain.gpu import Gpu, GpuProcess, GpuSample
from gputui.gpus.load import chance

_LANE = 25e9
"""Bytes a second that a lane of NVLink 3 or 4 carries one way."""


def looked_at(sample: GpuSample, gpu: Gpu, shared: float) -> GpuSample:
    """The reading with throughput and the processes' shares; `shared` is the load of jobs on several GPUs."""
    busy = sample.utilization or 0.0
    lanes = max((link.lanes for link in gpu.links), default=0)
    sent = shared * 0.22 * lanes * _LANE
    return replace(
        sample,
        pcie_tx=busy * 2.4e9,
        pcie_rx=busy * 4.1e9,
        nvlink_tx=sent if lanes else None,
        nvlink_rx=sent * (0.97 + 0.06 * chance(gpu.uuid, sample.sampled_at)) if lanes else None,
        processes=_with_shares(sample.processes or (), busy),
    )


def _with_shares(processes: tuple[GpuProcess, ...], busy: float) -> tuple[GpuProcess, ...]:
    """By their memory, for want of a better guess: what shares a GPU takes turns on it."""
    whole = sum(process.memory or 0 for process in processes)
    return tuple(
        replace(process, sm=round(busy * (process.memory or 0) / whole, 2) if whole else None) for process in processes
    )
