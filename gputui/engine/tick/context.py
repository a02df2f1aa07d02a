"""State that the steps of a tick share: the queue as last read, observers of runtimes, the probe and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from gputui.domain.gpu import ProbeReading, with_faults
from gputui.domain.job import Job
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Notice
from gputui.engine.tick.attempt_workers import AttemptWorkers
from gputui.engine.tick.snapshot_builder import QueueView
from gputui.engine.tick.workers import Observer, TelemetryRecorder
from gputui.ports import NO_MONITOR, GpuProbe, JobStore, Monitor, Runtime, SteadyClock


class Ports(Struct, frozen=True):
    store: JobStore
    runtimes: Mapping[str, Runtime]
    probe: GpuProbe
    clock: SteadyClock
    monitor: Monitor = NO_MONITOR


class TickContext(Struct, eq=False, dict=True):
    """Store, probe, runtimes and workers, as the steps of a tick share them."""

    store: JobStore
    probe: GpuProbe
    observers: Mapping[str, Observer]
    workers: AttemptWorkers
    settings: Settings
    telemetry: TelemetryRecorder
    monitor: Monitor = NO_MONITOR
    queue: QueueView = field(default_factory=QueueView)
    version: object = None
    """Version of the store when the queue was read."""
    idle_since: Mapping[str, datetime] = field(default_factory=dict)
    """Time by UUID since which a GPU has been left idle by its jobs."""
    damage: tuple[Notice, ...] = ()

    def refresh(self) -> None:
        """Read the store again if it was written; raises StoreDamagedError if it lost acknowledged changes."""
        version = self.store.version()
        if version != self.version:
            self.queue, self.version = QueueView.read(self.store), version
            self.damage = tuple(
                Notice("warning", sentence) for sentence in (*self.store.damage(), *self.store.history_damage())
            )
            self.damage += tuple(Notice("warning", entry.sentence) for entry in self.queue.unreadable)
            self.probe.follow(self.queue.active)
            self.probe.forgive(self.queue.controls.resumed)
        self.store.check()

    @property
    def reading(self) -> ProbeReading:
        """Latest reading of the GPUs, including faults that earlier schedulers recorded."""
        return with_faults(self.probe.latest(), self.queue.controls.faults)

    def observer_of(self, job: Job) -> Observer | None:
        return self.observers.get(job.spec.runtime_in(self.observers))

    def is_answered(self, job: Job) -> bool:
        """Return whether the job's runtime answered its last call: requests that fail are not repeated before that."""
        observer = self.observer_of(job)
        return observer is not None and observer.runtime.status().up
