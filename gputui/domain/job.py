"""A job in the queue: its specification, state and attempts; as an element of a sweep and for another queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import runs as arrays
from gputui.domain.errors import Cause, GputuiError, NotFoundError, with_error
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, JobId, JobSpec, PublishedPort, Submission, shown_id
from gputui.domain.runs import Run, Spans
from gputui.domain.state import JobState, check_transition
from gputui.domain.telemetry import AttemptTelemetry, Efficiency


class BootTime(Struct, frozen=True):
    """Time since boot: a clock that cannot be set."""

    boot: str
    """Identifier of the machine's boot."""
    seconds: float


class Attempt(Struct, frozen=True):
    """Attempt to run a job."""

    number: int
    """Number from 1. A start that was interrupted before a container ran releases its number."""
    gpus: tuple[str, ...] = ()
    """UUIDs allocated to it."""
    claimed_at: datetime | None = None
    """Time at which the store assigned its GPUs: step (a) of the start protocol."""
    container_id: str | None = None
    """The runtime's handle: a container's full id, or a host attempt's name."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Cause of its end; None if it succeeded or still runs."""
    log_path: str | None = None
    """Path of its saved output once it has ended, relative to the state directory."""
    charged: bool = True
    """True if the attempt counts against the job's retries."""
    notes: tuple[str, ...] = ()
    """Remarks of the runtime: cpus clamped to the host's, a process out of memory, ..."""
    ports: tuple[PublishedPort, ...] = ()
    """Ports published, as the engine chose them at the start."""
    warned_at: datetime | None = None
    """Time of the warning before its limit."""
    gpu_share: float = 1.0
    """Share of each GPU that its tenant is charged for; less than 1 where others may share it."""
    preempted_by: JobId | None = None
    preempted_at: datetime | None = None
    """Preempting job, and time of the request; the attempt may have ended by itself during its grace period."""
    clock_moved: timedelta = timedelta()
    """Amount by which the clock was set while it ran; applied to its times above, not to those of the runtime."""
    began: BootTime | None = None
    """`started_at` on the clock that cannot be set."""
    suspended_at: datetime | None = None
    """Time since which its processes are stopped; None: they run."""
    suspensions: tuple[tuple[datetime, datetime], ...] = ()
    """Starts and ends of its past suspensions."""
    efficiency: Efficiency | None = None
    """Use of its GPUs; None while it runs, without GPUs, and if nothing could be read."""
    telemetry: AttemptTelemetry | None = None
    """Measurements; None while it runs, if nothing could be read, and in jobs of an older gputui."""
    error: str = ""
    """Line of its output that says why it failed; empty if none was found."""
    node: str = ""
    """Node of a cluster on which it runs, several with commas; empty: this machine, or unknown."""
    unnamed_gpus: int = 0
    """Number of GPUs that the engine of a cluster allocated to it without naming them."""

    @property
    def gpu_count(self) -> int:
        return len(self.gpus) or self.unnamed_gpus

    @property
    def is_over(self) -> bool:
        return self.ended_at is not None

    @property
    def end_words(self) -> str:
        """Return why it ended, from its error line if that says more; empty if it succeeded or still runs."""
        return with_error(self.cause, self.error) if self.is_over else ""


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


BATCH_SCRIPT, OTHER_GPUTUI = "sbatch", "gputui elsewhere"
"""Programs that submitted a job of a cluster that was not submitted from this state directory."""
_WITHOUT_IMAGE = {
    BATCH_SCRIPT: "none: a batch script of its user",
    OTHER_GPUTUI: "not known here: its user submitted it by gputui elsewhere",
}


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
    submitted_uid: int | None = None
    """Uid of the submitting user, as the kernel told it to the owner of the queue; None: not recorded."""
    key: str = ""
    """Idempotency key of its submission, which its submitter chose: a repeated request with it is the same job."""
    submitted_via: str = ""
    """Program that submitted it for its user, such as `mcp`, or `sudo`; empty: a command or console."""
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
    runs_once: bool = False
    """True if the engine of a cluster does not run it again after its end."""
    runs: tuple[Run, ...] = ()
    """Elements of an entry, in the order of their ids; empty: a single job. `array` has the index of the first."""

    def to(self, state: JobState, **changes: Any) -> Job:
        """Return the next Job, in `state`; raises TransitionError if the transition is not allowed."""
        check_transition(self.state, state)
        return replace(self, state=state, **changes)

    def evolve(self, **changes: Any) -> Job:
        return replace(self, **changes)

    def unheld(self, **changes: Any) -> Job:
        return self.evolve(held=False, hold_reason=None, held_by="", held_at=None, **changes)

    def prioritised(self, value: int, *, relative: bool = False) -> Job:
        """Return the job with that priority, or changed by it, within 0 to 100; ends its place by hand."""
        wanted = self.priority + value if relative else value
        return self.evolve(priority=min(MAX_PRIORITY, max(0, wanted)), topped_at=None, placed=None)

    @property
    def image_words(self) -> str:
        return self.spec.image or _WITHOUT_IMAGE.get(self.submitted_via, "none: a host process")

    @property
    def name(self) -> str:
        """The displayed name; for an element of a sweep with its values: `train lr=1e-3 seed=4`."""
        if not self.spec.sweep or self.runs or self.array is None:
            return self.spec.name
        from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

        return sweeps.shown_name(self.spec.name, self.spec.sweep, self.array.index)

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended and will not be retried, as far as is known."""
        return self.state.is_terminal and not self.requeue_requested

    @property
    def end(self) -> datetime:
        """Time of its end; of one cancelled before its start, which has no end time, that of its submission."""
        return self.ended_at or self.submitted_at

    @property
    def count(self) -> int:
        return arrays.count(self.runs) if self.runs else 1

    @property
    def ids(self) -> Iterator[JobId]:
        return arrays.ids(self.runs) if self.runs else iter((self.id,))

    @property
    def last_id(self) -> JobId:
        return self.runs[-1].end - 1 if self.runs else self.id

    @property
    def indices(self) -> Iterator[int]:
        """Array indices of the jobs it represents, in the order of their ids; empty unless it is an array."""
        if self.runs:
            return arrays.indices(self.runs)
        return iter((self.array.index,) if self.array else ())

    def has(self, job_id: JobId) -> bool:
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
        if self.array is None or not runs:
            raise ValueError(f"{self.shown_id} cannot be {len(runs)} runs of elements")
        array = ArrayRef(self.array.id, runs[0].index, self.array.limit)
        is_one = len(runs) == 1 and runs[0].count == 1
        return self.evolve(id=runs[0].id, array=array, runs=() if is_one else runs)

    def divided(self, ids: Iterable[JobId] | Spans) -> tuple[Job | None, Job | None]:
        """Return its jobs with these ids, and the others; None where there are none."""
        if not self.runs:
            return (self, None) if self.id in arrays.spans_of(ids) else (None, self)
        chosen, left = arrays.divided(self.runs, ids)
        return self.with_runs(chosen) if chosen else None, self.with_runs(left) if left else None

    def without(self, ids: Iterable[JobId] | Spans) -> Job | None:
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
        return self.attempts[-1] if self.attempts else None

    @property
    def next_attempt(self) -> int:
        """Number of the next attempt; a repaired queue may lack earlier attempts."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def is_suspended(self) -> bool:
        attempt = self.attempt
        return self.state.is_active and attempt is not None and attempt.suspended_at is not None

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the GPUs it holds now; empty unless an attempt is active."""
        if not self.attempts or self.attempts[-1].is_over or not self.state.is_active:
            return ()
        return self.attempts[-1].gpus

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
        use = self.attempt.efficiency if self.attempt and self.state is not JobState.FAILED else None
        return " · ".join(words for words in (self.end_words, use.short if use else "") if words)

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
        last = replace(self.attempts[-1], **changes)
        return replace(self, attempts=(*self.attempts[:-1], last))


class Placement(Struct, frozen=True):
    """Decision to start this job on these GPUs, not carried out yet."""

    job_id: JobId
    gpus: tuple[str, ...] = ()
    gpu_share: float = 1.0
    """Share of each GPU that it is charged for."""


def submission_of(jobs: Iterable[Job]) -> Submission:
    """Return the submission of a job, or of elements of one array, with its priority and hold of now."""
    found = tuple(jobs)
    first = found[0]
    spec = replace(first.spec, priority=first.priority, warrant="")
    indices = tuple(sorted(index for job in found for index in job.indices))
    return Submission(spec, first.held, indices, first.array.limit if first.array else None)


def grouped(jobs: Iterable[Job]) -> Iterator[tuple[Job, ...]]:
    """Yield the jobs, elements of one array together if they would be submitted alike."""
    groups: dict[object, list[Job]] = {}
    for job in jobs:
        alike = (job.array.id, job.spec, job.priority, job.held) if job.array else job.id
        groups.setdefault(alike, []).append(job)
    yield from map(tuple, groups.values())


def spec_at(spec: JobSpec, index: int) -> JobSpec:
    """Return the spec of an element, with its values in command, environment and name.

    Raises IndexError for an index that the sweep does not have.
    """
    if not spec.sweep:
        return spec
    from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

    found = sweeps.values_at(spec.sweep, index)
    values = {**found, sweeps.INDEX: str(index)}
    env = [(name, sweeps.filled(value, values)) for name, value in spec.options.env]
    return replace(
        spec,
        command=tuple(sweeps.filled(word, values) for word in spec.command),
        name=sweeps.shown_name(spec.name, spec.sweep, index),
        options=replace(spec.options, env=(*env, *sweeps.variables(found))),
        sweep=(),
    )


def sweep_values(job: Job) -> Mapping[str, str]:
    """Return the values of an element of a sweep by name; empty for other jobs and for an index that it lacks."""
    if not job.spec.sweep or job.runs or job.array is None:
        return {}
    from gputui.domain import sweep as sweeps  # few jobs belong to a sweep

    if job.array.index >= sweeps.size(job.spec.sweep):
        return {}
    return sweeps.values_at(job.spec.sweep, job.array.index)


def element_spec(job: Job) -> JobSpec:
    """Return the spec of a job; for an element of a sweep, with its values."""
    return spec_at(job.spec, job.array.index) if job.array and sweep_values(job) else job.spec


def check_running(job: Job) -> None:
    """Raise GputuiError for a job that cannot be entered now."""
    if job.state is not JobState.RUNNING:
        raise not_running(job)


def not_running(job: Job) -> GputuiError:
    what = f"job {job.shown_id} is {job.state}: a shell and its processes are only available while it is RUNNING"
    return GputuiError(what)


def attempt_with_output(job: Job, number: int | None = None) -> Attempt:
    """Return the attempt of that number, or the latest one; raises NotFoundError."""
    if not job.attempts:
        raise NotFoundError(f"job {job.shown_id} has not started yet, so it has no output")
    if number is None:
        return job.attempts[-1]
    for attempt in job.attempts:
        if attempt.number == number:
            return attempt
    raise NotFoundError(f"job {job.shown_id} has no attempt {number}: it had {len(job.attempts)}")
