"""Reservations: windows of time in which GPUs are kept for somebody."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gputui.domain.job import Job
from gputui.domain.policy.board import Board, Keep
from gputui.domain.policy.machine import lowest
from gputui.domain.policy.place import Places
from gputui.domain.settings import PolicySettings, Window


def keeps(
    settings: PolicySettings, jobs: Iterable[Job], places: Places, board: Board, now: datetime
) -> tuple[Keep, ...]:
    """The windows that still matter. One that nobody has claimed by the end of its grace is given up."""
    if not settings.reservations:
        return ()
    live = [job for job in jobs if not job.state.is_terminal]
    found: list[Keep] = []
    for window in sorted(settings.reservations, key=lambda window: (window.start, window.name)):
        given_up = now >= window.start + settings.reservation_grace and not _claimed(window, live)
        if window.end > now and not given_up:
            masks = places.named(window.gpus) if window.gpus else _any(window, found, board, now)
            start, end = window.start.timestamp(), window.end.timestamp()
            found.append(Keep(window.name, start, end, masks, window.tenant, window.priority))
    return tuple(found)


def _claimed(window: Window, jobs: Iterable[Job]) -> bool:
    """Whether a job it is kept for runs or waits."""
    return any(
        (window.tenant is not None and job.spec.tenant == window.tenant)
        or (window.priority is not None and job.priority >= window.priority)
        for job in jobs
        if not job.held
    )


def _any(window: Window, others: Iterable[Keep], board: Board, now: datetime) -> tuple[int, ...]:
    """So many GPUs, no others than are free by then wherever possible, and of those the last to be given out."""
    start, end, second = window.start.timestamp(), window.end.timestamp(), now.timestamp()
    taken = [0] * len(board.free)
    for keep in others:
        if keep.start < end and start < keep.end:
            taken = [mask | more for mask, more in zip(taken, keep.masks, strict=True)]
    late = [0] * len(board.free)
    for run in board.runs.values():
        own = (window.tenant is not None and run.key.tenant == window.tenant) or (
            window.priority is not None and run.priority >= window.priority
        )
        if run.ends(second) > max(start, second) and not own:
            for node, mask in run.grant:
                late[node] |= mask
    chosen, left = [0] * len(board.free), window.count
    for avoid_late in (True, False):
        for node in reversed(range(len(board.free))):
            able = board.layouts[node].everything & ~taken[node] & ~chosen[node]
            able &= ~late[node] if avoid_late else late[node]
            count = min(left, able.bit_count())
            chosen[node] |= able & ~lowest(able, able.bit_count() - count)
            left -= count
    return tuple(chosen)
