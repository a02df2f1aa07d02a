"""When waiting jobs are expected to start: the same decision run forward over planned durations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from heapq import nsmallest

from gputui.domain.job import JobId
from gputui.domain.policy.board import Board, Run
from gputui.domain.policy.dependency import Dependencies
from gputui.domain.policy.forward import Arrival, Reach, run_forward
from gputui.domain.policy.lineup import Entry, as_they_wait
from gputui.domain.policy.look import Look
from gputui.domain.policy.settling import SOON

SETTLINGS = 16
"""Most times of settling for fewer GPUs at which a forecast looks for that alone."""
WORK, WORK_A_START = 5_000, 100
"""Most steps of a forecast: a lane looked at or a job refused is one, of some microseconds."""


def expected_starts(look: Look, gated: Iterable[Entry], most: int, reach: Reach | None = None) -> dict[JobId, datetime]:
    """Return when the first `most` jobs to start after those that start now are planned to."""
    return {run.id: look.when(run.started) for run in expected_runs(look, gated, most, reach)}


def expected_runs(look: Look, gated: Iterable[Entry], most: int, reach: Reach | None = None) -> Iterator[Run]:
    """Yield those starts themselves, with the GPUs that the plan foresees; `reach` tells how far that is."""
    reach = reach or Reach()
    reach.work = WORK + WORK_A_START * most
    for number, run in enumerate(_runs(look, gated, reach) if most > 0 else (), 1):
        yield run
        if number == most:
            reach.at, reach.is_short = run.started, True
            return


def _runs(look: Look, gated: Iterable[Entry], reach: Reach) -> Iterator[Run]:
    board = look.board.copy()
    # what was given back a moment ago is as good as free
    board.free = [free | settling for free, settling in zip(board.free, board.settling, strict=True)]
    later = list(gated)
    known, behind = _coming(look, later)
    moments = [*(keep.end for keep in board.keeps), *(keep.start for keep in board.keeps)]
    moments += _settling(board, look.second)
    return run_forward(board, look.second, known, moments=moments, ended=behind.ended, reach=reach)


def _settling(board: Board, now: float) -> list[float]:
    """Return the first few times at which jobs settle for fewer GPUs, in seconds.

    The scheduler looks then, and the order may have changed by then though no job starts for the settling itself.
    """
    ranges = (lane for key, lane in board.lanes.items() if key.ask.minimum < key.ask.maximum)
    times = (item[0] + board.rules.patience for lane in ranges for item in lane.items)
    return nsmallest(SETTLINGS, {at for at in times if at > now})


def _coming(look: Look, gated: Iterable[Entry]) -> tuple[list[Arrival], _Dependents]:
    """Jobs that will wait for GPUs from a known time on, and those that will once others have ended."""
    known: list[Arrival] = []
    behind = _Dependents()
    open_ones = [] if look.snapshot.controls.paused else [entry for entry in gated if not entry.job.held]
    jobs = {job.id: job for job in look.snapshot.jobs} if open_ones or look.making_way else {}
    for _, key, item in as_they_wait(look, [jobs[victim] for victim in look.making_way]):
        behind.comes_back(Arrival(look.second, key, item))
    dependencies = Dependencies.of(jobs.values())
    for entry in open_ones:
        job = entry.job
        unmet = dependencies.awaited(job)
        times = [at.timestamp() for at in (job.not_before, job.spec.begin_at) if at is not None and at > look.now]
        arrival = Arrival(max(times, default=look.second), entry.key, entry.item)
        if unmet:
            behind.add(arrival, unmet)
        elif times:
            known.append(arrival)
    return known, behind


class _Dependents:
    """Jobs that wait for the end of others."""

    def __init__(self) -> None:
        self._unmet: dict[JobId, set[JobId]] = {}
        self._waiting: dict[JobId, list[Arrival]] = {}
        self._preempted: dict[JobId, Arrival] = {}

    def add(self, arrival: Arrival, unmet: set[JobId]) -> None:
        """This one waits for all of these."""
        self._unmet[arrival.item.id] = unmet
        for other in unmet:
            self._waiting.setdefault(other, []).append(arrival)

    def comes_back(self, arrival: Arrival) -> None:
        """This one runs, is preempted, and waits again once the other has started."""
        self._preempted[arrival.item.id] = arrival

    def ended(self, run: Run, at: float) -> Iterator[Arrival]:
        """Those that wait for nothing any more, now that this one has ended."""
        if back := self._preempted.pop(run.id, None):
            yield back._replace(at=at + SOON)
            return
        for arrival in self._waiting.pop(run.id, ()):
            unmet = self._unmet[arrival.item.id]
            unmet.discard(run.id)
            if not unmet:
                yield arrival._replace(at=max(at, arrival.at))
