"""Exporter: the monitor of a scheduler's term that serves metrics to Prometheus.

Its own thread opens the port, and retries after failures; it measures the store's files, reloads changed certificates,
and writes the files for dcgm-exporter. So neither a tick nor a scrape waits for a disk.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector

from gputui.config import listen_address
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_changes import JobChanges
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Notice, Snapshot
from gputui.engine.files.backup_file import read_backup_record
from gputui.engine.hooks.delivery import sinks
from gputui.metrics import access
from gputui.metrics.collector import SnapshotCollector
from gputui.metrics.dcgm import JobMapping
from gputui.metrics.recorder import MetricsRecorder
from gputui.metrics.server import MetricsServer
from gputui.metrics.tenant_labels import TenantLabels

log = logging.getLogger(__name__)

EVERY = 15.0
"""Seconds between two checks of the files, and between two attempts to open the port."""


CLOSE_WITHIN = 5.0
"""Seconds to wait for the thread, which may be stuck on a disk."""


def _now() -> datetime:
    return datetime.now(UTC)


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
        now: Callable[[], datetime] = _now,
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
        self._thread = threading.Thread(target=self._tend, name="gputui-metrics-files", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int] | None:
        """Address and port that it serves; None while the port is not open."""
        server = self._server
        return (server.server_name, server.server_port) if server is not None else None

    def published(self, snapshot: Snapshot) -> None:
        """Store the snapshot as the latest, and count the changes."""
        try:
            self._take(snapshot)
        except Exception as error:  # a border: metrics must not fail a tick
            if str(error) != self._slip:
                log.exception("a snapshot could not be counted")
            self._slip = str(error)

    def _take(self, snapshot: Snapshot) -> None:
        before, update = self._collector.snapshot, self._jobs.update(snapshot.jobs)
        self._collector.update(snapshot, update, self._jobs.jobs)
        self._recorder.published(snapshot, update.changes, self._jobs.jobs)
        if self._mapping is not None and _holders(before) != _holders(snapshot):
            self._woken.set()

    def notices(self) -> tuple[Notice, ...]:
        """Return why no metrics are served, or why the files for dcgm-exporter are not written."""
        faults = [f"no metrics are served: {self._fault}"] if self._fault else []
        if self._mapping is not None and self._mapping.fault:
            faults.append(f"metrics.hpc_job_mapping_dir: {self._mapping.fault}")
        return tuple(Notice("warning", text, short="no metrics") for text in faults)

    def close(self) -> None:
        """Close the port."""
        self._is_closed = True
        self._woken.set()
        self._thread.join(CLOSE_WITHIN)
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _tend(self) -> None:
        while not self._is_closed:
            self._woken.clear()
            try:
                self._collector.sizes = file_sizes(self._state)
                self._collector.backup = read_backup_record(self._state)
                self._open_or_renew()
                if self._mapping is not None:
                    self._mapping.write(self._collector.snapshot)
            except Exception:  # the border of a thread
                log.exception("metrics")
            self._woken.wait(EVERY)

    def _open_or_renew(self) -> None:
        """Open the port if it is closed; reload certificates and users if they changed."""
        stamps = access.stamps(self._settings)
        if self._server is not None and stamps == self._stamps:
            return
        try:
            context = access.tls_context(self._settings)
            users = access.read_users(Path(self._settings.users)) if self._settings.users else None
            if self._server is None:
                self._server = self._opened(context, users)
            self._server.context, self._server.users = context, users
            self._stamps = stamps
            self._report("")
            self.is_port_taken = False
        except InputError as error:  # earlier certificates and users stay in effect
            self._report(str(error))
        except OSError as error:
            self.is_port_taken = error.errno == errno.EADDRINUSE
            self._report(f"{self._settings.listen}: {error.strerror or error}")

    def _opened(self, context: ssl.SSLContext | None, users: access.Users | None) -> MetricsServer:
        """Open the port; raises OSError."""
        address = listen_address(self._settings.listen, "metrics.listen")
        server = MetricsServer(address, self.registry, context, users)
        server.serve()
        host = f"[{server.server_name}]" if ":" in server.server_name else server.server_name
        where = f"{'http' if context is None else 'https'}://{host}:{server.server_port}/metrics"
        log.info("metrics at %s", where)
        self._said(f"metrics at {where}")
        if users is None and context is None and not ipaddress.ip_address(server.server_name).is_loopback:
            warning = "other machines can read the metrics, with the names of jobs and tenants: see metrics.users"
            log.warning("%s", warning)
            self._said(f"warning: {warning}")
        return server

    def _report(self, fault: str) -> None:
        """Report a fault once, until it changes or is resolved."""
        if fault and fault != self._fault:
            log.error("no metrics are served: %s", fault)
            self._said(f"no metrics are served: {fault}; scheduling continues")
        self._fault = fault


def _holders(snapshot: Snapshot) -> list[tuple[str, tuple[int, ...]]]:
    return [(view.gpu.uuid, view.job_ids) for view in snapshot.gpus]


PATTERNS: Mapping[str, str] = {
    "queue": "queue.json",
    "journal": "queue.json.wal.*",
    "history": "history-*",
    "audit": "audit-*",
    "log": "gputui.log*",
}
"""Names of the files by kind."""


def file_sizes(state: Path) -> dict[str, int]:
    """Return the bytes of the files of each kind. Blocks on the disk."""
    return {kind: sum(_size(path) for path in state.glob(pattern)) for kind, pattern in PATTERNS.items()}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # removed since it was listed
        return 0
