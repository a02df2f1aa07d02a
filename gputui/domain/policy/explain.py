"""Why a job waits, in full: its score term by term, its place, when it may start, and how sure that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gputui.domain.job import Job, JobId
from gputui.domain.policy.durations import Source
from gputui.domain.policy.hopeless import never
from gputui.domain.policy.lineup import fair_shares, in_order
from gputui.domain.policy.look import Look
from gputui.domain.policy.order import ScoreTerms, score_terms
from gputui.domain.policy.timeline import timeline
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, Reason, moment
from gputui.domain.units import format_duration, plural


@dataclass(frozen=True)
class TermWords:
    """One term of the score, as every face tells it."""

    name: str
    points: float
    of: str
    """What it was made of; empty for what says it itself."""


@dataclass(frozen=True)
class Explanation:
    """Everything that decides when a waiting job starts."""

    reason: Reason | None
    """Why it waits; None when it starts at the next look."""
    terms: ScoreTerms
    fair_share: float
    """F of its tenant: 1 used nothing, 0.5 exactly its share."""
    planned: timedelta
    """How long it is planned to run."""
    position: int
    """1 is the first in order."""
    waiting: int
    """How many wait in all."""
    waits_for: tuple[JobId, ...]
    """Running jobs that the forecast counts on to end, and jobs it depends on."""
    expected_start_at: datetime | None
    certainty: str
    """How sure the expected start is, and why."""


def explain(snapshot: Snapshot, job: Job, settings: Settings, now: datetime) -> Explanation:
    """The explanation of a job that is PENDING in the snapshot."""
    look = Look.at(snapshot, settings, now)
    order = [entry.job for entry in in_order(look)]
    fair = fair_shares(look, order)[job.spec.tenant]
    planned = look.durations.seconds(job)
    start, until = _foreseen(snapshot, job, settings, now)
    return Explanation(
        reason=snapshot.reasons.get(job.id),
        terms=score_terms(job, settings.policy, fair, planned, now),
        fair_share=fair,
        planned=timedelta(seconds=planned),
        position=1 + [waiting.id for waiting in order].index(job.id),
        waiting=len(order),
        waits_for=_waits_for(snapshot, job),
        expected_start_at=start,
        certainty=_certainty(look, job, start, order, until),
    )


def _foreseen(
    snapshot: Snapshot, job: Job, settings: Settings, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return when it is expected to start, and how far was looked if not all that is to come was."""
    known = snapshot.expected_starts.get(job.id)
    if known is not None:
        return known, None
    found = timeline(snapshot, settings, now)
    return found.starts.get(job.id), found.until


def told_terms(job: Job, told: Explanation, now: datetime) -> tuple[TermWords, ...]:
    """The score term by term."""
    terms = told.terms
    return (
        TermWords("class", terms.priority_class, f"of priority {job.priority}"),
        TermWords("age", terms.age, f"of waiting {format_duration(now - job.submitted_at)}"),
        TermWords("duration", terms.duration, f"of {format_duration(told.planned)} that it is planned to run"),
        TermWords("fair share", terms.fair_share, f"F = {told.fair_share:.3f} of tenant {job.spec.tenant}"),
        TermWords("nice", terms.nice, ""),
    )


def _waits_for(snapshot: Snapshot, job: Job) -> tuple[JobId, ...]:
    states = {other.id: other.state for other in snapshot.jobs}
    wanted = dict.fromkeys((*job.spec.after, *job.spec.after_any))
    open_ones = [other for other in wanted if other in states and not states[other].is_terminal]
    if open_ones:
        return tuple(open_ones)
    return tuple(other.id for other in snapshot.jobs if other.gpus and other.state is not JobState.PENDING)


def _certainty(look: Look, job: Job, start: datetime | None, order: Sequence[Job], until: datetime | None) -> str:
    if start is None and (why := never(look, job)):
        return f"never, as things are: {why}"
    if start is None and until is not None and not job.held:
        return f"not known: the forecast reaches to {moment(until, look.now)}, and it does not start until then"
    if start is None:
        return "not known: it waits for something that has no known end"
    sources = Counter(look.sources.values())
    words = []
    if sources[Source.DEFAULT]:
        words.append(f"{plural(sources[Source.DEFAULT], 'running job')} without a limit, taken to run for the default")
    if sources[Source.PREDICTION]:
        words.append(f"{plural(sources[Source.PREDICTION], 'running job')} taken to run as long as the last ones did")
    ahead = Counter(look.durations.of(other).source for other in order[: order.index(job)])
    if ahead[Source.DEFAULT]:
        words.append(f"{plural(ahead[Source.DEFAULT], 'job')} ahead of it without a limit, taken alike")
    if words:
        return "rough: " + "; ".join([*words, *_shifting(look, order)])
    certain = "at the latest, if nothing else changes: every running job has a limit"
    return "; ".join([certain, *_shifting(look, order)])


def _shifting(look: Look, order: Sequence[Job]) -> list[str]:
    """What the forecast does not foresee: it takes the shares of tenants as they are at its events."""
    if look.settings.policy.fair_weight and len({job.spec.tenant for job in order}) > 1:
        return ["fair shares that shift with the clock may change the order"]
    return []
