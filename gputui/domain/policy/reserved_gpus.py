"""GPUs of reservations: their choice, and when a reservation counts as claimed or is released."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.policy.cluster_state import ClusterState, ReservedWindow
from gputui.domain.policy.gpus.index import GpuIndex
from gputui.domain.policy.gpus.placement import Grant, lowest
from gputui.domain.settings import Window
from gputui.domain.snapshot import WindowState, WindowView
from gputui.domain.state import JobState

_GIVEN_OUT = frozenset({GpuState.FREE, GpuState.ALLOCATED})
Masks = tuple[int, ...]
"""GPUs by node."""


class Scene(Struct, frozen=True):
    """Facts by which a reservation is judged."""

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
    free_first = _choose_for_all(ordered, scene, own_first=False)
    if not free_first.short:
        return free_first.views, free_first.keeps
    own_first = _choose_for_all(ordered, scene, own_first=True)
    best = own_first if own_first.short < free_first.short else free_first
    return best.views, best.keeps


class Chosen(Struct, frozen=True):
    """GPUs chosen for all reservations, and the number of them that strangers hold or that are unusable."""

    views: tuple[WindowView, ...]
    keeps: tuple[ReservedWindow, ...]
    short: int


def _choose_for_all(ordered: Sequence[WindowView], scene: Scene, *, own_first: bool) -> Chosen:
    """Choose GPUs for each reservation in turn.

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
        masks, lacking = _masks(view.window, keeps, scene, own_first=own_first)
        judged = seen[number] = _judged(view, masks, scene)
        if judged.state is not WindowState.RELEASED:
            keeps.append(_keep(view.window, masks))
            short += lacking
    return Chosen(tuple(seen[number] for number in range(len(ordered))), tuple(keeps), short)


def _keep(window: Window, masks: Masks) -> ReservedWindow:
    start, end = window.start.timestamp(), window.end.timestamp()
    return ReservedWindow(window.name, start, end, masks, window.tenant, window.priority)


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


def _masks(window: Window, others: Iterable[ReservedWindow], scene: Scene, *, own_first: bool) -> tuple[Masks, int]:
    """Return the GPUs of a reservation, and how many of them are useless to it."""
    if window.gpus:
        return scene.gpus.named(window.gpus), 0
    return _any(window, others, scene, own_first=own_first)


def _any(window: Window, others: Iterable[ReservedWindow], scene: Scene, *, own_first: bool) -> tuple[Masks, int]:
    """Choose GPUs for a reservation, and count those that strangers hold by then or that are missing.

    First GPUs of its own jobs that started during it, then GPUs that are free by then, then GPUs of its own jobs that
    started before (`own_first` swaps these two); of each kind the last in order of assignment. GPUs that no job gets
    now are reserved only if the others do not suffice.
    """
    cluster, everything = scene.cluster, [layout.everything for layout in scene.cluster.layouts]
    taken = _taken(window, others, len(everything))
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


def _taken(window: Window, others: Iterable[ReservedWindow], nodes: int) -> list[int]:
    """Return the GPUs that other reservations hold during it, by node."""
    start, end = window.start.timestamp(), window.end.timestamp()
    taken = [0] * nodes
    for keep in others:
        if keep.start < end and start < keep.end:
            taken = [mask | more for mask, more in zip(taken, keep.masks, strict=True)]
    return taken


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
