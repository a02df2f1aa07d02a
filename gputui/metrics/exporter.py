"""Exporter: the monitor of a scheduler's term that serves metrics to Prometheus.

Its own thread opens the port, and retries after failures; it measures the store's files, reloads changed certificates,
and writes the files for dcgm-exporter. So neither a tick nor a scrape waits for a disk.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct, field
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    Summary,
    disable_created_metrics,
    generate_latest,
)

from gputui.config.settings_file import listen_address
from gputui.domain.errors import Blame, Cause, CauseCode, InputError
from gputui.domain.event import Change, JobChanges
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Notice, Snapshot
from gputui.domain.state import TERMINAL
from gputui.engine.files import read_backup_record
from gputui.engine.hooks import sinks
from gputui.engine.host import RECORDED
from gputui.metrics import families, server
from gputui.metrics.collector import JobMapping, SnapshotCollector
from gputui.metrics.families import TenantLabels
from gputui.metrics.server import MetricsServer
from gputui.threads import Watcher

log = logging.getLogger(__name__)


class GpuTime(Struct, eq=False):
    """GPU-seconds since a term began.

    An attempt counts by the clock while it runs, and afterwards by its recorded end, which is shortly before the tick
    that detected it. The sum then pauses for that time instead of decreasing, which Prometheus would take for a
    restart.
    """

    _since: datetime | None = None
    _ended: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _shown: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def begin(self, now: datetime) -> None:
        """Start counting, unless that has been done."""
        self._since = self._since or now

    def end(self, tenant: str, attempt: Attempt) -> None:
        if attempt.ended_at is not None:
            self._ended[tenant] += self._seconds(attempt, attempt.ended_at)

    def passed(self, running: Iterable[tuple[str, Attempt]], now: datetime) -> Iterator[tuple[str, float]]:
        """Yield the increase of each tenant's sum; `running` are the active attempts, by tenant."""
        sums = dict(self._ended)
        for tenant, attempt in running:
            sums[tenant] = sums.get(tenant, 0.0) + self._seconds(attempt, now)
        for tenant, seconds in sums.items():
            if seconds > self._shown[tenant]:
                yield tenant, seconds - self._shown[tenant]
                self._shown[tenant] = seconds

    def _seconds(self, attempt: Attempt, end: datetime) -> float:
        if attempt.started_at is None or self._since is None:
            return 0.0
        seconds = (end - max(attempt.started_at, self._since)).total_seconds()
        return max(0.0, seconds) * attempt.gpu_count * attempt.gpu_share


COMPLETED = "Completed"
"""Cause of an attempt that ended with exit code 0."""
CAUSES = (COMPLETED, *map(str, CauseCode))
CALL_RESULTS = ("ok", "unavailable", "error")
DELIVERY_RESULTS = ("ok", "failed", "dropped")
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
    """Counts events. Its methods may be called from any thread."""

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
        self._named: set[tuple[str, str]] = set()
        """Runtimes and hooks whose counters are shown, by family."""
        self._gpu_time = GpuTime()
        for cause in CAUSES:
            self._counters[families.ENDED_ATTEMPTS].labels(cause)
        for code in CauseCode:
            if Cause(code, "").blame in _TRIED_AGAIN and code is not CauseCode.PREEMPTED:
                self._counters[families.RETRIES].labels(code)
        for label in tenants.given:
            self._begin(label)

    def begin(self, tenants: Iterable[str]) -> None:
        """Show the counters of these tenants, at 0: Prometheus does not count what is in a counter's first sample."""
        for tenant in tenants:
            self._begin(self._tenants.label(tenant))

    def begin_runtime(self, runtime: str) -> None:
        """Show the counters of a runtime's calls, at 0."""
        self._begin_results(families.CALLS, runtime, [(each, how) for each in RECORDED for how in CALL_RESULTS])

    def begin_hook(self, hook: str) -> None:
        self._begin_results(families.DELIVERIES, hook, [(how,) for how in DELIVERY_RESULTS])

    def took(self, step: str, seconds: float) -> None:
        self._histograms[families.TICK if step == "tick" else families.PLAN].observe(seconds)
        if step == "tick":
            self._gauges[families.LAST_TICK].set_to_current_time()

    def answered(self) -> None:
        """Record that the engine of a cluster has answered, which is then the last pass of the scheduler."""
        self._gauges[families.LAST_TICK].set_to_current_time()

    def failed(self, part: str) -> None:
        self._counters[families.FAILURES].labels(part).inc()

    def wrote(self, seconds: float) -> None:
        self._histograms[families.WRITE].observe(seconds)

    def called(self, runtime: str, call: str, result: str, seconds: float) -> None:
        self.begin_runtime(runtime)
        self._counters[families.CALLS].labels(runtime, call, result).inc()
        self._summaries[families.CALL_TIME].labels(runtime, call).observe(seconds)
        if result == "ok":
            self._gauges[families.RUNTIME_LAST].labels(runtime).set_to_current_time()

    def delivered(self, hook: str, result: str) -> None:
        self.begin_hook(hook)
        self._counters[families.DELIVERIES].labels(hook, result).inc()
        self._gauges[families.HOOK_UP].labels(hook).set(result == "ok")
        if result == "ok":
            self._gauges[families.HOOK_LAST].labels(hook).set_to_current_time()

    def _begin_results(self, family: families.Family, name: str, results: Iterable[tuple[str, ...]]) -> None:
        """Show the counters of all results at 0 with the first of them, so that `increase` shows the first error."""
        if (family.name, name) not in self._named:
            self._named.add((family.name, name))
            for result in results:
                self._counters[family].labels(name, *result)

    def published(self, snapshot: Snapshot, changes: Iterable[Change], jobs: Mapping[JobId, Job]) -> None:
        """Count the changes since the last snapshot; `jobs` are those of this one by id."""
        now = snapshot.taken_at
        self._gpu_time.begin(now)
        for node in snapshot.nodes:
            for runtime in node.runtimes:
                self.begin_runtime(runtime.name)
        for change in changes:
            self._count(change)
        held = {job_id for view in snapshot.gpus for job_id in view.job_ids}
        running = (jobs[job_id] for job_id in held if job_id in jobs)
        attempts = ((self._label(job), job.attempts[-1]) for job in running if job.gpus)
        for tenant, seconds in self._gpu_time.passed(attempts, now):
            self._counters[families.GPU_TIME].labels(tenant).inc(seconds)

    def _label(self, job: Job) -> str:
        """Return the label of the job's tenant, whose counters begin at the latest now."""
        label = self._tenants.label(job.spec.tenant)
        self._begin(label)
        return label

    def _begin(self, label: str) -> None:
        if label in self._begun:
            return
        self._begun.add(label)
        for family in (families.SUBMITTED, families.STARTED, families.PREEMPTIONS, families.GPU_TIME):
            self._counters[family].labels(label)
        for state in TERMINAL:
            self._counters[families.ENDED].labels(label, state)
        self._summaries[families.TENANT_WAIT].labels(label)

    def _count(self, change: Change) -> None:
        job, tenant = change.job, self._label(change.job)
        self._counters[families.SUBMITTED].labels(tenant).inc(change.submitted)
        if change.ended:
            self._counters[families.ENDED].labels(tenant, job.state).inc(change.ended)
        for attempt in change.started:
            self._counters[families.STARTED].labels(tenant).inc()
            if attempt.number == 1:
                since = max(job.submitted_at, job.spec.begin_at or job.submitted_at)
                waited = max(0.0, (attempt.started_at - since).total_seconds()) if attempt.started_at else 0.0
                self._histograms[families.WAIT].observe(waited)
                self._summaries[families.TENANT_WAIT].labels(tenant).observe(waited)
        for attempt in change.over:
            cause = attempt.cause
            self._counters[families.ENDED_ATTEMPTS].labels(cause.code if cause else COMPLETED).inc()
            if attempt.started_at and attempt.ended_at:
                seconds = max(0.0, (attempt.ended_at - attempt.started_at).total_seconds())
                self._histograms[families.RUN].observe(seconds)
            if cause is not None and cause.code is CauseCode.PREEMPTED:
                self._counters[families.PREEMPTIONS].labels(tenant).inc()
            elif (
                cause is not None
                and cause.blame in _TRIED_AGAIN
                and (job.attempts[-1].number != attempt.number or not job.state.is_terminal)
            ):
                self._counters[families.RETRIES].labels(cause.code).inc()
            self._gpu_time.end(tenant, attempt)


_COUNTERS = (
    *(families.FAILURES, families.SUBMITTED, families.STARTED, families.ENDED_ATTEMPTS, families.ENDED),
    *(families.RETRIES, families.PREEMPTIONS, families.GPU_TIME, families.CALLS, families.DELIVERIES),
)
_SUMMARIES = (families.CALL_TIME, families.TENANT_WAIT)
_GAUGES = (families.LAST_TICK, families.RUNTIME_LAST, families.HOOK_UP, families.HOOK_LAST)


EVERY = 15.0
"""Seconds between two checks of the files, and between two attempts to open the port."""


CLOSE_WITHIN = 5.0
"""Seconds to wait for the thread, which may be stuck on a disk."""


class Exporter:
    """Monitor that counts, and serves the counts. Created when a term begins; `close` ends it."""

    def __init__(
        self,
        settings: Settings,
        state: Path,
        jobs: Iterable[Job] = (),
        *,
        store_id: str = "",
        said: Callable[[str], object] = lambda _: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`said` is called with sentences about the port: that it is open, or why not."""
        self._settings = settings.metrics
        self._state = state
        self._said = said
        self.registry = CollectorRegistry()
        tenants = TenantLabels(self._settings.tenants, (tenant.name for tenant in settings.policy.tenants))
        self._collector = SnapshotCollector(settings, tenants, now, store_id)
        self.registry.register(self._collector)
        ProcessCollector(registry=self.registry)
        self._recorder = MetricsRecorder(self.registry, tenants)
        self._jobs = JobChanges(jobs)
        self._collector.begin(self._jobs.jobs.values())
        for hook, _, _ in sinks(settings.hooks, ""):
            self._recorder.begin_hook(hook)
        self._recorder.begin(dict.fromkeys(job.spec.tenant for job in self._jobs.jobs.values()))
        self.took, self.failed, self.wrote = self._recorder.took, self._recorder.failed, self._recorder.wrote
        self.called, self.delivered = self._recorder.called, self._recorder.delivered
        self.answered = self._recorder.answered
        mapping = self._settings.hpc_job_mapping_dir
        self._mapping = JobMapping(Path(mapping)) if mapping else None
        self._server: MetricsServer | None = None
        self._stamps: object = None
        self._fault = ""
        self.is_port_taken = False
        """Whether another process has the port."""
        self._slip = ""
        """The last error while counting; each is logged once."""
        self._woken = threading.Event()
        self._is_closed = False
        self._thread = Watcher("gputui-metrics-files", self._tend)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int] | None:
        """Address and port that it serves; None while the port is not open."""
        server = self._server
        return (server.server_name, server.server_port) if server is not None else None

    def published(self, snapshot: Snapshot) -> None:
        """Store the snapshot as the latest, and count the changes."""
        try:
            before, update = self._collector.snapshot, self._jobs.update(snapshot.jobs)
            self._collector.update(snapshot, update, self._jobs.jobs)
            self._recorder.published(snapshot, update.changes, self._jobs.jobs)
            if self._mapping is not None:
                held, holds = ([(view.gpu.uuid, view.job_ids) for view in each.gpus] for each in (before, snapshot))
                if held != holds:
                    self._woken.set()
        except Exception as error:  # a border: metrics must not fail a tick
            if str(error) != self._slip:
                log.exception("a snapshot could not be counted")
            self._slip = str(error)

    def page(self) -> bytes:
        return generate_latest(self.registry)

    def notices(self) -> tuple[Notice, ...]:
        """Return why no metrics are served, or why the files for dcgm-exporter are not written."""
        faults = [f"no metrics are served: {self._fault}"] if self._fault else []
        if self._mapping is not None and self._mapping.fault:
            faults.append(f"metrics.hpc_job_mapping_dir: {self._mapping.fault}")
        return tuple(Notice("warning", text, short="no metrics") for text in faults)

    def close(self) -> None:
        self._is_closed = True
        self._woken.set()
        self._thread.join(CLOSE_WITHIN)
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _tend(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            found = {kind: self._state.glob(pattern) for kind, pattern in PATTERNS.items()}
            self._collector.sizes = {kind: sum(map(_size, paths)) for kind, paths in found.items()}
            self._collector.backup = read_backup_record(self._state)
            self._open_or_renew()
            if self._mapping is not None:
                self._mapping.write(self._collector.snapshot)
            self._woken.wait(EVERY)

    def _open_or_renew(self) -> None:
        """Open the port if it is closed; reload certificates and users if they changed."""
        stamps = server.stamps(self._settings)
        if self._server is not None and stamps == self._stamps:
            return
        try:
            context = server.tls_context(self._settings)
            users = server.read_users(Path(self._settings.users)) if self._settings.users else None
            if self._server is None:
                self._server = MetricsServer(
                    listen_address(self._settings.listen, "metrics.listen"), self.registry, context, users
                )
                self._server.serve()
                self._announce(self._server)
            self._server.context, self._server.users = context, users
            self._stamps = stamps
            self._report("")
            self.is_port_taken = False
        except InputError as error:  # earlier certificates and users stay in effect
            self._report(str(error))
        except OSError as error:
            self.is_port_taken = error.errno == errno.EADDRINUSE
            self._report(f"{self._settings.listen}: {error.strerror or error}")

    def _announce(self, server: MetricsServer) -> None:
        host = f"[{server.server_name}]" if ":" in server.server_name else server.server_name
        where = f"{'http' if server.context is None else 'https'}://{host}:{server.server_port}/metrics"
        log.info("metrics at %s", where)
        self._said(f"metrics at {where}")
        is_open = server.users is None and server.context is None
        if is_open and not ipaddress.ip_address(server.server_name).is_loopback:
            warning = "other machines can read the metrics, with the names of jobs and tenants: see metrics.users"
            log.warning("%s", warning)
            self._said(f"warning: {warning}")

    def _report(self, fault: str) -> None:
        """Report a fault once, until it changes or is resolved."""
        if fault and fault != self._fault:
            log.error("no metrics are served: %s", fault)
            self._said(f"no metrics are served: {fault}; scheduling continues")
        self._fault = fault


PATTERNS: Mapping[str, str] = {
    "queue": "queue.json",
    "journal": "queue.json.wal.*",
    "history": "history-*",
    "audit": "audit-*",
    "log": "gputui.log*",
}
"""Names of the files by kind."""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed since it was listed
        return 0
