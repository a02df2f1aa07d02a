"""A snapshot as the board that decisions are made on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from gputui.domain.job import Job, JobId
from gputui.domain.policy.board import Board, Rules, Run
from gputui.domain.policy.durations import Durations, Source
from gputui.domain.policy.fairshare import Ledger, factors
from gputui.domain.policy.lanes import LaneKey, Waiting
from gputui.domain.policy.machine import Ask
from gputui.domain.policy.order import topped
from gputui.domain.policy.place import Places
from gputui.domain.policy.standing import effective, views
from gputui.domain.policy.windows import Scene, watch
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.window import WindowView


@dataclass
class Look:
    """What a plan works on: the board, and how to get from there back to jobs and times."""

    snapshot: Snapshot
    settings: Settings
    now: datetime
    second: float
    places: Places
    durations: Durations
    board: Board
    sources: dict[JobId, Source] = field(default_factory=dict)
    """Of running jobs: where their planned ends come from."""
    keys: dict[tuple[str, Ask], LaneKey] = field(default_factory=dict)
    """The same object for jobs alike."""
    windows: tuple[WindowView, ...] = ()

    @classmethod
    def at(cls, snapshot: Snapshot, settings: Settings, now: datetime) -> Look:
        """The board that a snapshot shows, with nothing waiting yet."""
        windows = views(settings.policy, snapshot.controls, now)
        settings = effective(settings, snapshot.controls)
        places = Places.of(snapshot.nodes, settings.policy)
        second = now.timestamp()
        ledger = Ledger(settings.policy.half_life.total_seconds(), second)
        for tenant, used in snapshot.usage.gpu_seconds.items():
            ledger.credit(tenant, used, snapshot.usage.at.timestamp())
        rules = Rules.of(settings.policy, settings.scheduler.cpu_jobs)
        board = Board(rules, places.layouts, places.free(), ledger)
        durations = Durations(snapshot.jobs, settings.policy)
        look = cls(snapshot, settings, now, second, places, durations, board)
        for job in snapshot.jobs:
            if job.attempts:
                look._count(job)
        if windows:
            scene = Scene(snapshot.jobs, places, board, settings.policy.reservation_grace, now)
            look.windows, board.keeps = watch(windows, scene)
        return look

    def _count(self, job: Job) -> None:
        """Take the job's attempts into account: those that are over, and the one under way."""
        for attempt in job.attempts:
            if attempt.gpus and attempt.started_at and attempt.ended_at:
                self.board.ledger.begin(job.spec.tenant, len(attempt.gpus), attempt.started_at.timestamp())
                self.board.ledger.end(job.spec.tenant, len(attempt.gpus), attempt.ended_at.timestamp())
        if job.state.is_active and not job.attempts[-1].is_over:
            started = job.attempts[-1].started_at or job.attempts[-1].claimed_at or self.now
            planned = self.durations.of(job)
            self.sources[job.id] = planned.source
            grant = self.places.grant(job.gpus)
            self.board.hold(Run(job.id, self.key(job), job.priority, grant, started.timestamp(), planned.seconds))

    def key(self, job: Job) -> LaneKey:
        """The lane a job belongs to."""
        ask, array = self.places.ask(job), job.array
        if array is None or array.limit is None:
            return self.keys.setdefault((job.spec.tenant, ask), LaneKey(job.spec.tenant, ask))
        return LaneKey(job.spec.tenant, ask, array.id, array.limit)

    def item(self, job: Job) -> Waiting:
        """The job as it waits in its lane."""
        base = self.board.rules.base(job.priority, job.spec.nice)
        when_topped = topped(job) if job.topped_at else 0.0
        seconds = self.durations.seconds(job)
        return Waiting(job.submitted_at.timestamp(), job.id, seconds, base, job.priority, when_topped)

    def when(self, second: float) -> datetime:
        """The time of a second of the board."""
        return self.now + timedelta(seconds=second - self.second)


class Entry(NamedTuple):
    """A waiting job."""

    job: Job
    key: LaneKey
    item: Waiting


def in_order(look: Look) -> list[Entry]:
    """All waiting jobs, first to start first."""
    jobs = [job for job in look.snapshot.jobs if job.state is JobState.PENDING]
    fair, rules = fair_shares(look, jobs), look.board.rules
    points = {tenant: rules.fair_weight * factor for tenant, factor in fair.items()}
    rank, second = rules.ageing.rank, look.second
    entries = [Entry(job, look.key(job), look.item(job)) for job in jobs]
    ranks = [rank(item, points[key.tenant], second) for _, key, item in entries]
    return [entries[number] for number in sorted(range(len(ranks)), key=ranks.__getitem__)]


def fair_shares(look: Look, waiting: Iterable[Job]) -> dict[str, float]:
    """F of every tenant that waits, runs or has run."""
    names = {job.spec.tenant for job in waiting}
    return factors(look.board.ledger.used(look.second), look.board.rules.weights, names)
