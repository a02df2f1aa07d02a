"""Reservations: checks that a new one can be kept beside others, their states, and changes for a what-if."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import Gpu, short_names
from gputui.domain.policy.placement import is_named
from gputui.domain.settings import PolicySettings, Window
from gputui.domain.snapshot import Controls, Snapshot, WindowState, WindowView
from gputui.domain.text import format_duration, plural

_HINT = "gputui reserve list shows them; choose another time or other GPUs"


def check_times(window: Window, now: datetime) -> None:
    """Raise InputError for a window that ends before it begins, or before now."""
    if window.end <= window.start:
        raise InputError("is not after the start", where="--end")
    if window.end <= now:
        raise InputError("is over already", where="--end")


def check_conflicts(window: Window, others: Iterable[Window], gpus: Iterable[Gpu]) -> None:
    """Raise InputError for a window that needs more GPUs than exist, or than others leave; names these others."""
    there = [gpu for gpu in gpus if not gpu.mig_enabled]
    wanted = _size(window)
    if wanted > len(there):
        raise InputError(f"there are fewer than {plural(wanted, 'GPU')}", where="--gpus", hint=f"{len(there)} here")
    rivals = [other for other in others if other.start < window.end and window.start < other.end]
    for other in rivals:
        for gpu in there:
            if is_named(gpu, window.gpus) and is_named(gpu, other.gpus):
                raise GputuiError(f"GPU {gpu.index} is reserved by {other.name} at that time", hint=_HINT)
    for at in sorted({window.start, *(other.start for other in rivals if other.start > window.start)}):
        then = [other for other in rivals if other.start <= at < other.end]
        kept = sum(map(_size, then))
        if then and kept + wanted > len(there):
            raise GputuiError(
                f"{plural(wanted, 'GPU')} are too many: {_names(then)} {kept} of {len(there)} at that time", hint=_HINT
            )


def _size(window: Window) -> int:
    return len(window.gpus) or window.count


def _names(windows: Sequence[Window]) -> str:
    """Return `reservation a keeps` or `reservations a and b keep`."""
    if len(windows) == 1:
        return f"reservation {windows[0].name} keeps"
    names = [window.name for window in windows]
    return f"reservations {', '.join(names[:-1])} and {names[-1]} keep"


def overlap_warnings(window: Window, snapshot: Snapshot, names: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each running job that holds a named GPU and may not end before the reservation begins.

    A reservation does not stop jobs. `names` are the displayed names of GPUs, by UUID.
    """
    for job in snapshot.jobs:
        held = [uuid for uuid in window.gpus if job.state.is_active and uuid in job.gpus]
        if held and (job.limit_at is None or job.limit_at > window.start):
            why = "has no time limit"
            if job.limit_at is not None:
                why = f"may run {format_duration(job.limit_at - window.start)} into it"
            short = short_names(held)
            gpus = ", ".join(names.get(uuid, short[uuid]) for uuid in held)
            verb = "is" if len(held) == 1 else "are"
            kind = "GPU" if len(held) == 1 else "GPUs"
            yield f"{kind} {gpus} {verb} held by job {job.shown_id}, which {why}: the reservation waits for its end"


def reservation_views(policy: PolicySettings, controls: Controls, now: datetime) -> tuple[WindowView, ...]:
    """Return the reservations that have not ended, by the controls and the clock; `policy` is the settings file's."""
    found = [(window, "file") for window in policy.reservations]
    found += [(window, "command") for window in controls.reservations]
    return tuple(
        _view(window, source, controls, policy.reservation_grace, now)
        for window, source in sorted(found, key=lambda pair: (pair[0].start, pair[0].name))
        if window.end > now
    )


def _view(window: Window, source: str, controls: Controls, grace: timedelta, now: datetime) -> WindowView:
    claimed, released = controls.claimed.get(window.key), controls.released.get(window.key)
    lapses = not (claimed or released or window.for_nobody)
    state = WindowState.UPCOMING if window.start > now else WindowState.ACTIVE
    return WindowView(
        window,
        WindowState.RELEASED if released else state,
        source,
        claimed,
        released,
        window.start + grace if lapses else None,
    )


def with_claims(controls: Controls, windows: Iterable[WindowView]) -> Controls:
    """Return the controls with the claims and releases found by a plan."""
    claimed = {view.window.key: view.claimed_at for view in windows if view.claimed_at}
    released = {view.window.key: view.released_at for view in windows if view.released_at}
    if claimed == controls.claimed and released == controls.released:
        return controls
    return replace(controls, claimed=claimed, released=released)


def without_reservation(window: Window) -> Callable[[Snapshot], Snapshot]:
    """Return the change that ends a reservation early."""

    def change(snapshot: Snapshot) -> Snapshot:
        controls = snapshot.controls
        left = tuple(other for other in controls.reservations if other.key != window.key)
        return replace(snapshot, controls=replace(controls, reservations=left))

    return change


def with_reservation(window: Window) -> Callable[[Snapshot], Snapshot]:
    def change(snapshot: Snapshot) -> Snapshot:
        controls = snapshot.controls
        return replace(snapshot, controls=replace(controls, reservations=(*controls.reservations, window)))

    return change
