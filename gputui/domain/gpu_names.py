"""Displayed indices of GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.domain.gpu import GpuView


def index_of(view: GpuView) -> str:
    """Return the displayed index; for a MIG instance its GPU's and its own: `0m2`."""
    gpu = view.gpu
    if not gpu.mig_parent:
        return str(gpu.index)
    return f"{gpu.index}m{'' if gpu.mig_index is None else gpu.mig_index}"


def index_ranges(indices: Sequence[str]) -> str:
    """Return `0-3,6` for 0, 1, 2, 3 and 6."""
    numbers = sorted(int(index) for index in indices if index.isdigit())
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ",".join([*words, *(index for index in indices if not index.isdigit())])
