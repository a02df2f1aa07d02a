"""Preemption in the scheduler: recorded, signalled once, killed after its grace, GPUs kept; and crashes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.action import Cancel, Hold, Requeue, SetPriority
from gputui.domain.errors import CauseCode
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, whole_class
from gputui.domain.policy.plan import Preemption
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.engine.tick.reconcile import begin_preemptions
from tests.cases import cases
from tests.engine.fakes import Crash
from tests.engine.real_pools import RealPools
from tests.engine.world import World
from tests.lane import seeds

MINUTE = timedelta(minutes=1)


ON_REAL_POOLS = True


def preempting(directory: Path, pools: RealPools | None = None, **policy: Any) -> World:
    """Two GPUs, where a job may be preempted as soon as it has run for a minute."""
    return World(directory, gpus=2, settings=Settings(policy=policy_of(**policy)), pools=pools)


def policy_of(**policy: Any) -> PolicySettings:
    return PolicySettings(**{"preemption": True, "preemption_min_run": MINUTE, **policy})


@pytest.fixture
def site(tmp_path: Path, pools: RealPools | None) -> World:
    return preempting(tmp_path, pools)


def running_victim(world: World, gpus: int = 2, seconds: float = 61, **changes: Any) -> JobId:
    """Return a running preemptible job of low class that has run for that long."""
    victim = world.submit(gpus, **{"priority": 0, "preemptible": True, "name": "low", **changes})
    world.tick(2)
    world.tick(1, seconds=seconds)
    assert world.job(victim).state is JobState.RUNNING
    return victim


def told(world: World) -> list[str]:
    return [how for _, how in world.docker.told]


def why(snapshot: Snapshot, job_id: JobId) -> str:
    return snapshot.reasons[job_id].text


def preempted(job: Job) -> list[CauseCode | None]:
    return [attempt.cause.code if attempt.cause else None for attempt in job.attempts]


def test_a_victim_is_signalled_once_killed_after_its_grace_and_requeued_with_its_age(site: World) -> None:
    site.docker.obeys = False
    victim = running_victim(site, retries=1)
    submitted_at = site.job(victim).submitted_at
    site.submit(2, priority=100, name="urgent", tenant="bob")
    urgent = site.submit(2, priority=100, name="urgent", tenant="bob")
    first = urgent - 1
    seen = site.tick()
    job = site.job(victim)
    assert (job.state, told(site)) == (JobState.COMPLETING, ["terminate"])
    assert (job.attempts[0].preempted_by, job.attempts[0].preempted_at) == (first, site.clock.now())
    assert "job 1 is being preempted for it, up to 60 s grace; expected 12:02 UTC" in why(seen, first)
    seen = site.tick(3, seconds=19)
    assert told(site) == ["terminate"]
    assert "job 1 is being preempted for it" in why(seen, first)
    site.tick(2, seconds=3)
    assert told(site) == ["terminate", "kill"]
    site.tick()
    assert site.job(first).state is JobState.RUNNING
    job = site.job(victim)
    assert (job.state, job.submitted_at, job.not_before, job.avoid_gpus) == (JobState.PENDING, submitted_at, None, ())
    assert job.charged_attempts == 0
    assert preempted(job) == [CauseCode.PREEMPTED]
    assert job.attempts[0].cause is not None
    assert job.attempts[0].cause.text == "preempted for job 2 of bob (class high, priority 100)"
    seen = site.tick()
    assert why(seen, victim).endswith("; preempted at 12:01 UTC for job 2")
    [entry] = [each for each in site.store.audit_log(f"job {victim}") if each.verb == "preempt"]
    assert (entry.user, entry.before, entry.after) == ("scheduler", "RUNNING", job.attempts[0].cause.text)
    site.exit(first)
    site.tick(2)
    site.exit(urgent)
    site.tick(2)
    site.exit(victim)
    site.tick()
    assert site.job(victim).state is JobState.COMPLETED
    assert len(site.docker.started) == len(set(site.docker.started)) == 4


def test_preemption_is_off_by_default(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=2)
    victim = running_victim(world, seconds=3600)
    world.submit(2, priority=100)
    world.tick(3)
    assert world.job(victim).state is JobState.RUNNING
    assert told(world) == []


def test_a_victim_that_ends_well_in_its_grace_has_completed(site: World) -> None:
    site.docker.obeys = False
    victim = running_victim(site)
    urgent = site.submit(2, priority=100)
    site.tick(2)
    assert site.job(victim).state is JobState.COMPLETING
    site.exit(victim, 0)
    site.tick(2)
    job = site.job(victim)
    assert (job.state, job.cause, job.attempts[0].cause) == (JobState.COMPLETED, None, None)
    assert site.job(urgent).state is JobState.RUNNING


def test_a_victim_cancelled_in_its_grace_is_cancelled(site: World) -> None:
    site.docker.obeys = False
    victim = running_victim(site)
    site.submit(2, priority=100)
    site.tick()
    site.actions.act(Cancel((victim,)))
    site.exit(victim, 143)
    site.tick(2)
    job = site.job(victim)
    assert job.state is JobState.CANCELLED
    assert job.cause is not None
    assert job.cause.code is CauseCode.CANCELLED


def test_a_victim_does_not_retake_its_gpus_before_the_preemptor_has_started(site: World) -> None:
    """The victim waits again with more points than the other: it has waited for days."""
    victim = running_victim(site, seconds=6 * 24 * 3600)
    urgent = site.submit(2, priority=100)
    site.tick()
    for index in range(2):
        old = site.clock.now() - timedelta(seconds=1)
        site.probe.sick(index, sampled_at=old, processes_at=old)
    seen = site.tick()
    assert site.job(victim).state is JobState.PENDING
    assert site.job(urgent).state is JobState.PENDING
    assert seen.order == (urgent, victim)
    assert why(seen, victim).endswith(f"; preempted at 12:00 UTC for job {urgent}")
    site.probe.changed.clear()
    seen = site.tick(2)
    assert site.job(urgent).state is JobState.RUNNING
    assert site.job(victim).state is JobState.PENDING


def test_no_later_job_takes_the_gpus_of_the_victims(site: World) -> None:
    site.docker.obeys = False
    victim = running_victim(site)
    first = site.submit(2, priority=75)
    site.tick()
    later = site.submit(2, priority=100, preemptible=True)
    site.exit(victim, 143)
    site.tick(3)
    assert site.job(first).state is JobState.RUNNING
    assert site.job(later).state is JobState.PENDING
    assert site.job(first).topped_at is None
    [entry] = [each for each in site.store.audit_log(f"job {first}") if each.verb == "preempt"]
    assert entry.after == f"put first: others are preempted for it: {victim}"


def test_no_further_job_is_preempted_while_freed_gpus_are_unread(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=3, settings=Settings(policy=policy_of()))
    victims = [world.submit(1, priority=0, preemptible=True) for _ in range(2)]
    other = world.submit(1, priority=0)
    world.tick(2)
    world.tick(1, seconds=61)
    urgent = world.submit(1, priority=100)
    world.exit(other)
    later = world.clock.now()
    for index in range(3):
        world.probe.sick(index, sampled_at=later, processes_at=later)
    seen = world.tick()
    assert world.job(other).state is JobState.COMPLETED
    assert [view.state.name for view in seen.gpus].count("UNKNOWN") == 1
    assert [world.job(victim).state for victim in victims] == [JobState.RUNNING] * 2
    world.probe.changed.clear()
    world.tick(2)
    assert world.job(urgent).state is JobState.RUNNING
    assert [world.job(victim).state for victim in victims] == [JobState.RUNNING] * 2
    assert told(world) == []


def test_freed_gpus_are_kept_from_backfill(tmp_path: Path) -> None:
    world = World(tmp_path, gpus=4, settings=Settings(policy=policy_of()))
    world.docker.obeys = False
    holder = world.submit(1, priority=0)
    victim = running_victim(world, gpus=3)
    urgent = world.submit(3, priority=100)
    world.tick()
    quick = world.submit(1, priority=40, time_limit=MINUTE)
    world.exit(holder)
    world.tick(3)
    assert world.job(quick).state is JobState.RUNNING
    greedy = world.submit(2, priority=40, time_limit=MINUTE / 2)
    world.exit(victim, 143)
    world.tick(3)
    assert world.job(urgent).state is JobState.RUNNING
    assert world.job(greedy).state is JobState.PENDING


def test_no_job_is_preempted_for_a_missing_image(site: World) -> None:
    victim = running_victim(site)
    lost = site.submit(2, priority=100, image="nowhere")
    site.tick(3)
    assert site.job(lost).state is JobState.FAILED
    assert site.job(victim).state is JobState.RUNNING
    big = site.submit(2, priority=100, image="big")
    site.tick(4)
    assert site.job(big).state is JobState.RUNNING
    assert preempted(site.job(victim)) == [CauseCode.PREEMPTED]


def test_caps_hold_during_preemption(tmp_path: Path) -> None:
    world = preempting(tmp_path, preemptions_per_job=2, preemptions_per_hour=1)
    victim = running_victim(world)
    for round_, hour in enumerate([0, 0, 1, 1, 1], 1):
        world.tick(1, seconds=3600 * hour + 61)
        urgent = world.submit(2, priority=100)
        world.tick(2)
        times = [1, 1, 2, 2, 2][round_ - 1]
        assert len(world.job(victim).attempts) - (world.job(victim).state is JobState.RUNNING) == times
        if world.job(urgent).state is not JobState.RUNNING:
            world.actions.act(Cancel((urgent,)))
        else:
            world.exit(urgent)
        world.tick(3)
        assert world.job(victim).state is JobState.RUNNING


CHANGES: dict[str, Callable[[World, JobId, JobId], object]] = {
    "nothing": lambda world, victim, urgent: None,
    "the other is held": lambda world, victim, urgent: world.actions.act(Hold((urgent,))),
    "the other is cancelled": lambda world, victim, urgent: world.actions.act(Cancel((urgent,))),
    "the other is of no higher class": lambda world, victim, urgent: world.actions.act(SetPriority((urgent,), 20)),
    "the victim is of no lower class": lambda world, victim, urgent: world.actions.act(SetPriority((victim,), 90)),
    "the victim is to be requeued": lambda world, victim, urgent: world.actions.act(Requeue((victim,))),
}


@cases("change", CHANGES)
def test_an_action_after_the_plan_was_made_is_respected(tmp_path: Path, pools: RealPools | None, change: str) -> None:
    site = preempting(tmp_path, pools)
    victim = running_victim(site)
    urgent = site.submit(2, priority=100)
    context = site.scheduler.context
    context.refresh()
    CHANGES[change](site, victim, urgent)
    assert begin_preemptions(context, [Preemption(victim, urgent)], site.clock.now()) == (change == "nothing")
    expected = JobState.COMPLETING if change == "nothing" else JobState.RUNNING
    assert site.job(victim).state is expected


def test_a_priority_lowered_in_between_saves_the_victim(site: World) -> None:
    victim = running_victim(site)
    urgent = site.submit(2, priority=100)
    site.actions.act(SetPriority((urgent,), 20))
    site.tick(2)
    assert site.job(victim).state is JobState.RUNNING


class Load:
    """Two low jobs on all GPUs, of which one is to make way for a high one; they end after that one has."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.victim = world.submit(1, image="busybox", priority=0, preemptible=True)
        self.other = world.submit(1, image="busybox", priority=0)
        self.urgent: JobId | None = None

    def live(self) -> None:
        for _ in range(300):
            if self.is_over() and not self.world.docker.made:
                return
            try:
                self.world.tick(seconds=15)
            except Crash:
                self.world.reborn()
            self.go_on()
        pytest.fail("the load never ended")

    def is_over(self) -> bool:
        return self.urgent is not None and all(
            self.world.job(job_id).state is JobState.COMPLETED for job_id in (self.victim, self.other, self.urgent)
        )

    def go_on(self) -> None:
        """Submit the high job once the low ones run; end it, and then them."""
        taken = Counter(uuid for record in self.world.docker.running() for uuid in record.gpus)
        assert all(count == 1 for count in taken.values()), taken
        running = {record.job_id: record for record in self.world.docker.running()}
        if self.urgent is None:
            if len(running) == 2 and self.world.job(self.other).state is JobState.RUNNING:
                self.urgent = self.world.submit(1, image="busybox", priority=100)
        elif self.urgent in running:
            if self.rng.random() < 0.5:
                self.world.docker.exit(running[self.urgent].id, 0)
        elif self.world.job(self.urgent).state is JobState.COMPLETED:
            for record in running.values():
                self.world.docker.exit(record.id, 0)

    def check(self) -> None:
        """Check that every attempt ran once, and that one attempt of one job was preempted, once."""
        assert self.urgent is not None
        assert max(Counter(self.world.docker.started).values()) == 1
        assert len(self.world.docker.started) == 4
        assert preempted(self.world.job(self.victim)) == [CauseCode.PREEMPTED, None]
        assert preempted(self.world.job(self.other)) == [None]
        assert preempted(self.world.job(self.urgent)) == [None]
        entries = [each for each in self.world.store.audit_log() if each.verb == "preempt"]
        assert [each.target for each in entries] == [f"job {self.victim}", f"job {self.urgent}"]
        assert self.world.job(self.victim).charged_attempts == 1


def steps_of(directory: Path) -> int:
    world = preempting(directory)
    load = Load(world, random.Random(1))
    load.live()
    load.check()
    return world.tripwire.steps


@cases("obeys", [True, False])
def test_a_crash_at_each_single_step_of_a_preemption(tmp_path: Path, obeys: bool) -> None:
    total = steps_of(tmp_path / "clean")
    assert total > 30
    for step in range(1, total + 1):
        world = preempting(tmp_path / str(step))
        world.docker.obeys = obeys
        load = Load(world, random.Random(1))
        world.tripwire.left = step
        load.live()
        load.check()


@pytest.mark.parametrize("seed", seeds(15, at_once=6))
def test_many_crashes_at_random_steps_of_a_preemption(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = preempting(tmp_path)
    load = Load(world, rng)
    tick = world.tick

    def brittle(times: int = 1, seconds: float = 1.0) -> object:
        if world.tripwire.left is None and rng.random() < 0.5:
            world.tripwire.left = rng.randint(1, 20)
        return tick(times, seconds)

    world.tick = brittle  # type: ignore[method-assign,assignment]
    load.live()
    world.tripwire.left = None
    load.check()


class Traffic:
    """Jobs of all classes and widths that come and go, for hours, on four GPUs."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        settings = Settings(policy=policy_of(preemptions_per_job=2, preemptions_per_hour=6))
        self.world, self.rng = World(directory, gpus=4, settings=settings), rng
        self.ends: dict[str, float] = {}
        self.seconds = 0.0

    def live(self, hours: float, *, crashes: bool) -> None:
        world, rng = self.world, self.rng
        while self.seconds < 3600 * hours or not self.is_over():
            assert self.seconds < 3600 * hours * 20, "the traffic never ended"
            if self.seconds < 3600 * hours and rng.random() < 0.12:
                self.submit()
            if crashes and world.tripwire.left is None and rng.random() < 0.05:
                world.tripwire.left = rng.randint(1, 20)
            try:
                world.tick(seconds=20)
            except Crash:
                world.reborn()
            self.seconds += 20
            self.end_some()
            self.check()

    def submit(self) -> None:
        rng = self.rng
        priority, width = rng.choice([0, 20, 50, 50, 74, 80, 100]), rng.choice([1, 1, 1, 2, 2, 4])
        limit = timedelta(minutes=rng.choice([5, 20, 60]))
        self.world.submit(width, priority=priority, preemptible=rng.random() < 0.7, time_limit=limit)

    def end_some(self) -> None:
        """End each attempt after a time of its own; half of those told to end take theirs for it."""
        for record in self.world.docker.running():
            self.world.docker.obeys = self.rng.random() < 0.5
            lasts = self.ends.setdefault(record.id, self.seconds + self.rng.expovariate(1 / 900))
            if self.seconds >= lasts:
                self.world.docker.exit(record.id, 0)

    def is_over(self) -> bool:
        return all(one.state.is_terminal for one in self.world.store.jobs().values())

    def check(self) -> None:
        taken = Counter(uuid for record in self.world.docker.running() for uuid in record.gpus)
        assert all(count == 1 for count in taken.values()), taken

    def preemptions(self) -> list[tuple[Job, Job, datetime]]:
        """Return each victim, the job it made way for, and when."""
        jobs = self.world.store.jobs()
        return [
            (victim, jobs[attempt.preempted_by], attempt.preempted_at)
            for victim in jobs.values()
            for attempt in victim.attempts
            if attempt.preempted_by is not None and attempt.preempted_at is not None
        ]


@pytest.mark.parametrize("crashes", [False, True], ids=["calm", "crashes"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_hours_of_traffic_preempt_by_the_rules_and_never_in_vain(tmp_path: Path, seed: int, crashes: bool) -> None:
    traffic = Traffic(tmp_path, random.Random(seed))
    traffic.live(1.5, crashes=crashes)
    found = traffic.preemptions()
    assert len(found) >= 3
    for victim, other, at in found:
        assert victim.spec.preemptible
        assert whole_class(victim.priority) < whole_class(other.priority)
        assert sum(each is victim for each, _, _ in found) <= 2
        assert sum(at - timedelta(hours=1) < moment <= at for _, _, moment in found) <= 6
        claims = [attempt.claimed_at for attempt in other.attempts if attempt.claimed_at and attempt.claimed_at > at]
        assert claims, f"job {victim.id} was preempted for job {other.id}, which never started after it"
        assert crashes or min(claims) - at <= timedelta(seconds=60 + 3 * 20)  # the grace, and ticks
    assert max(Counter(traffic.world.docker.started).values()) == 1
    entries = [each.after for each in traffic.world.store.audit_log() if each.verb == "preempt"]
    assert sum(words.startswith("preempted for job ") for words in entries) == len(found)
