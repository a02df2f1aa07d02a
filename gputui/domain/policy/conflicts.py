"""Whether a new reservation can be kept beside those there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import Gpu
from gputui.domain.policy.fitting import is_named
from gputui.domain.settings import Window
from gputui.domain.units import plural

_HINT = "gputui reserve list shows them; choose another time or other GPUs"


def check_times(window: Window, now: datetime) -> None:
    """Raise for a window that ends before it begins, or before now."""
    if window.end <= window.start:
        raise InputError("is not after the start", where="--end")
    if window.end <= now:
        raise InputError("is over already", where="--end")


def check_beside(window: Window, others: Iterable[Window], gpus: Iterable[Gpu]) -> None:
    """Raise for a window that asks for more GPUs than exist, or than others leave at any time; names the others."""
    there = [gpu for gpu in gpus if not gpu.mig_enabled]
    wanted = _size(window)
    if wanted > len(there):
        raise InputError(f"{plural(wanted, 'GPU')} are more than there are", where="--gpus", hint=f"{len(there)} here")
    rivals = [other for other in others if other.start < window.end and window.start < other.end]
    _check_names(window, rivals, there)
    for at in sorted({window.start, *(other.start for other in rivals if other.start > window.start)}):
        then = [other for other in rivals if other.start <= at < other.end]
        kept = sum(map(_size, then))
        if then and kept + wanted > len(there):
            raise GputuiError(
                f"{plural(wanted, 'GPU')} are too many: {_names(then)} {kept} of {len(there)} at that time", hint=_HINT
            )


def _check_names(window: Window, rivals: Iterable[Window], gpus: Sequence[Gpu]) -> None:
    """No GPU named is kept by name for somebody else."""
    for other in rivals:
        for gpu in gpus:
            if is_named(gpu, window.gpus) and is_named(gpu, other.gpus):
                raise GputuiError(f"GPU {gpu.index} is kept by reservation {other.name} at that time", hint=_HINT)


def _size(window: Window) -> int:
    return len(window.gpus) or window.count


def _names(windows: Sequence[Window]) -> str:
    """`reservation a keeps`, `reservations a and b keep`."""
    if len(windows) == 1:
        return f"reservation {windows[0].name} keeps"
    names = [window.name for window in windows]
    return f"reservations {', '.join(names[:-1])} and {names[-1]} keep"
