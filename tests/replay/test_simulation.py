"""A replay decides as the scheduler does, with predictions and with preemption."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import GpuState, Holder
from gputui.domain.job import Attempt, Job, Stopping
from gputui.domain.job_spec import JobId
from gputui.domain.policy.decide import Outcome
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.replay.simulation import Predictions, TraceReplay, figures
from gputui.replay.trace import HOUR, Ran, Site, TraceJob
from tests.cases import cases
from tests.factories import NOW, job, uuid, view

MINUTE = 60.0
EIGHT = Site(8)
UP = (RuntimeStatus("docker", True, "Docker"),)


def when(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


class Checked(TraceReplay):
    """Simulation that makes every decision a second time by `plan()`, from jobs as the scheduler knows them."""

    def __init__(self, jobs: Sequence[TraceJob], settings: PolicySettings) -> None:
        super().__init__(jobs, EIGHT, settings)
        self.settings = Settings(policy=replace(settings, forecast_jobs=0))
        self.trace = {each.number: each for each in jobs}
        self.attempts: dict[JobId, list[Attempt]] = {each.number: [] for each in jobs}
        self.over: set[JobId] = set()
        self.looks = 0

    def decided(self) -> Outcome:
        self._note_ends()
        expected = self._planned()
        outcome = super().decided()
        self.looks += 1
        assert {each.id for each in outcome.starts} == {each.job_id for each in expected.starts}, self.now
        preempted = outcome.hold.preempts if outcome.hold is not None else ()
        assert set(preempted) == {each.victim for each in expected.preemptions}, self.now
        for run in outcome.starts:
            held = tuple(uuid(bit) for bit in range(8) if run.grant[0][1] >> bit & 1)
            past, at = self.attempts[run.id], when(self.now)
            past.append(Attempt(len(past) + 1, held, at, "c", at))
        for victim in preempted:
            assert outcome.hold is not None
            last = self.attempts[victim][-1]
            self.attempts[victim][-1] = replace(last, preempted_by=outcome.hold.id, preempted_at=when(self.now))
        return outcome

    def held(self) -> list[tuple[datetime, datetime, str]]:
        """Return the begins and ends of the use of each GPU, including lost runs."""
        self._note_ends()
        runs = [each for attempts in self.attempts.values() for each in attempts]
        return [(each.started_at or NOW, each.ended_at or NOW, gpu) for each in runs for gpu in each.gpus]

    def _note_ends(self) -> None:
        for number, attempts in self.attempts.items():
            if not attempts or attempts[-1].ended_at is not None or number in self.cluster.runs:
                continue
            began = attempts[-1].started_at
            told = attempts[-1].preempted_at
            assert began is not None
            ended, cause = began + timedelta(seconds=self.trace[number].duration), None
            if told is not None and told + self.settings.policy.preemption_grace < ended:
                ended = told + self.settings.policy.preemption_grace
                cause = Cause(CauseCode.PREEMPTED, "preempted")
            else:
                self.over.add(number)
            attempts[-1] = replace(attempts[-1], ended_at=ended, cause=cause)

    def _planned(self) -> Plan:
        waiting = {item.id: (key, item) for key, lane in self.cluster.lanes.items() for item in lane.waiting}
        jobs = []
        for number, each in self.trace.items():
            if number in waiting:
                key, item = waiting[number]
                topped = when(key.topped) if key.topped else None
                jobs.append(self._job(each, submitted_at=when(item.since), topped_at=topped))
            elif number in self.cluster.runs:
                jobs.append(self._running(each))
            elif number in self.over:
                last = self.attempts[number][-1]
                times = {"started_at": last.started_at, "ended_at": last.ended_at}
                jobs.append(self._job(each, state=JobState.COMPLETED, **times))
        return plan(self._seen(jobs), self.settings, when(self.now))

    def _running(self, each: TraceJob) -> Job:
        last = self.attempts[each.number][-1]
        told = last.preempted_at
        stopping = Stopping(Cause(CauseCode.PREEMPTED, "preempted"), told) if told else None
        return self._job(each, state=JobState.RUNNING, started_at=last.started_at, stopping=stopping)

    def _job(self, each: TraceJob, **changes: Any) -> Job:
        limit = timedelta(seconds=each.limit) if each.is_limited else None
        known: dict[str, Any] = {
            "tenant": each.tenant,
            "name": each.name,
            "preemptible": each.preemptible,
            "time_limit": limit,
        }
        made = job(each.number, gpus=each.gpus, priority=each.priority, **known)
        return made.evolve(attempts=tuple(self.attempts[each.number]), **changes)

    def _seen(self, jobs: Sequence[Job]) -> Snapshot:
        held = {name: one.id for one in jobs if one.state is JobState.RUNNING for name in one.gpus}
        rows = [
            view(i, GpuState.ALLOCATED, job_id=held[uuid(i)], holders=(Holder("job", "x"),))
            if uuid(i) in held
            else view(i)
            for i in range(8)
        ]
        return Snapshot(taken_at=when(self.now), nodes=(Node("here", tuple(rows), runtimes=UP),), jobs=tuple(jobs))


def some_jobs(seed: int, count: int = 70, *, limited: float = 0.4) -> list[TraceJob]:
    rng, at, jobs = random.Random(seed), 0, list[TraceJob]()
    for number in range(count):
        at += rng.choice([0, 10, 300, 1500])
        name = rng.choice(["train", "eval", "sweep"])
        jobs.append(
            TraceJob(
                number=number,
                submit=float(at),
                duration=float(rng.choice([30, 700, 1800, 4000, 9000]) + number % 7),
                gpus=rng.choice([1, 1, 1, 2, 4, 8]),
                tenant=rng.choice("ab"),
                limit=10_000.0,
                priority=rng.choice([10, 50, 50, 50, 90]),
                name=name,
                preemptible=rng.random() < 0.6,
                is_limited=rng.random() < limited,
            )
        )
    return jobs


def policy(**changes: Any) -> PolicySettings:
    return PolicySettings(**{"max_time": timedelta(seconds=10_000), "preemption": True, **changes})


@cases("seed", [2, 4])
def test_every_decision_equals_that_of_the_scheduler(seed: int) -> None:
    simulation = Checked(some_jobs(seed), policy(preemption_min_run=timedelta(minutes=5), preemptions_per_hour=4))
    ran = simulation.run()
    assert len(ran) == 70
    assert simulation.looks > 100
    assert sum(each.preemptions for each in ran) > 1
    held = simulation.held()
    work = sum(each.gpus * (each.end - each.start) + each.lost for each in ran)
    assert sum((end - start).total_seconds() for start, end, _ in held) == pytest.approx(work)
    assert figures(ran, 8).gpu_seconds_lost > 0
    for gpu in {gpu for *_, gpu in held}:
        times = sorted((start, end) for start, end, name in held if name == gpu)
        assert all(end <= start for (_, end), (start, _) in pairwise(times))


def test_every_decision_is_the_same_without_limits_and_preemption() -> None:
    simulation = Checked(some_jobs(7, limited=0.0), policy(preemption=False))
    assert len(simulation.run()) == 70


def played(jobs: Sequence[TraceJob], **changes: Any) -> dict[int, Ran]:
    return {ran.job.number: ran for ran in TraceReplay(jobs, EIGHT, policy(**changes)).run()}


def low(number: int, submit: float, duration: float, gpus: int = 8, **changes: Any) -> TraceJob:
    fields: dict[str, Any] = {"priority": 0, "preemptible": True, "limit": duration, **changes}
    return TraceJob(number, submit, duration, gpus, "a", **fields)


def high(number: int, submit: float, duration: float, gpus: int = 8) -> TraceJob:
    return TraceJob(number, submit, duration, gpus, "b", duration, 90)


def test_a_preempted_job_loses_its_work_and_runs_again() -> None:
    ran = played([low(0, 0, 4 * HOUR), high(1, HOUR, HOUR, 4)])
    assert (ran[1].start, ran[1].end) == (HOUR + MINUTE, 2 * HOUR + MINUTE)
    assert (ran[0].start, ran[0].end, ran[0].preemptions) == (2 * HOUR + MINUTE, 6 * HOUR + MINUTE, 1)
    assert ran[0].lost == 8 * (HOUR + MINUTE)


def test_no_job_is_preempted_with_preemption_off_or_too_early() -> None:
    jobs = [low(0, 0, HOUR), high(1, 60, HOUR)]
    assert played(jobs, preemption=False)[1].start == HOUR
    assert played(jobs)[1].start == 11 * MINUTE  # ten minutes of its own, and the grace
    assert played([low(0, 0, HOUR, preemptible=False), jobs[1]])[1].start == HOUR
    assert played(jobs, preemptions_per_hour=1)[0].preemptions == 1


def test_a_job_that_ends_during_its_grace_has_lost_nothing() -> None:
    ran = played([low(0, 0, HOUR, limit=2 * HOUR), high(1, HOUR - 30, HOUR)])
    assert (ran[0].end, ran[0].preemptions, ran[0].lost) == (HOUR, 0, 0)
    assert ran[1].start == HOUR


def test_preemptions_are_counted_by_job_and_by_hour() -> None:
    jobs = [low(0, 0, 5 * HOUR), *(high(1 + n, (1 + 2 * n) * HOUR, HOUR) for n in range(4))]
    assert played(jobs)[0].preemptions == 3
    assert played(jobs, preemptions_per_job=1)[0].preemptions == 1
    pair = [low(0, 0, 5 * HOUR, 4), low(1, 0, 5 * HOUR, 4), high(2, HOUR, HOUR, 4), high(3, HOUR + 1, HOUR, 4)]
    both = played(pair)
    assert [both[number].start for number in (2, 3)] == [HOUR + MINUTE, HOUR + 2 * MINUTE]
    slowly = played(pair, preemptions_per_hour=1)
    assert slowly[3].start == 2 * HOUR + MINUTE


def named(number: int, submit: float, duration: float, gpus: int, name: str = "train") -> TraceJob:
    return TraceJob(number, submit, duration, gpus, "a", 10_000.0, name=name, is_limited=False)


PAST = [named(0, 0, 100, 1), named(1, 0, 200, 1)]
OTHERS = [TraceJob(3, 310, 100, 8, "a", 100), TraceJob(4, 320, 2000, 2, "a", 2000)]
"""A wide job that has to wait for job 2, and one that may go before it if job 2 is expected to take long."""


def test_a_running_job_without_a_limit_is_predicted_by_the_last_two_of_its_name() -> None:
    seconds = named(2, 300, 3000, 4)
    assert played([*PAST, seconds, *OTHERS])[4].start > 3000
    assert played([*PAST, dataclasses.replace(seconds, name="other"), *OTHERS])[4].start == 320
    assert played([*PAST, dataclasses.replace(seconds, is_limited=True), *OTHERS])[4].start == 320
    assert played([*PAST, seconds, *OTHERS], predict=False)[4].start == 320
    assert played([*PAST[:1], seconds, *OTHERS])[4].start == 320
    failed = [dataclasses.replace(each, ended_well=False) for each in PAST]
    assert played([*failed, seconds, *OTHERS])[4].start == 320


def test_expected_ends_change_when_a_job_of_the_same_name_ends() -> None:
    assert played([*PAST, named(2, 0, 3000, 4), *OTHERS])[4].start > 3000
    later = dataclasses.replace(PAST[1], duration=330.0)
    assert played([PAST[0], later, named(2, 0, 3000, 4), *OTHERS])[4].start == 320


def test_a_job_that_waits_without_a_limit_is_planned_as_the_longest_stated() -> None:
    # job 5 is known to be short, but nothing is gained by that
    wide = [TraceJob(3, 310, 2000, 6, "a", 2000), TraceJob(4, 320, 100, 8, "a", 100)]
    assert played([*PAST, *wide, named(5, 330, 100, 1)])[5].start > 2000
    assert (
        played([*PAST, *wide, dataclasses.replace(named(5, 330, 100, 1), limit=500.0, is_limited=True)])[5].start == 330
    )
    durations = Predictions([named(0, 0, 1, 1), TraceJob(1, 0, 1, 1, "a", 90_000.0)], PolicySettings())
    assert durations.planned(named(5, 330, 100, 1)) == 90_000
