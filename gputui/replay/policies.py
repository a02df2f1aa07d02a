"""Policies a trace is replayed under: the product's own decision, and what people do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from gputui.domain.policy.board import Board, Rules, Run
from gputui.domain.policy.fairshare import Ledger
from gputui.domain.policy.forward import Arrival, run_forward
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.machine import Ask, Layout
from gputui.domain.settings import PolicySettings
from gputui.replay import baselines
from gputui.replay.trace import Site, TraceJob


class Ran(NamedTuple):
    """When a job of the trace ran, and on how many GPUs."""

    job: TraceJob
    start: float
    end: float
    gpus: int


Policy: TypeAlias = Callable[[Sequence[TraceJob], Site], Iterator[Ran]]


def board_for(site: Site, settings: PolicySettings) -> Board:
    """An empty board of the site."""
    masks = [(1 << count) - 1 for count in site.nodes]
    ledger = Ledger(settings.half_life.total_seconds(), 0.0)
    return Board(Rules.of(settings), [Layout(mask) for mask in masks], masks, ledger)


def arrivals(jobs: Sequence[TraceJob], site: Site, rules: Rules) -> Iterator[Arrival]:
    """The jobs as they come. One that is wider than a node takes whole nodes."""
    masks = tuple((1 << count) - 1 for count in site.nodes)
    widest = max(site.nodes)
    asks: dict[int, Ask] = {}
    for job in jobs:
        ask = asks.get(job.gpus)
        if ask is None:
            nodes = 0 if job.gpus <= widest else _nodes_for(job.gpus, site)
            ask = asks[job.gpus] = Ask(job.gpus, job.gpus, masks, nodes)
        item = Waiting(job.submit, job.number, job.limit, rules.base(job.priority, job.nice, job.limit), job.priority)
        yield Arrival(job.submit, LaneKey(job.tenant, ask), item)


def _nodes_for(gpus: int, site: Site) -> int:
    return min(-(-gpus // site.per_node), len(site.nodes))


def plan(jobs: Sequence[TraceJob], site: Site, settings: PolicySettings | None = None) -> Iterator[Ran]:
    """What `plan()` decides, from the same lines of code, at every submission and every end."""
    board = board_for(site, settings or PolicySettings())
    by_number = {job.number: job for job in jobs}

    def lasts(run: Run) -> float:
        return by_number[run.id].duration

    for run in run_forward(board, 0.0, arrivals(jobs, site, board.rules), lasts):
        job = by_number[run.id]
        yield Ran(job, run.started, run.started + job.duration, job.gpus)


def _baseline(play: Callable[[Sequence[TraceJob], Site], Iterator[tuple[TraceJob, float, float, int]]]) -> Policy:
    def replayed(jobs: Sequence[TraceJob], site: Site) -> Iterator[Ran]:
        return (Ran(*each) for each in play(jobs, site))

    return replayed


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "plan": plan,
        "fifo": _baseline(baselines.fifo),
        "greedy": _baseline(baselines.greedy),
        "static-equal": _baseline(baselines.static_equal),
        "static-proportional": _baseline(baselines.static_proportional),
        "host-lease": _baseline(baselines.host_lease),
    }
)
"""By name; `plan` is the product's own."""
