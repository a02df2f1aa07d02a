"""Accounts of what a scheduler did, against a recount from its containers, minute by minute, and from the audit log."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.domain.accounting import Period, UsageAccount, account, record_of
from gputui.domain.action import Suspend, Unsuspend
from gputui.domain.errors import GputuiError
from gputui.domain.state import JobState
from gputui.domain.verbs import BY_NAME
from tests.engine.world import World
from tests.factories import NOW
from tests.lane import examples

MINUTE = timedelta(minutes=1)
VERBS = ("submit", "exit", "fail", "cancel", "suspend", "unsuspend", "requeue", "nothing")
Acts = list[tuple[str, int, int]]
acts = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 5), st.integers(0, 3)), min_size=5, max_size=25)


class Seen(NamedTuple):
    """State of a container between two observations."""

    at: datetime
    job_id: int
    attempt: int
    gpu_seconds: int
    is_suspended: bool


class Recount:
    """A world, and the state of its containers at each minute."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory, gpus=4)
        self.tenants: dict[int, str] = {}
        self.exits: dict[tuple[int, int], int] = {}
        self.seen: list[Seen] = []
        self.started: dict[int, datetime] = {}

    def act(self, verb: str, which: int, gpus: int) -> None:
        world = self.world
        if verb == "submit":
            tenant = "ab"[which % 2]
            self.tenants[world.submit(gpus, tenant=tenant, retries=which % 3)] = tenant
        elif verb in {"exit", "fail"}:
            now = world.clock.now()
            running = [record for record in world.docker.running() if record.started_at and record.started_at < now]
            if running:
                record = running[which % len(running)]
                self.exits[record.job_id, record.attempt] = code = int(verb == "fail")
                world.docker.exit(record.id, code)
        elif self.tenants and verb != "nothing":
            with suppress(GputuiError):
                world.actions.act(BY_NAME[verb].on((1 + which % len(self.tenants),)))

    def minute(self) -> None:
        """Advance by a minute; the scheduler sees the minute's events a second before its end."""
        for seconds in (59, 1):
            now = self.world.clock.now()
            for record in self.world.docker.running():
                gpus = len(record.gpus)
                self.seen.append(Seen(now, record.job_id, record.attempt, gpus * seconds, record.is_suspended))
                assert record.started_at is not None
                self.started.setdefault(record.job_id, record.started_at)
            self.world.tick(seconds=seconds)

    def check(self, found: UsageAccount, tenant: str, period: Period) -> None:
        """Compare an account with the observations."""
        seen = [
            each for each in self.seen if self.tenants[each.job_id] == tenant and period.since <= each.at < period.until
        ]
        assert found.allocated == sum(each.gpu_seconds for each in seen)
        stopped = sum(each.gpu_seconds for each in seen if each.is_suspended)
        assert stopped <= found.suspended <= stopped + 4 * len(seen)  # that it was woken is seen a second later
        outcomes: Counter[str] = Counter()
        for each in seen:
            outcomes[self.outcome(each.job_id, each.attempt)] += each.gpu_seconds
        assert +Counter(found.gpu_time) == +outcomes
        assert found.attempts == len({(each.job_id, each.attempt) for each in seen})
        asked = {
            int(entry.target.removeprefix("job ")): entry.at
            for entry in self.world.store.audit_log()
            if entry.verb == "submit"
        }
        begun = {job: at for job, at in self.started.items() if self.tenants[job] == tenant}
        waits = [(at - asked[job]).total_seconds() for job, at in begun.items() if period.since <= at < period.until]
        assert sorted(found.waits) == sorted(waits)

    def outcome(self, job_id: int, attempt: int) -> str:
        """Return the outcome of an attempt, by its exit code and the requests in the audit log."""
        if (job_id, attempt) in self.exits:
            return "failed" if self.exits[job_id, attempt] else "completed"
        running = {(record.job_id, record.attempt) for record in self.world.docker.running()}
        if (job_id, attempt) in running:
            return "running"
        verbs = {entry.verb for entry in self.world.store.audit_log(f"job {job_id}")}
        assert verbs & {"cancel", "requeue"}
        return "cancelled"


@given(acts, st.integers(0, 10), st.integers(1, 30))
@settings(max_examples=examples(20), deadline=None)
def test_the_accounts_agree_with_containers_and_audit_log(given_acts: Acts, first: int, length: int) -> None:
    with TemporaryDirectory() as directory:
        recount = Recount(Path(directory))
        for act in given_acts:
            recount.act(*act)
            recount.minute()
        recount.minute()
        now = recount.world.clock.now()
        period = Period(NOW + first * MINUTE, min(NOW + (first + length) * MINUTE, now))
        if period.since >= period.until:
            return
        jobs = list(recount.world.store.jobs().values())
        found = account(map(record_of, jobs), period, "tenant", now)
        for tenant in "ab":
            recount.check(found.groups.get(tenant, UsageAccount()), tenant, period)
        ended = [
            job
            for job in jobs
            if job.state.is_terminal and job.ended_at and period.since <= job.ended_at < period.until
        ]
        assert sum(found.total.ended.values()) == len(ended)


def test_the_length_of_a_suspension_survives_changes_of_the_clock(tmp_path: Path) -> None:
    world = World(tmp_path)
    job_id = world.submit(1)
    world.tick(2)
    world.actions.act(Suspend((job_id,)))
    world.tick(11, seconds=60)
    world.actions.act(Unsuspend((job_id,)))
    world.tick(2, seconds=30)
    world.actions.act(Suspend((job_id,)))
    world.tick(2, seconds=60)
    world.clock.advance(1, 86_400)
    world.tick(2, seconds=60)
    attempt = world.job(job_id).attempts[-1]
    assert [end - begin for begin, end in attempt.suspensions] == [timedelta(minutes=11)]
    now = world.clock.now()
    found = account([record_of(world.job(job_id))], Period(now - timedelta(days=2), now), "tenant", now).total
    assert found.suspended == pytest.approx(60 * 11 + 60 * 3 + 1, abs=1)
    assert world.job(job_id).state is JobState.RUNNING
