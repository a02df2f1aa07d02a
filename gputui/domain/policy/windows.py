"""Reservations: windows of time in which GPUs are kept for somebody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gputui.domain.gpu import GpuState, GpuView
from gputui.domain.job import Job
from gputui.domain.policy.board import Board, Keep
from gputui.domain.policy.machine import Grant, lowest
from gputui.domain.policy.place import Places
from gputui.domain.settings import Window
from gputui.domain.state import JobState
from gputui.domain.window import WindowState, WindowView

_GIVEN_OUT = frozenset({GpuState.FREE, GpuState.ALLOCATED})
Masks = tuple[int, ...]
"""Of each node, some of its GPUs."""


@dataclass(frozen=True)
class Scene:
    """What a reservation is judged by."""

    jobs: Sequence[Job]
    places: Places
    board: Board
    now: datetime


def watch(views: Iterable[WindowView], scene: Scene) -> tuple[tuple[WindowView, ...], tuple[Keep, ...]]:
    """The reservations as they stand on the board, and what of it they keep.

    Windows over named GPUs choose first: the others can go elsewhere.
    """
    ordered = tuple(views)
    seen: dict[int, WindowView] = {}
    keeps: list[Keep] = []
    for number, view in sorted(enumerate(ordered), key=lambda pair: not pair[1].window.gpus):
        if view.state is WindowState.RELEASED:
            seen[number] = view
            continue
        masks = _masks(view.window, keeps, scene)
        judged = seen[number] = _judged(view, masks, scene)
        if judged.state is not WindowState.RELEASED:
            keeps.append(_keep(view.window, masks))
    return tuple(seen[number] for number in range(len(ordered))), tuple(keeps)


def _keep(window: Window, masks: Masks) -> Keep:
    start, end = window.start.timestamp(), window.end.timestamp()
    return Keep(window.name, start, end, masks, window.tenant, window.priority)


def _judged(view: WindowView, masks: Masks, scene: Scene) -> WindowView:
    """With the GPUs it keeps; claimed once a job it is kept for has run in it, released when none has for its grace.

    One that is kept for nobody can be claimed by nobody, and so it stays.
    """
    window, claimed_at = view.window, view.claimed_at
    if claimed_at is None and view.state is WindowState.ACTIVE and _is_claimed(window, masks, scene):
        claimed_at = scene.now
    lapses_at = view.lapses_at if claimed_at is None else None
    lapsed = lapses_at is not None and scene.now >= lapses_at
    if lapsed and not any(_waits_for(window, job) for job in scene.jobs):
        return replace(view, state=WindowState.RELEASED, released_at=scene.now, lapses_at=None)
    gpus = scene.places.uuids(tuple(enumerate(masks)))
    return replace(view, claimed_at=claimed_at, lapses_at=lapses_at, gpus=gpus)


def _is_claimed(window: Window, masks: Masks, scene: Scene) -> bool:
    """Whether a job it is kept for holds GPUs of it, or was started in its time."""
    runs = scene.board.runs.values()
    if any(_meets(run.grant, masks) for run in runs if window.admits(run.key.tenant, run.priority)):
        return True
    own = (job for job in scene.jobs if job.attempts and window.admits(job.spec.tenant, job.priority))
    return any(
        not window.gpus or _meets(scene.places.grant(attempt.gpus), masks)
        for job in own
        for attempt in job.attempts
        if attempt.gpus and attempt.started_at is not None and attempt.started_at >= window.start
    )


def _meets(grant: Grant, masks: Masks) -> bool:
    return any(mask & masks[node] for node, mask in grant)


def _waits_for(window: Window, job: Job) -> bool:
    """Whether the job waits for GPUs, may have these, and is not to begin only when the window is over."""
    if job.state is not JobState.PENDING or job.held or not job.spec.gpus.maximum:
        return False
    in_time = job.spec.begin_at is None or job.spec.begin_at < window.end
    return in_time and window.admits(job.spec.tenant, job.priority)


def _masks(window: Window, others: Iterable[Keep], scene: Scene) -> Masks:
    return scene.places.named(window.gpus) if window.gpus else _any(window, others, scene)


def _any(window: Window, others: Iterable[Keep], scene: Scene) -> Masks:
    """So many GPUs, first those that its own jobs have taken in its time, then those that are free by then.

    Of these the last to be given out. GPUs that no job is given now are kept only where the others do not suffice.
    """
    board, everything = scene.board, [layout.everything for layout in scene.board.layouts]
    taken = _taken(window, others, len(everything))
    mine, early, late = _held(window, board, scene.now)
    poor = [_poor(node, scene.places) for node in scene.places.rows]
    calm = [whole & ~(busy | bad) for whole, busy, bad in zip(everything, late, poor, strict=True)]
    good = [whole & ~bad for whole, bad in zip(everything, poor, strict=True)]
    chosen, left = [0] * len(everything), window.count
    for tier in (mine, calm, early, good, everything):
        for node in reversed(range(len(everything))):
            able = tier[node] & ~taken[node] & ~chosen[node]
            count = min(left, able.bit_count())
            chosen[node] |= able & ~lowest(able, able.bit_count() - count)
            left -= count
    return tuple(chosen)


def _taken(window: Window, others: Iterable[Keep], nodes: int) -> list[int]:
    """What other reservations keep in its time."""
    start, end = window.start.timestamp(), window.end.timestamp()
    taken = [0] * nodes
    for keep in others:
        if keep.start < end and start < keep.end:
            taken = [mask | more for mask, more in zip(taken, keep.masks, strict=True)]
    return taken


def _held(window: Window, board: Board, now: datetime) -> tuple[list[int], list[int], list[int]]:
    """GPUs of its own jobs begun in its time; of its own begun earlier; and of all that end after its start."""
    start, second = window.start.timestamp(), now.timestamp()
    mine, early, late = ([0] * len(board.free) for _ in range(3))
    for run in board.runs.values():
        own = window.admits(run.key.tenant, run.priority)
        for node, mask in run.grant:
            mine[node] |= mask if own and run.started >= start else 0
            early[node] |= mask if own else 0
            late[node] |= mask if run.ends(second) > max(start, second) else 0
    return mine, early, late


def _poor(node: Iterable[GpuView], places: Places) -> int:
    """GPUs that no job is given now, or only one that names them."""
    return sum(
        1 << bit
        for bit, row in enumerate(node)
        if row.drain is not None or row.state not in _GIVEN_OUT or places.is_left_free(row.gpu)
    )
