"""Full explanation of why a job waits: terms of its score, its place, its expected start, and how certain that is."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta

from msgspec import Struct

from gputui.domain.job import Job, JobState, Reason, utc_moment
from gputui.domain.job_spec import CLASSES, JobId, whole_class
from gputui.domain.policy.decide import is_unsatisfiable
from gputui.domain.policy.lanes import ScoreTerms, level, score_terms
from gputui.domain.policy.planning_context import DurationSource, PlanningContext
from gputui.domain.policy.queue_order import OrderedQueue, QueuedJob, order_queue, usage_by_tenant
from gputui.domain.policy.whatif import timeline
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.text import format_duration, plural


def why_never(context: PlanningContext, job: Job) -> str:
    """Return why it can never start on this server under its tenant's caps; empty when it can."""
    ask, tenant = context.gpus.ask(job), job.spec.tenant
    wants = f"needs {plural(ask.minimum, 'GPU')}"
    if is_unsatisfiable(ask):
        fitting = max((mask.bit_count() for mask in ask.eligible), default=0)
        here = max((len(node) for node in context.gpus.rows), default=0)
        if not here:
            return f"{wants}, no GPU is known here"
        if fitting == here:
            return f"{wants}, this server has {here}"
        return f"{wants}, {fitting or 'none'} of {here} here {'is' if fitting < 2 else 'are'} suitable"
    caps = context.cluster.rules.caps.get(tenant)
    if caps is not None and caps.gpus is not None and ask.minimum > caps.gpus:
        return f"{wants}, {tenant} may hold {caps.gpus}"
    if caps is not None and caps.running == 0:
        return f"{tenant} may run no jobs"
    return ""


class TermWords(Struct, frozen=True):
    """Term of the score, as displayed."""

    name: str
    points: float
    of: str
    """Description of the inputs; empty if the name says it all."""


class Explanation(Struct, frozen=True):
    """Everything that decides when a waiting job starts."""

    reason: Reason | None
    """Reason why it waits; None when it starts in the next pass of the scheduler."""
    terms: ScoreTerms
    used: float
    """U/S of its tenant: 0 means nothing used, 1 exactly its share."""
    planned: timedelta
    """Planned runtime."""
    position: int
    """Position in the order, from 1."""
    waiting: int
    """Number of waiting jobs."""
    waits_for: tuple[JobId, ...]
    """Running jobs whose end the forecast relies on, and jobs it depends on."""
    expected_start_at: datetime | None
    certainty: str
    """Certainty of the expected start, with the reasons."""


def explain(snapshot: Snapshot, job: Job, settings: Settings, now: datetime) -> Explanation:
    context = PlanningContext.at(snapshot, settings, now)
    line = order_queue(context)
    place = next(n for n, item in enumerate(line.items) if item.id <= job.id < item.id + item.count)
    ahead = line.at(range(place))
    start, until = _foreseen(snapshot, job, settings, now)
    return Explanation(
        reason=snapshot.reasons.get(job.id),
        terms=_terms(context, line.entry(place)),
        used=usage_by_tenant(context, context.waiting).get(job.placed.tenant if job.placed else job.spec.tenant, 0.0),
        planned=timedelta(seconds=line.keys[place].duration),
        position=1 + sum(item.count for item in ahead.items) + job.id - line.items[place].id,
        waiting=sum(item.count for item in line.items),
        waits_for=_waits_for(snapshot, job),
        expected_start_at=start,
        certainty=_certainty(context, job, start, line, place, until),
    )


def _terms(context: PlanningContext, entry: QueuedJob) -> ScoreTerms:
    _, key, item = entry
    payer, planned = key.stands
    promoted = item.since + context.cluster.rules.promote_after <= context.second
    return score_terms(
        level(key.priority, key.nice, promoted=promoted),
        max(0.0, context.second - item.since),
        planned,
        usage_by_tenant(context, context.waiting).get(payer, 0.0),
        context.settings.policy,
    )


def _foreseen(
    snapshot: Snapshot, job: Job, settings: Settings, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return its expected start, and the end of the forecast if that was cut short."""
    known = snapshot.expected_starts.get(job.id)
    if known is not None:
        return known, None
    found = timeline(snapshot, settings, now)
    return found.starts.get(job.id), found.until


def describe_terms(job: Job, told: Explanation) -> tuple[TermWords, ...]:
    """Return the terms of the score, after the level that precedes every score."""
    terms = told.terms
    waited, planned, credited = (
        format_duration(timedelta(seconds=each)) for each in (terms.waited, terms.planned, terms.credited)
    )
    stands = f"as job {job.placed.past}: " if job.placed else ""
    bonus = f" + {credited} credited" if terms.credited else ""
    tenant = job.placed.tenant if job.placed else job.spec.tenant
    used = f": tenant {tenant} has used {told.used:.2f} of its share" if terms.credited else ""
    expansion = f"{stands}(waited {waited}{bonus} + planned {planned}) / planned {planned}{used}"
    return (
        TermWords("level", terms.level, _level_words(job, terms)),
        TermWords("expansion", terms.expansion, expansion),
        TermWords("age", terms.age, f"waited {waited}"),
    )


def _level_words(job: Job, terms: ScoreTerms) -> str:
    stands = f"; placed by hand beside job {job.placed.past}" if job.placed else ""
    if terms.is_promoted:
        name = CLASSES[whole_class(job.priority)]
        return f"priority {job.priority}, before all others of class {name} because of its long wait{stands}"
    nice = job.placed.nice if job.placed else job.spec.nice
    return f"priority {job.priority}" + (f", lowered by nice {nice}" if nice > 0 else "") + stands


def _waits_for(snapshot: Snapshot, job: Job) -> tuple[JobId, ...]:
    states = {other.id: other.state for other in snapshot.jobs}
    wanted = dict.fromkeys((*job.spec.after, *job.spec.after_any))
    open_ones = [other for other in wanted if other in states and not states[other].is_terminal]
    if open_ones:
        return tuple(open_ones)
    return tuple(other.id for other in snapshot.jobs if other.gpus and other.state is not JobState.PENDING)


def _certainty(
    context: PlanningContext, job: Job, start: datetime | None, line: OrderedQueue, place: int, until: datetime | None
) -> str:
    if start is None and (why := why_never(context, job)):
        return f"never: {why}"
    if start is None and until is not None and not job.held:
        return f"not known: the forecast reaches to {utc_moment(until, context.now)}, and it does not start until then"
    if start is None:
        return "not known: it waits for something that has no known end"
    sources = Counter(context.sources.values())
    words = []
    if sources[DurationSource.DEFAULT]:
        running = plural(sources[DurationSource.DEFAULT], "running job")
        words.append(f"{running} without a limit, taken to run for the longest time allowed")
    if sources[DurationSource.PREDICTION]:
        words.append(
            f"{plural(sources[DurationSource.PREDICTION], 'running job')} taken to run as long as the last ones did"
        )
    ahead = Counter(context.durations.expected(other).source for other in line.jobs[:place])
    if ahead[DurationSource.DEFAULT]:
        words.append(f"{plural(ahead[DurationSource.DEFAULT], 'job')} ahead of it without a limit, taken alike")
    if words:
        return "rough: " + "; ".join([*words, *_shifting(context, line)])
    certain = "at the latest, if nothing else changes: every running job has a limit"
    return "; ".join([certain, *_shifting(context, line)])


def _shifting(context: PlanningContext, line: OrderedQueue) -> list[str]:
    """Return the changes of order that the forecast cannot foresee: it uses the scores at its events."""
    credit = context.settings.policy.newcomer_credit
    paces = {(key.priority, key.duration, key.tenant if credit else "") for key in line.keys}
    if len(paces) > len({key.priority for key in line.keys}):
        return ["scores that grow at different paces may change the order"]
    return []
