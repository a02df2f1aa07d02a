"""A snapshot as the board that decisions are made on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gputui.domain.job import Job, JobId
from gputui.domain.policy import sharing
from gputui.domain.policy.board import Board, Rules, Run
from gputui.domain.policy.durations import Durations, Source
from gputui.domain.policy.fairshare import Ledger
from gputui.domain.policy.lanes import LaneKey
from gputui.domain.policy.machine import Ask
from gputui.domain.policy.place import Places
from gputui.domain.policy.preempted import is_making_way, leaves_at, victims
from gputui.domain.policy.settling import settling
from gputui.domain.policy.shadow import Hold
from gputui.domain.policy.sharing import Shares
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
    waiting: list[Job]
    """Those that wait, as the snapshot has them."""
    sources: dict[JobId, Source] = field(default_factory=dict)
    """Of running jobs: where their planned ends come from."""
    making_way: dict[JobId, JobId] = field(default_factory=dict)
    """Running jobs that are preempted, and for whom."""
    keys: dict[tuple[str, Ask] | tuple[str, Ask, JobId, int], LaneKey] = field(default_factory=dict)
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
        board.shares = Shares(places.bays(settings))
        durations = Durations(snapshot.jobs, settings.policy, settings.scheduler.max_time)
        waiting = [job for job in snapshot.jobs if job.state is JobState.PENDING]
        look = cls(snapshot, settings, now, second, places, durations, board, waiting)
        for job in [job for job in snapshot.jobs if job.attempts]:
            look._count(job)
        board.settling = settling(snapshot.jobs, places, now)
        board.victims = victims(snapshot, settings.policy, places, now)
        if windows:
            scene = Scene(snapshot.jobs, places, board, now)
            look.windows, board.keeps = watch(windows, scene)
        return look

    def _count(self, job: Job) -> None:
        """Take the job's attempts into account: those that are over, and the one under way."""
        for attempt in job.attempts:
            if attempt.gpus and attempt.started_at and attempt.ended_at:
                gpus = len(attempt.gpus) * attempt.gpu_share
                self.board.ledger.begin(job.spec.tenant, gpus, attempt.started_at.timestamp())
                self.board.ledger.end(job.spec.tenant, gpus, attempt.ended_at.timestamp())
        if job.state.is_active and not job.attempts[-1].is_over:
            started = job.attempts[-1].started_at or job.attempts[-1].claimed_at or self.now
            planned = self.durations.of(job)
            self.sources[job.id] = planned.source
            grant, part = self.places.grant(job.gpus), job.attempts[-1].gpu_share
            for place in sharing.places(grant) if job.spec.gpus.promised else ():
                self.board.shares.take(job.id, place, self.places.counts_with(job, place))
            leaving, by = leaves_at(job, self.settings), job.attempts[-1].preempted_by
            began, lasts, key = started.timestamp(), planned.seconds, self.key(job)
            self.board.hold(Run(job.id, key, job.priority, grant, began, lasts, part, leaving, len(job.gpus)))
            if by is not None and is_making_way(job):
                self.making_way[job.id] = by

    def key(self, job: Job) -> LaneKey:
        """The lane a job belongs to."""
        ask, array = self.places.ask(job), job.array
        limit = None if array is None else array.limit
        parts = (job.spec.tenant, ask) if array is None or limit is None else (job.spec.tenant, ask, array.id, limit)
        found = self.keys.get(parts)
        if found is None:
            found = self.keys[parts] = LaneKey(*parts)
        return found

    def make_way(self, hold: Hold | None) -> None:
        """Take those for gone, when their grace is over, that are to make way for the head."""
        if hold is None:
            return
        for job_id in hold.preempts:
            self.board.runs[job_id].leaving = hold.at
            self.making_way[job_id] = hold.id

    def when(self, second: float) -> datetime:
        """The time of a second of the board."""
        return self.now + timedelta(seconds=second - self.second)
