"""What every step of a tick stands on: the queue as it was last read, and the hands that act."""

from __future__ import annotations

from collections.abc import Mapping

from gputui.domain.job import Job
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Notice
from gputui.engine.hands import Hands
from gputui.engine.observer import Observer
from gputui.engine.picture import Queue
from gputui.ports import GpuProbe, JobStore


class Ground:
    """The store and the outside world, as the steps of the scheduler share them."""

    def __init__(
        self,
        store: JobStore,
        probe: GpuProbe,
        observers: Mapping[str, Observer],
        hands: Hands,
        settings: Settings,
    ) -> None:
        self.store = store
        self.probe = probe
        self.observers = observers
        self.hands = hands
        self.settings = settings
        self.queue = Queue()
        self.version: object = None
        """Of the store, when the queue was read."""
        self.damage: tuple[Notice, ...] = ()

    def observe(self) -> None:
        """Read the store if it was written since the last look; raises StoreDamagedError where it lost something."""
        version = self.store.version()
        if version != self.version:
            self.queue, self.version = Queue.of(self.store), version
            self.damage = tuple(
                Notice("warning", sentence) for sentence in (*self.store.damage(), *self.store.history_damage())
            )
            self.damage += tuple(Notice("warning", entry.sentence) for entry in self.queue.unreadable)
            self.probe.follow(self.queue.active)
            self.probe.forgive(self.queue.controls.resumed)
        self.store.check()

    def observer_of(self, job: Job) -> Observer | None:
        """Who watches the runtime a job runs in; None when there is no such runtime here."""
        return self.observers.get(runtime_of(job))


def runtime_of(job: Job) -> str:
    """The name of the runtime a job runs in."""
    return "process" if job.spec.is_host else "docker"
