"""Reservations: checks of a new one, the GPUs that each gets, and when one counts as claimed or is released."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import Gpu, GpuState, GpuView, short_names
from gputui.domain.job import Job
from gputui.domain.policy.cluster_state import ClusterState, ReservedWindow
from gputui.domain.policy.placement import GpuIndex, Grant, is_named, lowest
from gputui.domain.settings import PolicySettings, Window
from gputui.domain.snapshot import Controls, Snapshot, WindowState, WindowView
from gputui.domain.state import JobState
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
        (window.start + grace).astimezone(UTC) if lapses else None,
    )


def with_claims(controls: Controls, windows: Iterable[WindowView]) -> Controls:
    """Return the controls with the claims and releases found by a plan."""
    claimed = {view.window.key: view.claimed_at for view in windows if view.claimed_at}
    released = {view.window.key: view.released_at for view in windows if view.released_at}
    if claimed == controls.claimed and released == controls.released:
        return controls
    return replace(controls, claimed=claimed, released=released)


def without_reservation(window: Window) -> Callable[[Snapshot], Snapshot]:
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


_GIVEN_OUT = frozenset({GpuState.FREE, GpuState.ALLOCATED})
Masks = tuple[int, ...]
"""GPUs by node."""


class Scene(Struct, frozen=True):
    jobs: Sequence[Job]
    gpus: GpuIndex
    cluster: ClusterState
    now: datetime


def judge_reservations(
    views: Iterable[WindowView], scene: Scene
) -> tuple[tuple[WindowView, ...], tuple[ReservedWindow, ...]]:
    """Return the reservations with their GPUs, in the form of the cluster state.

    A reservation prefers free GPUs to GPUs on which its own jobs started before it. If that leaves another reservation
    with GPUs held by strangers, all reservations count their own jobs' GPUs first.
    """
    ordered = tuple(views)
    judged, keeps, short = _choose_for_all(ordered, scene, own_first=False)
    if short:
        others, others_keeps, still_short = _choose_for_all(ordered, scene, own_first=True)
        if still_short < short:
            return others, others_keeps
    return judged, keeps


def _choose_for_all(
    ordered: Sequence[WindowView], scene: Scene, *, own_first: bool
) -> tuple[tuple[WindowView, ...], tuple[ReservedWindow, ...], int]:
    """Choose GPUs for each reservation in turn; also return how many of them strangers hold or are unusable.

    Windows over named GPUs choose first, because the others have alternatives; then the earlier ones, because fewer
    GPUs are free by then.
    """
    seen: dict[int, WindowView] = {}
    keeps: list[ReservedWindow] = []
    short = 0
    for number, view in sorted(enumerate(ordered), key=lambda pair: (not pair[1].window.gpus, pair[1].window.start)):
        if view.state is WindowState.RELEASED:
            seen[number] = view
            continue
        window, lacking = view.window, 0
        if window.gpus:
            masks = scene.gpus.named(window.gpus)
        else:
            masks, lacking = _any(window, keeps, scene, own_first=own_first)
        judged = seen[number] = _judged(view, masks, scene)
        if judged.state is not WindowState.RELEASED:
            start, end = window.start.timestamp(), window.end.timestamp()
            keeps.append(ReservedWindow(window, start, end, masks))
            short += lacking
    return tuple(seen[number] for number in range(len(ordered))), tuple(keeps), short


def _judged(view: WindowView, masks: Masks, scene: Scene) -> WindowView:
    """Return the reservation with its GPUs and state.

    It is claimed once one of its jobs has run in it, and released after its grace period if none has. A reservation for
    nobody cannot be claimed, so it is never released.
    """
    window, claimed_at = view.window, view.claimed_at
    if claimed_at is None and view.state is WindowState.ACTIVE and _is_claimed(window, masks, scene):
        claimed_at = scene.now
    lapses_at = view.lapses_at if claimed_at is None else None
    lapsed = lapses_at is not None and scene.now >= lapses_at
    if lapsed and not any(_waits_for(window, job) for job in scene.jobs):
        return replace(view, state=WindowState.RELEASED, released_at=scene.now, lapses_at=None)
    gpus = scene.gpus.uuids(tuple(enumerate(masks)))
    return replace(view, claimed_at=claimed_at, lapses_at=lapses_at, gpus=gpus)


def _is_claimed(window: Window, masks: Masks, scene: Scene) -> bool:
    """Return whether one of its jobs holds GPUs of it, or was started during it."""
    runs = scene.cluster.runs.values()
    if any(_meets(run.grant, masks) for run in runs if window.admits(run.key.tenant, run.priority)):
        return True
    own = (job for job in scene.jobs if job.attempts and window.admits(job.spec.tenant, job.priority))
    return any(
        not window.gpus or _meets(scene.gpus.grant(attempt.gpus), masks)
        for job in own
        for attempt in job.attempts
        if attempt.gpus and attempt.started_at is not None and attempt.started_at >= window.start
    )


def _meets(grant: Grant, masks: Masks) -> bool:
    return any(mask & masks[node] for node, mask in grant)


def _waits_for(window: Window, job: Job) -> bool:
    """Return whether the job waits for GPUs, may use these, and may begin before the window ends."""
    if job.state is not JobState.PENDING or job.held or not job.spec.gpus.maximum:
        return False
    in_time = job.spec.begin_at is None or job.spec.begin_at < window.end
    return in_time and window.admits(job.spec.tenant, job.priority)


def _any(window: Window, others: Iterable[ReservedWindow], scene: Scene, *, own_first: bool) -> tuple[Masks, int]:
    """Choose GPUs for a reservation, and count those that strangers hold by then or that are missing.

    First GPUs of its own jobs that started during it, then GPUs that are free by then, then GPUs of its own jobs that
    started before (`own_first` swaps these two); of each kind the last in order of assignment. GPUs that no job gets
    now are reserved only if the others do not suffice.
    """
    cluster, everything = scene.cluster, [layout.everything for layout in scene.cluster.layouts]
    start, end = window.start.timestamp(), window.end.timestamp()
    taken = [0] * len(everything)
    for keep in others:
        if keep.start < end and start < keep.end:
            taken = [mask | more for mask, more in zip(taken, keep.masks, strict=True)]
    mine, early, late = _held(window, cluster, scene.now)
    poor = [_poor(node, scene.gpus) for node in scene.gpus.rows]
    calm = [whole & ~(busy | bad) for whole, busy, bad in zip(everything, late, poor, strict=True)]
    good = [whole & ~bad for whole, bad in zip(everything, poor, strict=True)]
    chosen, left = [0] * len(everything), window.count
    useful = (mine, early, calm) if own_first else (mine, calm, early)
    lacking = 0
    for tier in (*useful, good, everything):
        lacking = left if tier is good else lacking
        for node in reversed(range(len(everything))):
            able = tier[node] & ~taken[node] & ~chosen[node]
            count = min(left, able.bit_count())
            chosen[node] |= able & ~lowest(able, able.bit_count() - count)
            left -= count
    return tuple(chosen), lacking


def _held(window: Window, cluster: ClusterState, now: datetime) -> tuple[list[int], list[int], list[int]]:
    """GPUs of its own jobs begun in its time; of its own begun earlier; and of all that end after its start."""
    start, second = window.start.timestamp(), now.timestamp()
    mine, early, late = ([0] * len(cluster.free) for _ in range(3))
    for run in cluster.runs.values():
        own = window.admits(run.key.tenant, run.priority)
        for node, mask in run.grant:
            mine[node] |= mask if own and run.started >= start else 0
            early[node] |= mask if own else 0
            late[node] |= mask if run.ends(second) > max(start, second) else 0
    return mine, early, late


def _poor(node: Iterable[GpuView], gpus: GpuIndex) -> int:
    """Return the GPUs that no job gets now, or only a job that names them."""
    return sum(
        1 << bit
        for bit, row in enumerate(node)
        if row.drain is not None or row.state not in _GIVEN_OUT or gpus.is_left_free(row.gpu)
    )
