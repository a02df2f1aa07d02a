"""A job in the queue: its specification, its state and its attempts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import runs as arrays
from gputui.domain.attempt import Attempt
from gputui.domain.cause import Cause, with_error
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, JobId, JobSpec
from gputui.domain.runs import Run, Spans
from gputui.domain.server_ids import shown_id
from gputui.domain.state import JobState, check_transition

MAX_INDICES = 24
"""Maximum number of characters of an array's indices that are displayed."""


class ArrayRef(Struct, frozen=True):
    """A job's place in an array."""

    id: JobId
    """Id of the array: that of its first element. Before ids are given out: minus one minus the place of the
    first element among the jobs submitted together, which the store turns into the id."""
    index: int
    limit: int | None = None
    """Maximum number of elements that run at a time; None: no limit."""


class Stopping(Struct, frozen=True):
    """Attempt that was told to end, and is killed after its grace period."""

    cause: Cause
    at: datetime
    killed_at: datetime | None = None


class Placed(Struct, frozen=True):
    """A place beside another job: that job's rank at the time, and a tie breaker.

    Both ranks age alike, so the job stays beside the other one.
    """

    past: int
    """Id of the job that it was moved past."""
    beside: int
    """Id of the job whose rank it has: the same job, unless that one is itself placed beside a third."""
    tie: float
    """Below 0 it is before that job, above 0 behind it; several are in ascending order."""
    since: float
    """Second since the epoch from which that job was eligible."""
    tenant: str
    """Tenant of that job, whose GPU use counts."""
    time_limit: timedelta | None
    """Limit of that job; None: it has none."""
    priority: int
    nice: int
    topped_at: datetime | None


class Placing(Struct, frozen=True):
    """A place for a job, or for elements of an array that wait together."""

    ids: tuple[int, ...]
    placed: Placed


class Waited(Struct, frozen=True):
    """Time for which a job waited while it was eligible, and its priority then."""

    priority: int
    time: timedelta


class Job(Struct, frozen=True, weakref=True):
    """State of a JobSpec in the queue, and its attempts so far. Immutable; changes create the next Job.

    With `runs` it is an entry: several elements of an array that wait, or that were cancelled before they started.
    """

    id: JobId
    """Id of the first element of an entry."""
    spec: JobSpec
    submitted_at: datetime
    state: JobState = JobState.PENDING
    priority: int = NORMAL_PRIORITY
    """Current priority; `spec.priority` is the submitted one."""
    topped_at: datetime | None = None
    """Time at which it was put at the head of the queue by hand; the latest goes first."""
    placed: Placed | None = None
    """Put beside another by hand; a later change of priority ends it."""
    held: bool = False
    hold_reason: str | None = None
    """Reason why the scheduler held the job; None if a user did."""
    cancel_requested: bool = False
    requeue_requested: bool = False
    not_before: datetime | None = None
    """End of a back-off."""
    started_at: datetime | None = None
    """Start of the latest attempt."""
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Cause of the last attempt's end; None if it succeeded."""
    attempts: tuple[Attempt, ...] = ()
    stopping: Stopping | None = None
    array: ArrayRef | None = None
    avoid_gpus: tuple[str, ...] = ()
    """UUIDs of GPUs on which it failed because of them."""
    submitted_by: str = ""
    """Name of the submitting user."""
    released_at: datetime | None = None
    """Time of the latest release by a user; earlier failures no longer count against its image or tenant."""
    recurring: JobId | None = None
    """Id of the recurring job that submitted it."""
    announced_end_at: datetime | None = None
    """The `ended_at` that was announced to hooks."""
    waited: tuple[Waited, ...] = ()
    """Eligible waits that ended by a hold, an attempt or a change of priority; `policy.waits` adds them up."""
    waiting_since: datetime | None = None
    """Start of the wait after those; None: the submission."""
    suspended: bool = False
    """True if a user wants its processes stopped."""
    signals: tuple[int, ...] = ()
    """Signals that users requested and the scheduler has yet to send."""
    limit_changed_at: datetime | None = None
    """Time at which its time limit was last changed while it ran."""
    cancelled_by: str = ""
    """User who cancelled it; empty: no user, or not recorded."""
    held_by: str = ""
    """User who held it; empty: the scheduler, or not recorded."""
    held_at: datetime | None = None
    ranked_by: str = ""
    """User who last changed its priority or its place in the queue; empty: no user, or not recorded."""
    suspended_by: str = ""
    """User who suspended it."""
    runs: tuple[Run, ...] = ()
    """Elements of an entry, in the order of their ids; empty: a single job. `array` has the index of the first."""

    def to(self, state: JobState, **changes: Any) -> Job:
        """Return the next Job, in `state`; raises TransitionError if the transition is not allowed."""
        check_transition(self.state, state)
        return replace(self, state=state, **changes)

    def evolve(self, **changes: Any) -> Job:
        """Return the next Job, in the same state."""
        return replace(self, **changes)

    def unheld(self, **changes: Any) -> Job:
        """Return the job released from its hold, with other changes."""
        return self.evolve(held=False, hold_reason=None, held_by="", held_at=None, **changes)

    def prioritised(self, value: int, *, relative: bool = False) -> Job:
        """Return the job with that priority, or changed by it, within 0 to 100; ends its place by hand."""
        wanted = self.priority + value if relative else value
        return self.evolve(priority=min(MAX_PRIORITY, max(0, wanted)), topped_at=None, placed=None)

    def topped(self, at: datetime) -> Job:
        """Return the job, put at the head of the queue."""
        return self.evolve(topped_at=at, placed=None)

    def put(self, placed: Placed) -> Job:
        """Return the job, placed beside another."""
        return self.evolve(priority=placed.priority, topped_at=placed.topped_at, placed=placed)

    @property
    def name(self) -> str:
        """The displayed name; for an element of a sweep with its values: `train lr=1e-3 seed=4`."""
        if not self.spec.sweep or self.runs or self.array is None:
            return self.spec.name
        from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

        return sweeps.shown_name(self.spec.name, self.spec.sweep, self.array.index)

    @property
    def count(self) -> int:
        """Number of jobs it represents: the elements of an entry, else 1."""
        return arrays.count(self.runs) if self.runs else 1

    @property
    def ids(self) -> Iterator[JobId]:
        """Ids of the jobs it represents, in order."""
        return arrays.ids(self.runs) if self.runs else iter((self.id,))

    @property
    def last_id(self) -> JobId:
        """Id of the last job it represents."""
        return self.runs[-1].end - 1 if self.runs else self.id

    @property
    def indices(self) -> Iterator[int]:
        """Array indices of the jobs it represents, in the order of their ids; empty unless it is an array."""
        if self.runs:
            return arrays.indices(self.runs)
        return iter((self.array.index,) if self.array else ())

    def has(self, job_id: JobId) -> bool:
        """Return whether it is that job, or an entry that contains it."""
        return arrays.find(self.runs, job_id) is not None if self.runs else job_id == self.id

    def element(self, job_id: JobId) -> Job:
        """Return the single job with that id; raises KeyError if it does not contain it."""
        if not self.runs and job_id == self.id:
            return self
        run = arrays.find(self.runs, job_id)
        if run is None:
            raise KeyError(job_id)
        return self.with_runs((run.part(job_id, job_id + 1),))

    def with_runs(self, runs: tuple[Run, ...]) -> Job:
        """Return the entry of these elements of the same array; a single job if there is one element."""
        if self.array is None or not runs:
            raise ValueError(f"{self.shown_id} cannot be {len(runs)} runs of elements")
        array = ArrayRef(self.array.id, runs[0].index, self.array.limit)
        is_one = len(runs) == 1 and runs[0].count == 1
        return self.evolve(id=runs[0].id, array=array, runs=() if is_one else runs)

    def divided(self, ids: Iterable[JobId] | Spans) -> tuple[Job | None, Job | None]:
        """Return its jobs with these ids, and the others; None where there are none."""
        if not self.runs:
            return (self, None) if self.id in arrays.spans_of(ids) else (None, self)
        taken, left = arrays.divided(self.runs, ids)
        return self.with_runs(taken) if taken else None, self.with_runs(left) if left else None

    def without(self, ids: Iterable[JobId] | Spans) -> Job | None:
        """Return its jobs without these ids; None if none is left."""
        return self.divided(ids)[1]

    @property
    def shown_id(self) -> str:
        """Displayed id: `7`, `gpu1:7` on a server, `5_19` for element 19 of array 5, `5_[0-9%2]` for an entry."""
        if self.array is None:
            return shown_id(self.id)
        if not self.runs:
            return f"{shown_id(self.array.id)}_{self.array.index}"
        limit = f"%{self.array.limit}" if self.array.limit else ""
        return f"{shown_id(self.array.id)}_[{arrays.words(self.runs, MAX_INDICES)}{limit}]"

    @property
    def target(self) -> str:
        """Target of actions on it in the audit log: `job 7`, or `array 5` for several elements at once."""
        return f"array {self.array.id}" if self.array and self.runs else f"job {self.id}"

    @property
    def attempt(self) -> Attempt | None:
        """The current attempt, else the last one."""
        return self.attempts[-1] if self.attempts else None

    @property
    def next_attempt(self) -> int:
        """Number of the next attempt; a repaired queue may lack earlier attempts."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def is_suspended(self) -> bool:
        """Return whether the current attempt is suspended."""
        attempt = self.attempt
        return self.state.is_active and attempt is not None and attempt.suspended_at is not None

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs it holds now; empty unless an attempt is active."""
        attempt = self.attempt
        if attempt is None or attempt.is_over or not self.state.is_active:
            return ()
        return attempt.gpus

    @property
    def limit_at(self) -> datetime | None:
        """Time at which its time limit ends the current attempt; None without one."""
        attempt, limit = self.attempt, self.spec.time_limit
        if limit is None or attempt is None or attempt.started_at is None or attempt.is_over:
            return None
        return attempt.started_at + limit

    @property
    def warning_at(self) -> datetime | None:
        """Time at which the current attempt is or was warned of its time limit."""
        warning, limit_at = self.spec.warning, self.limit_at
        return limit_at - warning.before if warning and limit_at else None

    @property
    def end_info(self) -> str:
        """Return why its last attempt ended and, unless it failed, how it used its GPUs."""
        told = self.attempt.efficiency if self.attempt and self.state is not JobState.FAILED else None
        return " · ".join(words for words in (self.end_words, told.short if told else "") if words)

    @property
    def end_words(self) -> str:
        """Return why its last attempt ended, or why it never started; empty if it succeeded."""
        attempt = self.attempt
        return with_error(self.cause, attempt.error if attempt and attempt.is_over else "")

    @property
    def charged_attempts(self) -> int:
        """Attempts that count against its retries."""
        return sum(attempt.charged for attempt in self.attempts if attempt.is_over)

    def with_attempt(self, **changes: Any) -> Job:
        """Return the next Job, with `changes` to its last attempt."""
        last = replace(self.attempts[-1], **changes)
        return replace(self, attempts=(*self.attempts[:-1], last))


class Placement(Struct, frozen=True):
    """Decision to start this job on these GPUs, not carried out yet."""

    job_id: JobId
    gpus: tuple[str, ...] = ()
    gpu_share: float = 1.0
    """Share of each GPU that it is charged for."""
