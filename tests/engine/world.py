"""A scheduler over fakes, and the means to kill it and start the next."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Leader, Snapshot
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.actions.actions import Actions
from gputui.engine.tick.context import Ports
from gputui.engine.tick.scheduler import Scheduler
from gputui.engine.tick.workers import WorkKind
from gputui.ports import JobStore, Transaction
from tests.engine.fakes import Crash, FakeProbe, FakeRuntime, InlineExecutor, Tripwire
from tests.engine.real_pools import RealPools
from tests.factories import ACTOR, FakeClock, spec
from tests.memory_store import MemoryJobStore


class BrittleStore:
    """Store in which the process may die before and after every commit."""

    def __init__(self, store: JobStore, tripwire: Tripwire) -> None:
        self._store = store
        self._tripwire = tripwire

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with self._store.transaction() as transaction:
            yield transaction
            self._tripwire.step()
        self._tripwire.step()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class World:
    """Everything that outlives a scheduler, and one scheduler at a time."""

    def __init__(
        self, directory: Path, *, gpus: int = 4, settings: Settings | None = None, pools: RealPools | None = None
    ) -> None:
        """Create the world; without `pools` workers run in the thread that calls them."""
        self.pools = pools
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.settings = settings or Settings()
        self.clock = FakeClock()
        self.tripwire = Tripwire()
        self.store: JobStore = MemoryJobStore()
        self.docker = FakeRuntime("docker", self.clock, self.tripwire)
        self.host = FakeRuntime("process", self.clock, self.tripwire)
        self.probe = FakeProbe(gpus, self.clock)
        self.actions = Actions(self.store, self.clock, ACTOR)
        self.workers: Executor | None = None if pools else InlineExecutor()
        """Executor in place of all pools; None for the real ones."""
        self.snapshots: list[Snapshot] = []
        self.former: set[int] = set()
        """Accounts that may not use the queue any more."""
        self.reborn()

    def use(self, store: JobStore) -> None:
        """Continue with another store, and a new scheduler on it."""
        self.store = store
        self.actions = Actions(store, self.clock, ACTOR)
        self.reborn()

    def _pool(self, work: WorkKind, runtime: str) -> Executor:
        if self.workers is not None:
            return self.workers
        assert self.pools is not None
        return self.pools(work, runtime)

    def reborn(self) -> None:
        """Start a new scheduler, which knows nothing of the last one."""
        with suppress(Crash):
            self.settle()
        self.tripwire.dead = False
        runtimes = {"docker": self.docker, "process": self.host}
        self.scheduler = Scheduler(
            Ports(BrittleStore(self.store, self.tripwire), runtimes, self.probe, self.clock),
            self.settings,
            pools=self._pool,
            directory=self.directory,
            leader=Leader(1, "here", "root", "serve", self.clock.now()),
            publish=self.snapshots.append,
            wake=lambda: None,
            is_former=lambda uid: uid in self.former,
        )

    def tick(self, times: int = 1, seconds: float = 1.0) -> Snapshot:
        """Advance the time, list the runtimes, and run a tick."""
        for _ in range(times):
            self.clock.advance(seconds)
            self.observe()
            self.scheduler.tick(self.clock.now())
            if self.pools and self.workers is None:
                self.scheduler.tick(self.clock.now())  # while workers are busy: nothing is given out twice
                self.settle()
                self.scheduler.tick(self.clock.now())  # as the loop does once workers are done
                self.settle()
        return self.snapshots[-1]

    def settle(self) -> None:
        """Wait for the workers."""
        if self.pools:
            self.pools.settle()

    def observe(self) -> None:
        for observer in self.scheduler.observers.values():
            observer.observe()

    def submit(self, gpus: int = 0, **changes: Any) -> JobId:
        [job_id] = self.actions.act(SubmitJobs((Submission(spec(gpus, **changes)),))).ids
        return job_id

    def job(self, job_id: JobId) -> Job:
        return self.store.get(job_id)

    def exit(self, job_id: JobId, code: int = 0) -> None:
        """End the container of the job's latest attempt."""
        job = self.job(job_id)
        runtime = self.host if job.spec.is_host else self.docker
        [record] = [one for one in runtime.running() if one.job_id == job_id]
        runtime.exit(record.id, code)
