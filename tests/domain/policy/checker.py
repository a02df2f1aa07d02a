"""Slow checker of plans: walks the order by brute force, and determines independently which jobs start or wait."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.plan import Plan
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot, WindowState
from gputui.domain.state import PendingReason, Reason
from tests.domain.policy.slow_facts import Facts, Held, Uuids
from tests.domain.policy.slow_words import Told, check_sentence


@dataclass(frozen=True)
class Promise:
    """Promise to the first job that does not fit."""

    job: Job
    at: datetime
    need: int
    because: frozenset[JobId]
    """Jobs whose end makes the start possible."""


@dataclass
class Walk:
    """State while jobs take their turns."""

    facts: Facts
    found: Plan
    free: set[str]
    held: list[Held]
    promise: Promise | None = None
    coming: dict[int, set[str]] = field(default_factory=dict)
    """GPUs by node that the promised job could use then, and that no longer job has taken since."""
    standing: bool = False
    refused: list[JobId] = field(default_factory=list)
    """Jobs that could be used by what is here, and had to wait for GPUs."""
    waiting: int = 0
    told: dict[JobId, Told] = field(default_factory=dict)

    def gpus_of(self, tenant: str) -> int:
        return sum(len(h.uuids) for h in self.held if h.job.spec.tenant == tenant)

    def jobs_of(self, tenant: str) -> int:
        return sum(h.job.spec.tenant == tenant for h in self.held)


def check(snapshot: Snapshot, settings: Settings, now: datetime, found: Plan) -> Counter[PendingReason]:
    """Assert that the plan is correct; return how often each reason was given."""
    kept = {view.window.name: frozenset(view.gpus) for view in found.windows if view.state is not WindowState.RELEASED}
    facts = Facts(snapshot, settings, now, kept)
    _check_order(facts, found)
    _check_windows(facts, found)
    walk = Walk(facts, found, set(facts.free), list(facts.running))
    starts = {start.job_id: frozenset(start.gpus) for start in found.starts}
    assert len(starts) == len(found.starts)
    for start in found.starts:
        assert len(set(start.gpus)) == len(start.gpus), "a GPU twice in one job"
    for job_id in found.order:
        _turn(walk, facts.jobs[job_id], starts.get(job_id))
    _check_kept(walk)
    assert found.reasons.keys() == {job.id for job in facts.pending} - starts.keys(), "a reason for each that waits"
    for job_id, told in walk.told.items():
        reason = found.reasons[job_id]
        check_sentence(facts, _at_the_end(walk, _as_told(told, reason)), reason)
    assert not found.forecast.keys() & starts.keys()
    assert all(at >= now for at in found.forecast.values())
    return Counter(reason.code for reason in found.reasons.values())


def _as_told(told: Told, reason: Reason) -> Told:
    """Return the one of several equally true statements that the reason makes."""
    is_standing = reason.text.endswith(" and above first")
    while told.also and (reason.code not in told.codes or is_standing != (told.kind == "standing")):
        told = told.also
    assert reason.code in told.codes, (reason, told)
    return told


def _at_the_end(walk: Walk, told: Told) -> Told:
    """Return the expected statement, with the numbers after all jobs had their turn."""
    promise, tenant, array = walk.promise, told.job.spec.tenant, told.job.array
    counts = {
        "array": sum(h.job.array is not None and array is not None and h.job.array.id == array.id for h in walk.held),
        "cpu": sum(walk.facts.width(h.job)[1] == 0 for h in walk.held),
    }
    return told.of(
        running=counts.get(told.kind, 0),
        jobs=walk.jobs_of(tenant),
        gpus=walk.gpus_of(tenant),
        owed=promise.need if promise and promise.job.spec.tenant == tenant else 0,
        left=frozenset(walk.free),
        head=(promise.job.id, promise.at, promise.need) if promise else None,
        foreseen=walk.found.forecast.get(told.job.id),
        is_next=next(iter(walk.found.forecast), None) == told.job.id,
    )


def _check_order(facts: Facts, found: Plan) -> None:
    assert sorted(found.order) == sorted(job.id for job in facts.pending)
    for one, other in combinations(found.order, 2):
        before = facts.goes_before(facts.jobs[one], facts.jobs[other])
        assert before is not False, f"{other} before {one}"


def _turn(walk: Walk, job: Job, given: Uuids | None) -> None:
    """Take the job's turn: start it, or record its reason for waiting."""
    facts = walk.facts
    if code := facts.gate(job):
        assert given is None, f"job {job.id} starts in spite of {code}"
        walk.told[job.id] = Told(job, frozenset({code}), "gate")
        return
    told = _hindrance(walk, job)
    if given is not None:
        assert told is None, f"job {job.id} starts in spite of {told}"
        _start(walk, job, given)
        return
    assert told is not None, f"job {job.id} could start"
    told = _promised(walk, job, told)
    walk.told[job.id] = told
    walk.waiting += 1


def _hindrance(walk: Walk, job: Job) -> Told | None:
    """Return why the job cannot start at its turn; None if it can."""
    facts, (fewest, most) = walk.facts, walk.facts.width(job)
    caps, tenant = facts.caps(job.spec.tenant), job.spec.tenant
    promise = walk.promise
    owed = promise.need if promise and promise.job.spec.tenant == tenant else 0
    told = Told(job, frozenset({PendingReason.QUOTA_EXCEEDED}), "quota", walk.waiting)
    if job.array and job.array.limit is not None:
        running = sum(h.job.array is not None and h.job.array.id == job.array.id for h in walk.held)
        if running >= job.array.limit:
            return told.of(kind="array")
    idle = sum(facts.width(h.job)[1] == 0 for h in walk.held)
    if not most and idle >= facts.settings.scheduler.cpu_jobs:
        return told.of(kind="cpu")
    if caps.running is not None and walk.jobs_of(tenant) + (owed > 0) >= caps.running:
        return _or_short(walk, told.of(kind="running"), owed)
    if caps.gpus is not None and walk.gpus_of(tenant) + owed + fewest > caps.gpus:
        return _or_short(walk, told.of(kind="gpus"), owed)
    least = facts.policy.standing_priority
    if most and walk.standing and least is not None and job.priority < least:
        return _or_short(walk, told.of(kind="standing", codes=frozenset({PendingReason.RESERVATION})), owed)
    return _short_of_gpus(walk, job, owed) if most else None


def _or_short(walk: Walk, told: Told, owed: int) -> Told:
    """Accept either reason for a job that is kept back and lacks GPUs."""
    short = _short_of_gpus(walk, told.job, owed) if walk.facts.width(told.job)[1] and walk.refused else None
    if short is None:
        return told
    if _is_blind(walk.facts):
        return told.of(also=short.of(kind="blind", codes=frozenset({PendingReason.NODE_UNKNOWN})))
    if short.kind != "short":
        return told.of(also=short)
    return told.of(codes=told.codes | {PendingReason.PRIORITY}, need=short.need)


def _is_blind(facts: Facts) -> bool:
    """Return whether no GPU at all can be judged."""
    return all(str(view.state) == "UNKNOWN" for view in facts.views.values())


def _need(walk: Walk, job: Job, at: datetime, owed: int = 0) -> tuple[int, int]:
    """The fewest GPUs it takes by then and the most it may have, beside so many owed to another of its tenant."""
    fewest, most = walk.facts.width(job)
    caps = walk.facts.caps(job.spec.tenant)
    if caps.gpus is not None:
        over = [h for h in walk.held if h.ends_at > at and h.job.spec.tenant == job.spec.tenant]
        most = max(fewest, min(most, caps.gpus - sum(len(h.uuids) for h in over) - owed))
    is_patient = at < walk.facts.since(job) + walk.facts.policy.patience
    return (most if is_patient else fewest), most


def _may_use(walk: Walk, job: Job, *, windows: bool = True) -> list[int]:
    """Return the number of usable GPUs of each node, heeding the promise, and windows unless told otherwise."""
    facts = walk.facts
    able = (facts.eligible(job) & walk.free) - (facts.kept(job, facts.now) if windows else frozenset())
    counts = []
    for number, node in enumerate(facts.nodes):
        here = able & node.keys()
        counts.append(len(here) - _beyond_spare(walk, job, number, here))
    return counts


def _beyond_spare(walk: Walk, job: Job, node: int, uuids: Uuids | set[str]) -> int:
    """Return how many of these GPUs are too many, because the promised job will want them."""
    promise = walk.promise
    if promise is None or walk.facts.now + walk.facts.planned(job) <= promise.at or node not in walk.coming:
        return 0
    wanted = uuids & walk.coming[node]
    return max(0, len(wanted) - (len(walk.coming[node]) - promise.need))


def _short_of_gpus(walk: Walk, job: Job, owed: int) -> Told | None:
    facts, promise = walk.facts, walk.promise
    need, _ = _need(walk, job, facts.now, owed)
    if max(_may_use(walk, job), default=0) >= need:
        return None
    able = facts.eligible(job) & walk.free
    past = promise is not None and facts.now + facts.planned(job) > promise.at
    told = Told(job, frozenset({PendingReason.PRIORITY}), "short", walk.waiting, need=need)
    if max((len(able & node.keys()) for node in facts.nodes), default=0) < need:
        return told.of(kind="short", past=past)
    if max(_may_use(walk, job, windows=False)) >= need:
        return told.of(kind="window", codes=frozenset({PendingReason.RESERVATION}), past=past)
    backfill = told.of(kind="backfill", past=past)
    beside = (able - facts.kept(job, facts.now)) & walk.free
    if max(len(beside & node.keys()) for node in facts.nodes) >= need:
        return backfill
    return backfill.of(also=told.of(kind="window", codes=frozenset({PendingReason.RESERVATION}), past=past))


def _start(walk: Walk, job: Job, given: Uuids) -> None:
    facts, promise = walk.facts, walk.promise
    fewest, most = facts.width(job)
    if most:
        owed = promise.need if promise and promise.job.spec.tenant == job.spec.tenant else 0
        need, most = _need(walk, job, facts.now, owed)
        homes = [number for number, node in enumerate(facts.nodes) if given & node.keys()]
        assert len(homes) == 1, f"job {job.id} is spread over nodes"
        assert given <= walk.free, f"job {job.id} gets GPUs that are not free"
        assert given <= facts.eligible(job), f"job {job.id} gets GPUs that do not suit it"
        assert not given & facts.kept(job, facts.now), f"job {job.id} gets GPUs kept for others"
        assert fewest <= need <= len(given) <= most, f"job {job.id} gets {len(given)} GPUs"
        assert not _beyond_spare(walk, job, homes[0], given), f"job {job.id} takes what is promised"
        assert len(given) == min(most, max(_may_use(walk, job))), f"job {job.id} could get more"
        if promise and facts.now + facts.planned(job) > promise.at and homes[0] in walk.coming:
            walk.coming[homes[0]] -= given
    else:
        assert not given
    walk.free -= given
    walk.held.append(Held(job, given, facts.now + facts.planned(job)))


def _promised(walk: Walk, job: Job, told: Told) -> Told:
    """Check that the first job without enough GPUs is promised the earliest moment, and those before it wait."""
    facts = walk.facts
    if told.kind not in {"short", "window", "backfill", "standing"}:
        return told
    if _is_blind(facts):
        told = told.of(codes=frozenset({PendingReason.NODE_UNKNOWN}))
    hopeless = facts.fitting(job) < facts.width(job)[0]
    if told.kind == "standing":
        if PendingReason.NODE_UNKNOWN in told.codes:
            return told.of(kind="blind")
        short = told.of(kind="short", codes=frozenset({PendingReason.RESOURCES}), need=0)
        return short if hopeless else told
    least = facts.policy.standing_priority
    walk.standing = walk.standing or (least is not None and job.priority >= least and not hopeless)
    if walk.promise is None:
        walk.promise = _earliest(walk, job)
        if walk.promise is not None:
            told = told.of(promise=(walk.promise.at, walk.promise.because))
    if PendingReason.NODE_UNKNOWN in told.codes:
        told = told.of(kind="blind")
    if told.kind == "short" and (hopeless or not walk.refused or told.promise):
        told = told.of(codes=frozenset({PendingReason.RESOURCES}))
    if not hopeless:
        walk.refused.append(job.id)
    return told


def _earliest(walk: Walk, job: Job) -> Promise | None:
    """Return the earliest start by the planned ends, and by the ends of windows and of its patience; None: never."""
    facts = walk.facts
    moments = {h.ends_at for h in walk.held if h.uuids} | {window.end for window in facts.windows}
    moments |= {facts.since(job) + facts.policy.patience}
    moments |= {facts.now + timedelta(seconds=1)} if facts.awaited else set()
    for at in sorted(moment for moment in moments if moment > facts.now):
        need, _ = _need(walk, job, at)
        coming = _coming(walk, job, at)
        homes = [number for number, here in coming.items() if len(here) >= need]
        if homes:
            promise = Promise(job, at, need, frozenset(h.job.id for h in walk.held if h.uuids and h.ends_at == at))
            [kept] = walk.found.reservations
            assert walk.found.promised_at == at, f"job {job.id} can start at {at}"
            assert kept.job_id == job.id
            [home] = [number for number in homes if set(kept.gpus) & facts.nodes[number].keys()]
            walk.coming = {home: coming[home]}
            return promise
    assert job.id not in {kept.job_id for kept in walk.found.reservations}
    return None


def _coming(walk: Walk, job: Job, at: datetime) -> dict[int, set[str]]:
    """Return the GPUs of each node that it could use then by the planned ends."""
    facts = walk.facts
    ended = {u for h in walk.held if h.ends_at <= at for u in h.uuids}
    usable = {u for u in ended if u in facts.views and facts.views[u].drain is None} | walk.free | facts.awaited
    usable = (usable & facts.eligible(job)) - facts.kept(job, at)
    return {number: usable & node.keys() for number, node in enumerate(facts.nodes)}


def _check_kept(walk: Walk) -> None:
    """Check that the GPUs shown as kept for the head are its own from the promised moment on."""
    facts, promise = walk.facts, walk.promise
    if promise is None:
        assert not walk.found.reservations
        return
    [kept] = walk.found.reservations
    assert len(kept.gpus) == promise.need
    ends = {u: h.ends_at for h in walk.held for u in h.uuids}
    for uuid in kept.gpus:
        assert uuid in facts.eligible(promise.job)
        assert ends.get(uuid, promise.at) <= promise.at, f"{uuid} is promised, and given away for longer"
        assert uuid not in facts.kept(promise.job, promise.at)


def _check_windows(facts: Facts, found: Plan) -> None:
    """Check that windows are those of the settings, and keep their GPUs until they end or are released."""
    assert {view.window for view in found.windows} == {w for w in facts.policy.reservations if w.end > facts.now}
    for view in found.windows:
        window, kept = view.window, set(view.gpus)
        if view.state is WindowState.RELEASED:
            assert facts.now >= window.start + facts.policy.reservation_grace
            assert not any(window.admits(job.spec.tenant, job.priority) for job in facts.comers(window))
        elif window.gpus:
            assert kept == {uuid for uuid, gpu in facts.views.items() if facts.is_named(gpu.gpu, window.gpus)}
        else:
            others = [set(each.gpus) for each in found.windows if each is not view]
            assert len(kept) <= window.count
            assert len(kept) == window.count or facts.views.keys() <= kept.union(*others)
