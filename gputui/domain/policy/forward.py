"""The decision run forward over time: with planned durations a forecast, with true ones a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from gputui.domain.policy.board import Board, Rules, Run
from gputui.domain.policy.decide import can_decide, decide
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.machine import Ask


class Arrival(NamedTuple):
    """A job that begins to wait at a time."""

    at: float
    key: LaneKey
    item: Waiting


def run_forward(
    board: Board,
    now: float,
    arrivals: Iterable[Arrival] = (),
    lasts: Callable[[Run], float] = lambda run: run.duration,
    moments: Iterable[float] = (),
    ended: Callable[[Run, float], Iterable[Arrival]] = lambda run, at: (),
) -> Iterator[Run]:
    """Each start from now on, in order, played out on the board itself.

    `lasts` says how many seconds a run really takes; `moments` are further times at which to look; `ended` may answer
    the end of a run with jobs that waited for it. What can never start is never told of.
    """
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
        if can_decide(board) and board.lanes:
            for run in decide(board, at).starts:
                heappush(ends, (at + lasts(run), run.id))
                yield run
        following = [queue[0][0] for queue in (ends, coming) if queue] + looks[:1]
        if not following:
            return
        at = max(at, min(following))


def patience_ends(rules: Rules, waiting: Iterable[tuple[Ask, Iterable[Waiting]]]) -> list[float]:
    """When waiting jobs will settle for fewer GPUs."""
    ranges = (items for ask, items in waiting if ask.minimum != ask.maximum)
    return [item.submitted + rules.patience for items in ranges for item in items]
