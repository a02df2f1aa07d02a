"""What a GPU is called: its index for the eye, and its model in as many words as there is room for."""

from __future__ import annotations

import re

from gputui.domain.gpu import GpuView
from gputui.domain.text import plain
from gputui.tui.present.cells import UNKNOWN

_VENDOR = re.compile(r"^(NVIDIA|Tesla|GeForce|Quadro)\s+", re.IGNORECASE)


def short_model(model: str | None) -> str:
    """`H100 80GB HBM3` of `NVIDIA H100 80GB HBM3`."""
    return _VENDOR.sub("", plain(model, 60)) if model else UNKNOWN


def model_in(model: str, room: int) -> str:
    """As many whole words as fit, one at least: `H100` in 7 cells, `H100 80GB` in 9."""
    words = [part for part in re.split(r"(?=[ -])", model) if part]
    while len(words) > 1 and sum(map(len, words)) > room:
        words.pop()
    return "".join(words)


def index_of(view: GpuView) -> str:
    """The index for the eye; an instance shows its parent's and which of its instances it is: `0m2`."""
    gpu = view.gpu
    if not gpu.mig_parent:
        return str(gpu.index)
    return f"{gpu.index}m{'' if gpu.mig_index is None else gpu.mig_index}"
