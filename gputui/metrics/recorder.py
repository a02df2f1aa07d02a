"""Counters and histograms of one term of a scheduler, in a registry of their own.

They begin at 0 with the term, which Prometheus sees as a reset. The library's `_created` series are left out:
Prometheus makes nothing of them in the text format, and they would double the counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, disable_created_metrics

from gputui.domain.cause import Blame, Cause, CauseCode
from gputui.domain.job import Attempt, Job, JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import TERMINAL
from gputui.metrics import families
from gputui.metrics.gpu_time import GpuTime
from gputui.metrics.job_changes import Change
from gputui.metrics.tenant_labels import TenantLabels

COMPLETED = "Completed"
"""Cause of an attempt that ended with exit code 0."""
CAUSES = (COMPLETED, *map(str, CauseCode))
_TRIED_AGAIN = frozenset({Blame.JOB, Blame.INFRASTRUCTURE})

disable_created_metrics()  # type: ignore[no-untyped-call]
_MINUTE, _HOUR = 60.0, 3600.0
BUCKETS = {
    families.TICK: (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    families.PLAN: (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
    families.WRITE: (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5),
    families.WAIT: (1, 10, _MINUTE, 300, 900, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, 24 * _HOUR, 72 * _HOUR),
    families.RUN: (10, _MINUTE, 300, 900, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, 24 * _HOUR, 72 * _HOUR),
}
"""Upper bounds in seconds."""


class MetricsRecorder:
    """Counts what happens. Its calls come from any thread."""

    def __init__(self, registry: CollectorRegistry, tenants: TenantLabels) -> None:
        self._tenants = tenants
        self._counters = {each: Counter(each.name, each.help, each.labels, registry=registry) for each in _COUNTERS}
        self._histograms = {
            each: Histogram(each.name, each.help, each.labels, registry=registry, buckets=BUCKETS[each])
            for each in BUCKETS
        }
        self._summaries = {each: Summary(each.name, each.help, each.labels, registry=registry) for each in _SUMMARIES}
        self._gauges = {each: Gauge(each.name, each.help, each.labels, registry=registry) for each in _GAUGES}
        self._begun: set[str] = set()
        self._gpu_time = GpuTime()
        for cause in CAUSES:
            self._counters[families.ENDED_ATTEMPTS].labels(cause)

    def took(self, step: str, seconds: float) -> None:
        """Record the duration of a `tick` or `plan`."""
        self._histograms[families.TICK if step == "tick" else families.PLAN].observe(seconds)
        if step == "tick":
            self._gauges[families.LAST_TICK].set_to_current_time()

    def failed(self, part: str) -> None:
        """Record a fault."""
        self._counters[families.FAILURES].labels(part).inc()

    def wrote(self, seconds: float) -> None:
        """Record a write to the journal."""
        self._histograms[families.WRITE].observe(seconds)

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        """Record a call to a runtime."""
        self._counters[families.CALLS].labels(runtime, call, result).inc()
        self._summaries[families.CALL_TIME].labels(runtime, call).observe(seconds)
        if result == "ok":
            self._gauges[families.RUNTIME_LAST].labels(runtime).set_to_current_time()

    def delivered(self, hook: str, result: str) -> None:
        """Record a delivery to a hook."""
        self._counters[families.DELIVERIES].labels(hook, result).inc()
        self._gauges[families.HOOK_UP].labels(hook).set(result == "ok")
        if result == "ok":
            self._gauges[families.HOOK_LAST].labels(hook).set_to_current_time()

    def published(self, snapshot: Snapshot, changes: Iterable[Change], jobs: Mapping[JobId, Job]) -> None:
        """Count what changed since the last snapshot; `jobs` are those of this one by id."""
        now = snapshot.taken_at
        self._gpu_time.begin(now)
        for change in changes:
            self._count(change)
        held = {job_id for view in snapshot.gpus for job_id in view.job_ids}
        running = (jobs[job_id] for job_id in held if job_id in jobs)
        attempts = ((self._label(job), job.attempts[-1]) for job in running if job.gpus)
        for tenant, seconds in self._gpu_time.passed(attempts, now):
            self._counters[families.GPU_TIME].labels(tenant).inc(seconds)

    def _label(self, job: Job) -> str:
        """Return the label of the job's tenant, whose counters begin at 0 when it is first met."""
        label = self._tenants.label(job.spec.tenant)
        if label not in self._begun:
            self._begun.add(label)
            for family in (families.SUBMITTED, families.STARTED, families.PREEMPTIONS, families.GPU_TIME):
                self._counters[family].labels(label)
            for state in TERMINAL:
                self._counters[families.ENDED].labels(label, state)
            self._summaries[families.TENANT_WAIT].labels(label)
        return label

    def _count(self, change: Change) -> None:
        job, tenant = change.job, self._label(change.job)
        self._counters[families.SUBMITTED].labels(tenant).inc(change.submitted)
        if change.ended:
            self._counters[families.ENDED].labels(tenant, job.state).inc(change.ended)
        for attempt in change.started:
            self._counters[families.STARTED].labels(tenant).inc()
            if attempt.number == 1:
                waited = _waited(job, attempt)
                self._histograms[families.WAIT].observe(waited)
                self._summaries[families.TENANT_WAIT].labels(tenant).observe(waited)
        for attempt in change.over:
            self._count_end(job, attempt, tenant)
            self._gpu_time.end(tenant, attempt)

    def _count_end(self, job: Job, attempt: Attempt, tenant: str) -> None:
        cause = attempt.cause
        self._counters[families.ENDED_ATTEMPTS].labels(cause.code if cause else COMPLETED).inc()
        if attempt.started_at and attempt.ended_at:
            seconds = max(0.0, (attempt.ended_at - attempt.started_at).total_seconds())
            self._histograms[families.RUN].observe(seconds)
        if cause is not None and cause.code is CauseCode.PREEMPTED:
            self._counters[families.PREEMPTIONS].labels(tenant).inc()
        elif cause is not None and _is_tried_again(job, attempt, cause):
            self._counters[families.RETRIES].labels(cause.code).inc()


def _is_tried_again(job: Job, attempt: Attempt, cause: Cause) -> bool:
    is_latest = job.attempts[-1].number == attempt.number
    return cause.blame in _TRIED_AGAIN and not (is_latest and job.state.is_terminal)


def _waited(job: Job, attempt: Attempt) -> float:
    since = max(job.submitted_at, job.spec.begin_at or job.submitted_at)
    return max(0.0, (attempt.started_at - since).total_seconds()) if attempt.started_at else 0.0


_COUNTERS = (
    families.FAILURES,
    families.SUBMITTED,
    families.STARTED,
    families.ENDED_ATTEMPTS,
    families.ENDED,
    families.RETRIES,
    families.PREEMPTIONS,
    families.GPU_TIME,
    families.CALLS,
    families.DELIVERIES,
)
_SUMMARIES = (families.CALL_TIME, families.TENANT_WAIT)
_GAUGES = (families.LAST_TICK, families.RUNTIME_LAST, families.HOOK_UP, families.HOOK_LAST)
