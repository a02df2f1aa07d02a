"""Accounting compared with a slow recount in steps of ten minutes."""

from __future__ import annotations

import math
import time as clocks
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputui.domain.accounting import GROUPINGS, Period, UsageAccount, account, record_of
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.job import Attempt, Job
from gputui.domain.state import JobState
from gputui.domain.telemetry import AttemptTelemetry, Efficiency
from tests.factories import array, job, uuid
from tests.lane import examples

STEP = timedelta(minutes=10)
BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)
"""A day before clocks are put forward in the zone of the tests."""
ZONE = ZoneInfo("Europe/Berlin")
LAST = 200
"""Step of now."""
ENDS = {
    JobState.COMPLETED: None,
    JobState.FAILED: CauseCode.NON_ZERO_EXIT,
    JobState.TIMEOUT: CauseCode.TIME_LIMIT,
    JobState.OUT_OF_MEMORY: CauseCode.OUT_OF_MEMORY,
    JobState.CANCELLED: CauseCode.CANCELLED,
}
KEYS = {"tenant": 3, "submitted_by": 2, "image": 2, "name": 2}


def at(step: int) -> datetime:
    return BEGIN + step * STEP


def cause(code: CauseCode | None) -> Cause | None:
    return Cause(code, "words") if code else None


def numbers(least: float, most: float) -> st.SearchStrategy[float]:
    """Return the numbers of that range without denormal ones, of which a share is 0."""
    return st.floats(least, most, allow_subnormal=False)


@st.composite
def suspended(draw: st.DrawFn, start: int, end: int, is_over: bool) -> dict[str, Any]:
    """Suspensions of an attempt; the last one may last until its end."""
    cuts = sorted(draw(st.sets(st.integers(start, end), max_size=5)))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    lasts = cuts[-1] if len(cuts) % 2 and (cuts[-1] < end or not is_over) else None
    return {
        "suspensions": tuple((at(begin), at(stop)) for begin, stop in pairs),
        "suspended_at": None if lasts is None else at(lasts),
    }


@st.composite
def telemetry(draw: st.DrawFn, steps: int, width: float) -> AttemptTelemetry:
    """Telemetry of an attempt that held that many GPU-seconds; any value may be unknown."""
    known = draw(st.none() | numbers(0, width))
    return AttemptTelemetry(
        seconds=draw(st.none() | numbers(0, steps * 600)),
        known=known,
        busy=None if known is None else known * draw(numbers(0, 1)),
        idle=None if known is None else draw(numbers(0, 1)),
        energy=draw(st.none() | numbers(0, 1e9)),
    )


@st.composite
def attempts(draw: st.DrawFn, last: JobState) -> tuple[Attempt, ...]:
    """Attempts one after the other; a running job's last one has no end."""
    count = draw(st.integers(0 if last.is_terminal else 1, 3))
    cuts = sorted(draw(st.sets(st.integers(0, LAST), min_size=2 * count, max_size=2 * count)))
    made = []
    for number in range(count):
        start, end = cuts[2 * number], cuts[2 * number + 1]
        is_last = number == count - 1
        is_over = last.is_terminal or not is_last
        known = ENDS.get(last)
        ended = [known, CauseCode.END_UNKNOWN] if last is JobState.FAILED else [known]
        code = draw(st.sampled_from(ended if is_last else [*ENDS.values(), CauseCode.PREEMPTED]))
        gpus = draw(st.sets(st.integers(0, 3), max_size=3))
        share = draw(st.sampled_from([1.0, 0.5]))
        width = (end - start) * 600 * len(gpus) * share
        use = st.builds(
            Efficiency,
            seconds=st.integers(0, (end - start) * 600).map(float),
            utilization=st.none() | numbers(0, 1),
            idle=numbers(0, 1),
        )
        made.append(
            Attempt(
                number + 1,
                tuple(uuid(gpu) for gpu in sorted(gpus)),
                started_at=at(start),
                ended_at=at(end) if is_over else None,
                cause=cause(code) if is_over else None,
                gpu_share=share,
                efficiency=draw(st.none() | use) if is_over else None,
                telemetry=draw(st.none() | telemetry(end - start, width)) if is_over else None,
                **draw(suspended(start, end if is_over else LAST, is_over)),
            )
        )
    return tuple(made)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    state = draw(st.sampled_from([*ENDS, JobState.RUNNING]))
    tried = draw(attempts(state))
    own: dict[str, Any] = {
        key: draw(st.sampled_from([f"{key}{number}" for number in range(count)])) for key, count in KEYS.items()
    }
    if not tried:
        made = draw(st.sampled_from([job(1, **own), array([0, 1, 2], **own)]))
        return made.evolve(state=JobState.CANCELLED, submitted_at=at(draw(st.integers(0, LAST - 1))))
    first = tried[0].started_at
    assert first is not None
    begin = draw(st.none() | st.integers(-10, 0))
    made = job(1, **own, begin_at=None if begin is None else first + begin * STEP)
    waited = draw(st.integers(0, 50))
    return made.evolve(
        state=state,
        attempts=tried,
        submitted_at=first - waited * STEP,
        ended_at=tried[-1].ended_at,
        cause=tried[-1].cause,
    )


@dataclass
class Count:
    """Figures of a group by the recount."""

    jobs: set[int] = field(default_factory=set)
    ended: int = 0
    unseen: int = 0
    waits: list[float] = field(default_factory=list)
    hours: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, name: str, seconds: float) -> None:
        self.hours[name] += seconds


def names(by: str, one: Job, attempt: Attempt | None, step: int) -> list[str]:
    """The groups of a job at a moment."""
    spec = one.spec
    if by == "gpu":
        return list(attempt.gpus) if attempt and attempt.gpus else ["none"]
    if by == "day":
        return [at(step).astimezone(ZONE).date().isoformat()]
    if by == "cause":
        over = attempt is None or attempt.ended_at is not None
        found = attempt.cause if attempt else one.cause
        return [str(found.code) if found and over else "completed" if over else "running"]
    return [{"tenant": spec.tenant, "user": one.submitted_by, "image": spec.image, "name": spec.name}[by] or "none"]


def step_of(moment: datetime | None, otherwise: int = LAST) -> int:
    return otherwise if moment is None else (moment - BEGIN) // STEP


def still(attempt: Attempt, step: int) -> bool:
    spans = [(step_of(begin), step_of(end)) for begin, end in attempt.suspensions]
    if attempt.suspended_at:
        spans.append((step_of(attempt.suspended_at), step_of(attempt.ended_at)))
    return any(begin <= step < end for begin, end in spans)


def recount(given_jobs: Iterable[Job], since: int, until: int, by: str) -> dict[str, Count]:
    """Count again; the group "" is all of them."""
    found: dict[str, Count] = defaultdict(Count)
    for number, one in enumerate(given_jobs):
        for place, attempt in enumerate(one.attempts):
            steps = range(step_of(attempt.started_at), step_of(attempt.ended_at))
            if not place and since <= steps.start < until:
                since_when = max(one.submitted_at, one.spec.begin_at or one.submitted_at)
                for group in {"", *names(by, one, attempt, steps.start)}:
                    found[group].waits.append((at(steps.start) - since_when).total_seconds())
            for step in set(steps) & set(range(since, until)):
                for group, share in shares(by, one, attempt, step):
                    found[group].jobs.add(number)
                    count_step(found[group], attempt, steps, step, share)
        ended = step_of(one.ended_at or one.submitted_at, -1)
        if one.state.is_terminal and since <= ended < until:
            last = one.attempts[-1] if one.attempts else None
            for group in {"", *names(by, one, last, ended)}:
                found[group].jobs.add(number)
                found[group].ended += one.count
                found[group].unseen += one.count * is_unknown(one.cause)
    return found


def is_unknown(cause: Cause | None) -> bool:
    return cause is not None and cause.code is CauseCode.END_UNKNOWN


def shares(by: str, one: Job, attempt: Attempt, step: int) -> Iterator[tuple[str, float]]:
    yield "", 1.0
    groups = names(by, one, attempt, step)
    yield from ((group, 1 / len(groups)) for group in groups)


def count_step(count: Count, attempt: Attempt, steps: range, step: int, share: float) -> None:
    """Add ten minutes of an attempt."""
    width = len(attempt.gpus) * attempt.gpu_share
    seconds = 600 * width * share
    words = {None: "completed", CauseCode.CANCELLED: "cancelled", CauseCode.PREEMPTED: "preempted"}
    words[CauseCode.END_UNKNOWN] = "end_unknown"
    code = attempt.cause.code if attempt.cause else None
    count.add(words.get(code, "failed") if attempt.ended_at else "running", seconds)
    count.add("allocated", seconds)
    stopped = still(attempt, step)
    count.add("suspended", seconds * stopped)
    known, busy, idle, powered, joules = measured_by(attempt)
    standing = sum(still(attempt, each) for each in steps)
    count.add("known", known * share / len(steps))
    count.add("powered", powered * share / len(steps))
    count.add("joules", joules * share / len(steps))
    if not stopped:
        working = len(steps) - standing
        count.add("busy", busy * share / working)
        count.add("idle", max(0.0, idle - standing * 600 * width) * share / working)


def measured_by(attempt: Attempt) -> tuple[float, float, float, float, float]:
    """Known, busy and idle GPU-seconds of an attempt, those with energy, and the joules."""
    width = len(attempt.gpus) * attempt.gpu_share
    if found := attempt.telemetry:
        powered = (found.seconds or 0) * width if found.energy is not None else 0
        known = found.known or 0
        return known, found.busy or 0, known * (found.idle or 0), powered, found.energy or 0
    use = attempt.efficiency
    if use is None or use.utilization is None or use.idle is None:
        return 0, 0, 0, 0, 0
    known = use.seconds * width
    return known, known * use.utilization, known * use.idle, 0, 0


def check(found: UsageAccount, told: Count, given_jobs: list[Job]) -> None:
    """Compare the figures of a group."""
    assert found.jobs == sum(given_jobs[number].count for number in told.jobs)
    assert sum(found.ended.values()) == told.ended
    assert found.ended.get("end_unknown", 0) == told.unseen
    assert sorted(found.waits) == pytest.approx(sorted(told.waits))
    if told.waits:
        ordered = sorted(told.waits)
        assert found.wait_mean == pytest.approx(sum(ordered) / len(ordered))
        assert found.wait_p95 == next(
            each for each in ordered if sum(other <= each for other in ordered) >= math.ceil(0.95 * len(ordered))
        )
    hours = told.hours
    assert found.allocated == pytest.approx(hours["allocated"])
    assert found.wasted == pytest.approx(hours["failed"] + hours["preempted"] + hours["cancelled"])
    for name, seconds in found.gpu_time.items():
        assert seconds == pytest.approx(hours[name])
    assert found.suspended == pytest.approx(hours["suspended"])
    assert found.unknown == pytest.approx(hours["allocated"] - hours["known"], abs=1e-6)
    if hours["allocated"] and not hours["known"]:
        assert found.busy is found.idle is None
    else:
        assert found.busy == pytest.approx(hours["busy"])
        assert found.idle == pytest.approx(hours["idle"], abs=1e-6)
    assert found.powered == pytest.approx(hours["powered"])
    if hours["allocated"] and not hours["powered"]:
        assert found.energy is None
    else:
        assert found.energy == pytest.approx(hours["joules"])


@given(st.lists(jobs(), max_size=6), st.integers(0, LAST), st.integers(1, LAST), st.sampled_from([*GROUPINGS]))
@settings(max_examples=examples(60), deadline=None)
def test_every_figure_agrees_with_a_recount(given_jobs: list[Job], first: int, length: int, by: str) -> None:
    until = min(LAST, first + length)
    found = account(map(record_of, given_jobs), Period(at(first), at(until)), by, at(LAST), ZONE)
    told = recount(given_jobs, first, until, by)
    check(found.total, told.pop("", Count()), given_jobs)
    assert {name for name, each in found.groups.items() if each.jobs or each.waits} == {*told}
    for name, count in told.items():
        check(found.groups[name], count, given_jobs)


def test_days_begin_with_their_first_moment_where_clocks_are_set_at_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 24 April midnight is skipped: the day has 23 hours."""
    begin = datetime(2026, 4, 22, 22, tzinfo=UTC)
    ran = job(attempts=(Attempt(1, (uuid(1),), begin, "c", begin, ended_at=begin + timedelta(hours=47)),))
    period = Period(begin, begin + timedelta(days=3))
    for zone in (ZoneInfo("Africa/Cairo"), None):
        if zone is None:
            monkeypatch.setenv("TZ", "Africa/Cairo")
            clocks.tzset()
        groups = account([record_of(ran)], period, "day", period.until, zone).groups
        assert {day: each.allocated / 3600 for day, each in groups.items()} == {"2026-04-23": 24, "2026-04-24": 23}
    monkeypatch.undo()
    clocks.tzset()
