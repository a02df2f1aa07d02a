"""What the engine asks of the world: a store, runtimes, a probe of GPUs and a clock.

Every call here may block, on disk, the engine or the driver, unless it says that it does not. So none of them is
made on an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Protocol

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.container import ContainerRecord, Created, ForeignContainer, Launch, RunAs, RuntimeStatus
from gputui.domain.gpu import ProbeReading
from gputui.domain.job import BootTime, Job, JobId, JobSpec
from gputui.domain.process import ProcessRow, Shell
from gputui.domain.recurring import RecurringJob
from gputui.domain.snapshot import Controls
from gputui.domain.unreadable import Unreadable


class Clock(Protocol):
    """Where time comes from."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        ...


class SteadyClock(Clock, Protocol):
    """A clock that also tells the time that really passes, however the other one is set."""

    def boot_time(self) -> BootTime:
        """The same for all processes of the machine; stands still while the machine is suspended."""
        ...


class Transaction(Protocol):
    """A change of the store, visible inside it at once and outside it all together or not at all."""

    def add(self, job: Job) -> Job:
        """Store a new job under the next id, which the returned job carries; `job.id` is ignored."""
        ...

    def get(self, job_id: JobId) -> Job:
        """The job; raises NotFoundError. A job already moved to history is read from there."""
        ...

    def put(self, job: Job) -> None:
        """Store the next version of a job. One that was in history comes back into the queue."""
        ...

    def jobs(self) -> Mapping[JobId, Job]:
        """All jobs of the queue file, in the order of their ids."""
        ...

    def waiting(self) -> Mapping[str, int]:
        """How many jobs of each tenant are PENDING; cheaper than to look at all jobs."""
        ...

    def controls(self) -> Controls:
        """The operator's standing wishes."""
        ...

    def set_controls(self, controls: Controls) -> None:
        """Replace them."""
        ...

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """All recurring jobs, in the order of their ids."""
        ...

    def add_recurring(self, entry: RecurringJob) -> RecurringJob:
        """Store a new one under the next id, which is no job's, and which the returned one carries."""
        ...

    def put_recurring(self, entry: RecurringJob) -> None:
        """Store the next version of one; raises NotFoundError."""
        ...

    def remove_recurring(self, recurring: JobId) -> None:
        """Forget one; raises NotFoundError. Its jobs stay."""
        ...

    def audit(self, entry: AuditEntry) -> None:
        """Write down who wished what."""
        ...


class StoreWatch(Protocol):
    """Word of writes to the store, for an event loop to wait for."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when something was written, by any process of this machine."""
        ...

    def take(self) -> None:
        """Have it readable no more, until the next write. Never blocks."""
        ...

    def close(self) -> None:
        """Watch no more."""
        ...


class JobStore(Protocol):
    """The queue, durable and shared between processes and threads."""

    @property
    def store_id(self) -> str:
        """Twelve characters of [a-z0-9], made once per state directory: part of every container's name."""
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """One all-or-nothing change, alone among all processes; durable when the block is left without an exception.

        An exception inside undoes it. Raises StoreFullError or StoreAccessError when it cannot be made durable:
        then nothing of it was done.
        """
        ...

    def hurried(self, seconds: float) -> AbstractContextManager[None]:
        """In the block, let this thread wait no longer than so many seconds for other writers: StoreBusyError."""
        ...

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        """Append new jobs (their ids are ignored), all or none, with an audit entry each; the ids come back in order.

        Cheap: it does not load the queue. The ids are durable when it returns: they survive kill -9 and power loss.
        Inside a transaction it is part of that, and durable with it.
        An `array` with a negative id is made to point at the element meant.
        """
        ...

    def vouch(self, spec: JobSpec, uid: int) -> JobSpec:
        """Return the spec with proof that this user, who runs this process, wants just that run.

        In a state directory that only its owner may write no proof is needed, and the spec is returned as it is.
        """
        ...

    def voucher(self, spec: JobSpec) -> RunAs:
        """Return as whom a job of this spec is to run; raises WarrantError when nothing proves it."""
        ...

    def caps_waiting(self) -> bool:
        """Whether the operator's wishes cap the waiting jobs of any tenant. Cheap, as `submit` is."""
        ...

    def jobs(self) -> Mapping[JobId, Job]:
        """All jobs of the queue file, in the order of their ids. Takes no lock; unchanged jobs are the same objects."""
        ...

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        """Return the elements of each array in the queue: by array, ids by index. Cheaper than `jobs`."""
        ...

    def get(self, job_id: JobId) -> Job:
        """The job, from the queue or from history; raises NotFoundError."""
        ...

    def controls(self) -> Controls:
        """The operator's standing wishes."""
        ...

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """All recurring jobs, in the order of their ids; unchanged ones are the same objects."""
        ...

    def version(self) -> object:
        """A token that differs whenever anything was written by any process. Costs a stat; never blocks."""
        ...

    def watch(self) -> StoreWatch | None:
        """Word of every write from now on; None where nobody gives it. Look at the version now and then all the same:

        a writer that was killed in the act may have written without a word.
        """
        ...

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Finished jobs that were moved out of the queue, by month and then by id."""
        ...

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """What was wished, oldest first."""
        ...

    def keep_house(self, now: datetime) -> None:
        """Move old finished jobs to history and fold the journal. Called by the leader when it is idle."""
        ...

    def damage(self) -> tuple[str, ...]:
        """Sentences about what could not be read, each with its file; empty when all is well."""
        ...

    def history_damage(self) -> tuple[str, ...]:
        """Return sentences about finished jobs that were left out when history was read, as far as it was."""
        ...

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Entries that were left out when jobs and recurring jobs were read; empty where nothing was read."""
        ...

    def check(self) -> None:
        """Raise StoreDamagedError where acknowledged changes are missing, as far as the queue was read at all.

        Until a repair nothing can be written; what is read is the last whole queue known, or a part of it.
        """
        ...

    def close(self) -> None:
        """Let go of files. The store may not be used afterwards."""
        ...


class LogStream(Protocol):
    """Output of an attempt, line by line."""

    def __iter__(self) -> Iterator[bytes]:
        """Lines as the job wrote them, without their line ends; control sequences are still in them."""
        ...

    def close(self) -> None:
        """End the iteration, from any thread."""
        ...


class StampedLogStream(LogStream, Protocol):
    """Output whose lines begin with the time they were written, if it is known: RFC 3339 in UTC, and a blank."""

    is_stamped: bool


class Runtime(Protocol):
    """Where attempts run. Calls raise RuntimeUnavailableError when it does not answer, else RuntimeFault."""

    name: str

    def status(self) -> RuntimeStatus:
        """How it stood when last asked. Never blocks."""
        ...

    def check(self) -> RuntimeStatus:
        """Ask it now, connecting again if need be. Does not raise: what is wrong is in the answer."""
        ...

    def has_image(self, image: str) -> bool:
        """Whether the image is here; True where jobs have none."""
        ...

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None:
        """Fetch the image, telling in words how far it is.

        Once `cancelled` is set, and after a time without progress that the settings allow, the pull is ended and
        RuntimeFault raised.
        """
        ...

    def create(self, launch: Launch) -> Created:
        """Make the container, not started. One of that name that exists already is returned as adopted.

        An existing one that was never started and has other GPUs than asked for is replaced, not adopted.
        """
        ...

    def start(self, container_id: str) -> None:
        """Start it. Of one that runs or has ended already: nothing happens."""
        ...

    def terminate(self, container_id: str) -> None:
        """Ask it politely to end: the image's stop signal, else SIGTERM. Of one that has ended: nothing happens."""
        ...

    def signal(self, container_id: str, number: int) -> None:
        """Send this signal to what runs in it. Of one that has ended: nothing happens."""
        ...

    def kill(self, container_id: str) -> None:
        """SIGKILL. Of one that has ended: nothing happens."""
        ...

    def containers(self) -> tuple[ContainerRecord, ...]:
        """All of this store's, whatever their state."""
        ...

    def inspect(self, container_id: str) -> ContainerRecord | None:
        """One of them; None when there is no such container."""
        ...

    def foreign(self) -> tuple[ForeignContainer, ...]:
        """Running containers of others that have GPUs."""
        ...

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        """Other stores' containers, running or just created, with a GPU that this one was created with; asked now."""
        ...

    def save_log(self, container_id: str, path: Path) -> None:
        """Write all of its output to the file, whole or not at all."""
        ...

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> LogStream:
        """Its output from the last `tail` lines on; with `follow`, until it ends.

        With `stamped` it is a StampedLogStream where the runtime knows times, else as without.
        """
        ...

    def remove(self, container_id: str) -> None:
        """Remove one that does not run. Of one that is gone: nothing happens."""
        ...

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, whenever one of its containers may have ended, or it came back."""
        ...

    def close(self) -> None:
        """Let go of connections and threads. Containers run on."""
        ...


class GpuProbe(Protocol):
    """Readings of GPUs."""

    def start(self) -> None:
        """Begin to read, in the background. Never blocks."""
        ...

    def latest(self) -> ProbeReading:
        """What is known now. Never blocks."""
        ...

    def subscribe(self, on_reading: Callable[[ProbeReading], None]) -> None:
        """Call `on_reading`, from any thread, with each new reading."""
        ...

    def refresh(self) -> None:
        """Ask for a whole sweep, process lists too, as soon as can be. Never blocks."""
        ...

    def want_pcie(self, uuid: str | None) -> None:
        """Read PCIe and NVLink throughput and its processes' shares of this GPU alone (40 ms a sweep); None: of none.

        Never blocks.
        """
        ...

    def forgive(self, resumed: Mapping[str, datetime]) -> None:
        """Forget the fatal Xids that these GPUs reported before the given times. Never blocks."""
        ...

    def follow(self, jobs: Iterable[Job]) -> None:
        """The jobs that hold GPUs now. Real GPUs know by themselves; simulated ones behave accordingly."""
        ...

    def close(self) -> None:
        """Stop reading. Never waits for a wedged driver."""
        ...


class Interior(Protocol):
    """The inside of attempts that run. Calls block, and raise RuntimeUnavailableError or RuntimeFault."""

    def shell(self, container_id: str) -> Shell:
        """What opens a shell there."""
        ...

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """All that runs there, asked now."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
