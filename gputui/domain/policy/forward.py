"""The decision run forward over time: with planned durations a forecast, with true ones a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gputui.domain.policy.board import Board, Run
from gputui.domain.policy.decide import can_decide, decide, next_settling
from gputui.domain.policy.lanes import LaneKey, Waiting


class Arrival(NamedTuple):
    """A job that begins to wait at a time."""

    at: float
    key: LaneKey
    item: Waiting


@dataclass(eq=False, slots=True)
class Reach:
    """How far a run forward may go, and went."""

    work: float = float("inf")
    """So many steps may be taken; counted down. A lane looked at is one, and a job refused."""
    at: float = 0.0
    """Up to here every start is foreseen."""
    is_short: bool = False
    """Whether it stopped there although more was to come."""


def run_forward(
    board: Board,
    now: float,
    arrivals: Iterable[Arrival] = (),
    lasts: Callable[[Run], float] = lambda run: run.duration,
    moments: Iterable[float] = (),
    ended: Callable[[Run, float], Iterable[Arrival]] = lambda run, at: (),
    reach: Reach | None = None,
) -> Iterator[Run]:
    """Yield each start from now on, in order, played out on the board itself, as far as `reach` allows.

    `lasts` says how many seconds a run really takes; `moments` are further times at which to look; `ended` may answer
    the end of a run with jobs that waited for it. What can never start is never told of.
    """
    reach = reach or Reach()
    ends = [(max(now, run.ends(now)), run.id) for run in board.runs.values()]
    heapify(ends)
    coming = [(arrival.at, number, arrival) for number, arrival in enumerate(arrivals)]
    heapify(coming)
    looks = [moment for moment in moments if moment > now]
    heapify(looks)
    at, count = now, len(coming)
    while True:
        while ends and ends[0][0] <= at:
            for arrival in ended(board.end(heappop(ends)[1], at), at):
                heappush(coming, (arrival.at, count := count + 1, arrival))
        while coming and coming[0][0] <= at:
            arrival = heappop(coming)[2]
            board.add(arrival.key, arrival.item)
        while looks and looks[0] <= at:
            heappop(looks)
        settling = []
        if can_decide(board) and board.lanes:
            outcome = decide(board, at)
            reach.work -= len(board.lanes) + len(outcome.refusals)
            for run in outcome.starts:
                heappush(ends, (at + lasts(run), run.id))
                yield run
            settling = [next_settling(board, outcome, at)]
        reach.at = at
        following = [queue[0][0] for queue in (ends, coming) if queue] + looks[:1] + settling
        if not following or min(following) == _NEVER:
            return
        if reach.work <= 0:
            reach.is_short = True
            return
        at = max(at, min(following))


_NEVER = float("inf")
