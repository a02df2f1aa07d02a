"""Parses the sentences of reasons: every number in them is compared with an independent count."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gputui.domain.gpu import GpuState
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import PendingReason, Reason
from tests.domain.policy.slow_facts import Facts

_MOMENT = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d UTC"
_STATES = {
    "held by jobs": GpuState.ALLOCATED,
    "used by others": GpuState.FOREIGN,
    "drained": GpuState.DRAINED,
    "unknown": GpuState.UNKNOWN,
}


@dataclass(frozen=True)
class Told:
    """Expected statement of a sentence."""

    job: Job
    codes: frozenset[PendingReason]
    kind: str
    ahead: int = 0
    """Number of eligible jobs before it."""
    need: int = 0
    running: int = 0
    jobs: int = 0
    gpus: int = 0
    """GPUs of its tenant: running, and held."""
    owed: int = 0
    past: bool = False
    """True if it would run past the promised moment."""
    promise: tuple[datetime, frozenset[JobId]] | None = None
    """Time of its own promise, and the jobs whose end it waits for."""
    foreseen: datetime | None = None
    """Its start in the plan's forecast."""
    is_next: bool = False
    """True if no other start comes first in the forecast."""
    also: Told | None = None
    """Another true statement."""
    left: frozenset[str] = frozenset()
    """Number of GPUs that stay free."""
    head: tuple[JobId, datetime, int] | None = None
    """Job that was promised GPUs, when, and how many."""

    def of(self, **changes: Any) -> Told:
        return replace(self, **changes)


def check_sentence(facts: Facts, told: Told, reason: Reason) -> None:
    """Assert that every number of the sentence is right."""
    text = reason.text
    if told.kind == "gate":
        _check_gate(facts, told.job, reason)
    elif reason.code is PendingReason.QUOTA_EXCEEDED:
        _check_quota(facts, told, text)
    elif told.kind == "blind":
        whys = {view.why for view in facts.views.values()} or {"no GPU is known"}
        assert text in {f"no GPU can be judged free: {why or 'no GPU is known'}" for why in whys}
    else:
        _check_turn(facts, told, reason)


def _holder(facts: Facts, job: Job) -> str:
    since = f" at {_moment(job.held_at, facts.now)}" if job.held_at else ""
    return f"{job.held_by or 'a user'}{since}"


def _job(facts: Facts, shown_id: str) -> Job:
    """Return the job of this id: `7`, or `5_19` for element 19 of array 5."""
    array_id, _, index = shown_id.partition("_")
    if not index:
        return facts.jobs[int(array_id)]
    place = (int(array_id), int(index))
    [job] = [each for each in facts.jobs.values() if each.array and (each.array.id, each.array.index) == place]
    return job


def _check_gate(facts: Facts, job: Job, reason: Reason) -> None:
    text, code = reason.text, reason.code
    if code is PendingReason.JOB_HELD_USER:
        assert text == (job.hold_reason or f"held by {_holder(facts, job)}: release it to let it start")
    elif code is PendingReason.DEPENDENCY:
        [other_id, state] = _parts(r"starts after job (\d+|\d+_\d+) has (?:completed|ended): it is (\w+)", text)
        other = _job(facts, other_id)
        assert other in facts.waits_for(job)
        assert other.state.value == state
    elif code is PendingReason.BEGIN_TIME:
        assert job.spec.begin_at is not None
        [at, left] = _parts(rf"begins at ({_MOMENT}), in (\w+)", text)
        assert at == _moment(job.spec.begin_at, facts.now)
        assert left == _left(job.spec.begin_at, facts.now)
    elif code is PendingReason.BACK_OFF:
        assert job.not_before is not None
        [number, at, left] = _parts(rf"attempt (\d+) at ({_MOMENT}), in (\w+): .*", text)
        assert at == _moment(job.not_before, facts.now)
        assert int(number) == len(job.attempts) + 1
        assert left == _left(job.not_before, facts.now)
    elif code is PendingReason.SCHEDULER_PAUSED:
        assert text == f"the scheduler was paused by {facts.snapshot.controls.paused_by}"
    else:
        texts = {status.text for node in facts.snapshot.nodes for status in node.runtimes if not status.up}
        assert text in texts


def _check_quota(facts: Facts, told: Told, text: str) -> None:
    job, caps = told.job, facts.caps(told.job.spec.tenant)
    if told.kind == "array":
        assert job.array is not None
        parts = _parts(r"(\d+) elements? of array (\d+) (?:are|is) running; at most (\d+) may run", text)
        assert [int(part) for part in parts] == [told.running, job.array.id, job.array.limit]
    elif told.kind == "cpu":
        [running] = _parts(r"(\d+) jobs? without GPUs (?:are|is) running; no more may run", text)
        assert int(running) == told.running >= facts.settings.scheduler.cpu_jobs
    elif not text.startswith(("needs", "wants")):
        pattern = r"(\d+) jobs? of (\w+) (?:are|is) running(?:, (1) more is promised its turn)?; at most (\d+) may run"
        running, tenant, promised, most = _parts(pattern, text)
        assert (int(running), tenant, int(most)) == (told.jobs, job.spec.tenant, caps.running)
        assert not promised or told.owed
        assert int(running) + int(promised or 0) >= int(most)
    else:
        pattern = r"((?:needs|wants) .*): (\w+) holds (\d+) GPUs?(?: and is promised (\d+))?; at most (\d+) allowed"
        needs, tenant, holds, promised, most = _parts(pattern, text)
        _check_needs(facts, told.of(need=facts.width(job)[0]), needs)
        assert (tenant, int(holds), int(most)) == (job.spec.tenant, told.gpus, caps.gpus)
        assert not promised or int(promised) == told.owed
        assert int(holds) + int(promised or 0) + facts.width(job)[0] > int(most)


_TURN = re.compile(
    r"(?:needs a --time-limit to (?P<wanted>backfill|end before the reservation); )?"
    r"(?P<needs>needs .*?|wants [^;]*)[:;] (?P<counts>[^:;]*)"
    rf"(?:; would run past (?P<past>{_MOMENT}), when (?P<kept>\d+) GPUs? (?:is|are) reserved for job "
    r"(?P<head>\d+(?:_\d+)?))?"
    r"(?P<windows>(?:; \d+ GPUs? reserved by [^;]*)*)"
    rf"(?:; expected (?P<at>{_MOMENT})"
    r"(?:(?P<late>, after jobs that will go before it)| when job (?P<because>\d+(?:_\d+)?) ends (?P<by>[^;]+))?)?"
    r"(?:; GPUs go to jobs of priority (?P<least>\d+) and above first)?"
    r"(?:; (?P<ahead>\d+) jobs? ahead of it)?"
    r"(?:; planned to run (?P<lasts>\w+), the longest time allowed, without one)?"
)


def _check_turn(facts: Facts, told: Told, reason: Reason) -> None:
    found = _TURN.fullmatch(reason.text)
    assert found, reason.text
    stands = told.kind == "standing" and reason.code is PendingReason.RESERVATION
    told = told.of(need=0) if stands else told
    if reason.code is PendingReason.PRIORITY:
        assert int(found["ahead"]) == told.ahead > 0
    else:
        assert found["ahead"] is None
    _check_needs(facts, told, found["needs"])
    _check_counts(facts, told, found["counts"])
    _check_promise(facts, told, found)
    if found["past"]:
        assert told.past
        assert told.head is not None
        assert _job(facts, found["head"]).id == told.head[0]
        assert found["past"] == _moment(told.head[1], facts.now)
        assert int(found["kept"]) == told.head[2]
    elif told.kind == "backfill":
        raise AssertionError(reason.text)
    _check_hint(facts, told, found)
    assert (found["least"] is not None) == stands
    if found["least"]:
        assert int(found["least"]) == facts.policy.standing_priority
    if told.kind == "window" and reason.code is PendingReason.RESERVATION:
        _check_windows(facts, told, found["windows"])
    else:
        assert not found["windows"]


def _check_hint(facts: Facts, told: Told, found: re.Match[str]) -> None:
    """Check that only a job without a limit gets the hint, and only where a shorter limit would help."""
    lasts, unlimited = facts.planned(told.job), told.job.spec.time_limit is None
    later = any(window.start > facts.now for window in facts.against(told.job, facts.now))
    helps = found["past"] is not None or (bool(found["windows"]) and later)
    assert (found["lasts"] is not None) == (found["wanted"] is not None) == (unlimited and helps)
    if found["lasts"]:
        assert found["lasts"] == re.sub(r"(?<=\D)00\D$", "", _left(facts.now + lasts, facts.now))


def _check_promise(facts: Facts, told: Told, found: re.Match[str]) -> None:
    if told.promise is None:
        assert found["at"] is None
        return
    at, because = told.promise
    start = max(at, told.foreseen or at)
    assert found["at"] == _moment(start, facts.now)
    assert (found["late"] is not None) == (start > at and not told.is_next)
    if because and start == at:
        job = _job(facts, found["because"])
        assert job.id in because
        assert found["by"] == facts.expected_by(job)[1]
    else:
        assert found["because"] is None


def _check_needs(facts: Facts, told: Told, text: str) -> None:
    """`needs 2 GPUs of model H100 with 40G`, `wants 4 GPUs, will take 2 from 12:05 UTC`."""
    job, request = told.job, told.job.spec.gpus
    fewest, most = facts.width(job)
    need = told.need or fewest
    pattern = (
        r"(?:needs (\d+) GPUs?"
        rf"|wants (\d+) GPUs?(?:, will take (\d+)(?! from))?(?:, (?:will take )?(\d+) from ({_MOMENT}))?)"
        r"(?: of model (\S+))?(?: with (\d+)G)?"
        r"(?: with (\d+)G free)?(?: among (.+?))?(?: \(only (\d+) suitable here\))?"
    )
    needs, wants, takes, fewer, since, model, memory, free_memory, among, only = _parts(pattern, text)
    if fewest == most:
        assert int(needs) == need
    else:
        assert int(wants) == most
        assert int(takes or most) == need
    if need > fewest:
        assert int(fewer) == fewest
        assert since == _moment(facts.since(job) + facts.policy.patience, facts.now)
    else:
        assert fewer is None
    assert (model, among) == (request.model, ", ".join(request.devices) or None)
    assert _bytes(memory) == request.memory
    assert _bytes(free_memory) == request.free_memory
    fitting = facts.fitting(job)
    assert (int(only) if only else None) == (fitting if 0 < fitting < fewest else None)


def _check_counts(facts: Facts, told: Told, text: str) -> None:
    """`3 free, 4 held by jobs, 1 drained`; where not every GPU will do: `of 5 suitable GPUs 3 free, 2 held by jobs`."""
    able = facts.eligible(told.job)
    free = told.left & able
    if not able:
        assert text == f"none of {len(facts.views)} here is suitable"
        return
    suited = re.match(r"of (\d+) suitable GPUs? ", text)
    assert bool(suited) == (able != facts.views.keys())
    if suited:
        assert int(suited[1]) == len(able)
        text = text[suited.end() :]
    wide = re.search(r" \(at most (\d+) on one node\)", text)
    here = [len(free & node.keys()) for node in facts.nodes]
    assert bool(wide) == (max(here) < len(free))
    if wide:
        assert int(wide[1]) == max(here)
        text = text.replace(wide[0], "")
    counted = Counter({words: int(number) for number, words in re.findall(r"(\d+) ([a-z ]+)", text)})
    states = Counter(facts.views[uuid].state for uuid in able)
    taken = states[GpuState.FREE] - len(free)
    expected = Counter({word: states[state] for word, state in _STATES.items()})
    expected["held by jobs"] += taken
    expected["free"] = len(free)
    assert +counted == +expected
    assert "free" in counted


def _check_windows(facts: Facts, told: Told, text: str) -> None:
    windows = facts.against(told.job, facts.now)
    assert windows
    for window in windows:
        count = len(facts.windowed[window.name])
        until = _moment(facts.now + facts.planned(told.job), facts.now)
        span = f"from {_moment(window.start, facts.now)} to {_moment(window.end, facts.now)}"
        tail = f"reserved by {window.name} {span}, and it may run until {until}"
        assert f"; {count} GPU{'' if count == 1 else 's'} {tail}" in text
    assert text.count(" reserved by ") == len(windows)


def _parts(pattern: str, text: str) -> list[str]:
    found = re.fullmatch(pattern, text)
    assert found, f"{text!r} is not {pattern!r}"
    return list(found.groups())


def _moment(at: datetime, now: datetime) -> str:
    return f"{at:%H:%M} UTC" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M} UTC"


def _bytes(gib: str | None) -> int | None:
    return int(gib) * 1024**3 if gib else None


def _left(at: datetime, now: datetime) -> str:
    """`1m30s`, `2h05m`, `1d00h`: two units."""
    seconds = int((at - now).total_seconds())
    if seconds >= 86_400:
        return f"{seconds // 86_400}d{seconds // 3600 % 24:02}h"
    if seconds < 60:
        return f"{seconds}s"
    return f"{seconds // 60}m{seconds % 60:02}s" if seconds < 3600 else f"{seconds // 3600}h{seconds // 60 % 60:02}m"
