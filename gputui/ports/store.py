"""Interface of the job store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime

    from gputui.domain.access import Actor, AuditEntry
    from gputui.domain.accounting import JobRecord
    from gputui.domain.arrays import Entries
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, JobSpec
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import Controls, Unreadable


class Transaction(Protocol):
    """Transaction; its changes are visible inside at once, and outside all together or not at all."""

    def add(self, job: Job) -> Job:
        """Store a new job under the next id, which the returned job carries; `job.id` is ignored."""

    def get(self, job_id: JobId) -> Job:
        """Return the job from the queue or from history; for an entry, only that element. Raises NotFoundError."""

    def chosen(self, ids: Iterable[JobId]) -> Iterator[Job]:
        """Yield the jobs with these ids, elements of one entry together, in the order named; raises NotFoundError."""

    def put(self, job: Job) -> None:
        """Store the next version of a job, or of several elements as an entry.

        Elements leave their previous entry. A job in history returns to the queue.
        """

    def jobs(self) -> Entries:
        """Return all jobs in the queue by id."""

    def controls(self) -> Controls:
        """Return the operator's controls."""

    def set_controls(self, controls: Controls) -> None:
        """Replace the operator's controls."""

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """Return all recurring jobs by id."""

    def add_recurring(self, entry: RecurringJob) -> RecurringJob:
        """Store a new recurring job under a new id, shared with jobs' ids, which the returned one carries."""

    def put_recurring(self, entry: RecurringJob) -> None:
        """Store the next version of a recurring job; raises NotFoundError."""

    def remove_recurring(self, recurring: JobId) -> None:
        """Remove a recurring job; raises NotFoundError. Its jobs stay."""

    def audit(self, entry: AuditEntry) -> None:
        """Add an entry to the audit log."""


class StoreWatch(Protocol):
    """Descriptor on which an event loop can wait for changes of the queue."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable after a change."""

    def clear(self) -> None:
        """Reset it, so that it is readable again only after the next write. Never blocks."""

    def close(self) -> None:
        """Stop watching."""


class Queue(Protocol):
    """Reading side of a queue: of a store, or of the engine of a cluster. Nothing else is needed by commands."""

    @property
    def store_id(self) -> str:
        """Identifier of twelve characters [a-z0-9], generated once per state directory, part of names of containers.

        A cluster's is its name.
        """

    def jobs(self) -> Entries:
        """Return all jobs in the queue by id. Takes no lock; unchanged entries are the same objects."""

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        """Return the ids of elements in the queue by array and index, without decoding jobs."""

    def get(self, job_id: JobId) -> Job:
        """Return a job from the queue or from history; for an entry, only that element. Raises NotFoundError."""

    def whole_id(self, number: JobId) -> JobId:
        """Return the number of a job or an array; where numbers are long, of one that is named by its first digits.

        Raises NotFoundError or InputError for digits that name no job there, or several.
        """

    def controls(self) -> Controls:
        """Return the operator's controls."""

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        """Return all recurring jobs by id; unchanged ones are the same objects."""

    def version(self) -> object:
        """Return a token that differs once a read may return something else. Costs a stat; never blocks."""

    def watch(self) -> StoreWatch | None:
        """Return a watch for changes from now on; None: the version has to be compared now and then."""

    def past(self, since: datetime | None = None, until: datetime | None = None) -> Iterator[Job]:
        """Yield finished jobs that left the queue, the latest month first, else unordered; `since`: ended since.

        `until`: those of later months may be left out.
        """

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        """Yield the accounting records of all jobs in the queue, and of those that `past` yields, unordered."""

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Yield the audit log, oldest entry first; with a target, only its entries."""

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        """Yield the requests with an idempotency key of a user, as far as queue and journal know them.

        Each is the key as stored, and the jobs that it submitted or changed.
        """

    def check(self) -> None:
        """Raise StoreDamagedError if acknowledged changes are missing, as far as the queue was read.

        Until a repair nothing can be written; reads return the last complete queue known, or a part of it.
        """

    def unread(self) -> tuple[str, ...]:
        """Return a sentence for each part that was left out of what was read so far, as it could not be read."""

    def unreadable(self) -> tuple[Unreadable, ...]:
        """Return jobs and recurring jobs that were left out when they were read; empty before the first read."""


class JobStore(Queue, Protocol):
    """The queue of a state directory, durable and shared between processes and threads."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Begin an all-or-nothing change that excludes other writers; durable when the block ends.

        An exception inside undoes it. Raises StoreFullError or StoreAccessError if it cannot be made durable; then
        nothing was changed.
        """

    def own(self) -> None:
        """Keep other processes from writing until `disown`; raises StoreBusyError if one writes for too long.

        While acknowledged changes are missing others may write all the same, to repair the queue.
        """

    def disown(self) -> None:
        """Let other processes write between the transactions of this one."""

    def lock_timeout(self, seconds: float) -> AbstractContextManager[None]:
        """Within the block, raise StoreBusyError when this thread waits that long (seconds) for other writers."""

    def note(self, entry: AuditEntry) -> None:
        """Add an entry to the audit log, durably, also beside another process that owns the queue."""

    def time_writes(self, wrote: Callable[[float], object]) -> None:
        """Call `wrote` with the seconds of each write of this process from now on, in the thread that writes."""

    def on_change(self, changed: Callable[[], object]) -> None:
        """Call `changed` after each write of this process from now on, in the thread that writes, once it is read."""

    def submit(self, jobs: Iterable[Job], *, actor: Actor) -> tuple[JobId, ...]:
        """Append new jobs with their audit entries, all or none, ignoring their ids; return the new ids in order.

        An entry takes one id per element and is returned as the id of its first element. A negative `array` id is
        replaced by the id of the element at that position.

        The jobs are durable when it returns: they survive kill -9 and power loss. Inside a
        transaction they become durable with it.
        """

    @property
    def owner(self) -> int:
        """Uid of the owner of the directory, as whom jobs of root run, and those of an unknown submitter."""

    def run_as(self, spec: JobSpec, submitted_uid: int | None = None) -> int:
        """Return the uid that a job of this spec runs as: its submitter, as the kernel told, or the owner.

        Raises InputError for a job of an unknown submitter, of a time when a group wrote the queue.
        """

    def maintain(self, now: datetime) -> None:
        """Move old finished jobs to history and fold the journal. Called by an idle leader."""

    def damage(self) -> tuple[str, ...]:
        """Return sentences about unreadable parts, each with its file; empty if there are none."""

    def history_damage(self) -> tuple[str, ...]:
        """Return sentences about finished jobs that were left out of history as read so far."""

    def close(self) -> None:
        """Close all files. The store may not be used afterwards."""
