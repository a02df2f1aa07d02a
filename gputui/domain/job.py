"""A job: what was asked for, what became of it, and each try at running it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain import runs as arrays
from gputui.domain.cause import Cause, with_error
from gputui.domain.container_options import ContainerOptions, Pairs, PublishedPort
from gputui.domain.efficiency import Efficiency
from gputui.domain.runs import Run, Spans
from gputui.domain.state import JobState, check_transition
from gputui.domain.telemetry import AttemptTelemetry

JobId: TypeAlias = int

NORMAL_PRIORITY = 50
MAX_PRIORITY = 100
CLASSES = ("low", "normal", "high")
DEFAULT_BACKOFF = timedelta(seconds=5)
MAX_INDICES = 24
"""Characters of an array's indices that are shown."""


def whole_class(priority: int) -> int:
    """0, 1 or 2: low, normal or high, whichever the priority is nearest to: low to 25, high from 75."""
    return min(2, max(0, round(priority / NORMAL_PRIORITY)))


class GpuRequest(Struct, frozen=True):
    """Request for a number of GPUs, or for particular ones. `minimum` 0 means none."""

    minimum: int = 0
    maximum: int = 0
    devices: tuple[str, ...] = ()
    """UUIDs or indices named by the user; empty when any will do."""
    everything: bool = False
    """True if all GPUs of the node are meant, however many there are."""
    memory: int | None = None
    """Bytes each GPU must have in total."""
    model: str | None = None
    """Part of the model's name, compared without case."""
    free_memory: int | None = None
    """Bytes each GPU must have free when it is given out."""
    share: bool = False
    """Others that ask so may share its GPUs: `memory` is what it is promised of each then."""
    capabilities: tuple[str, ...] = ()
    """NVIDIA driver capabilities named after `--gpus`; empty: the image or NVIDIA_DRIVER_CAPABILITIES decides."""
    driver: str | None = None
    driver_options: Pairs = ()
    """The fields `driver=` and `options=` of `--gpus`, handed to the engine as they are."""

    @property
    def promised(self) -> int:
        """Bytes of each GPU that it shares with others; 0: it wants its GPUs to itself."""
        return (self.memory or 0) if self.share else 0


class LimitWarning(Struct, frozen=True):
    """A signal sent to a job some time before its time limit ends it."""

    number: int
    before: timedelta


class Interactive(Struct, frozen=True):
    """Streams of a job that somebody attaches to."""

    stdin: bool = False
    """True if its standard input stays open for whoever attaches."""
    tty: bool = False
    """True if it has a terminal."""


class JobSpec(Struct, frozen=True):
    """Job as its user specified it. Changed afterwards only by `gpu_memory_step`, and by edits while it waits."""

    image: str | None = None
    """Image of the container; None for a host process."""
    command: tuple[str, ...] = ()
    name: str = ""
    tenant: str = ""
    gpus: GpuRequest = GpuRequest()
    priority: int = NORMAL_PRIORITY
    """0 to 100, higher first."""
    nice: int = 0
    time_limit: timedelta | None = None
    retries: int = 0
    backoff: timedelta = DEFAULT_BACKOFF
    """Pause before the first retry; doubled each time."""
    retry_on: tuple[str, ...] = ()
    """Exit codes and words of `policy.retry.RETRY_WORDS`; empty: every failure of the job's own."""
    gpu_memory_step: int | None = None
    """Bytes by which `gpus.memory` grows after each attempt that ran out of GPU memory."""
    warning: LimitWarning | None = None
    """Signal before the time limit; None: the limit comes unannounced."""
    after: tuple[JobId, ...] = ()
    """Start when all of these COMPLETED (Slurm's afterok)."""
    after_any: tuple[JobId, ...] = ()
    """Start when all of these ended, however."""
    begin_at: datetime | None = None
    preemptible: bool = False
    interactive: Interactive | None = None
    """Streams to attach to; None: nobody attaches, and standard input is empty."""
    idle_timeout: timedelta | None = None
    """End it after so long without input, output or use of its GPUs."""
    options: ContainerOptions = ContainerOptions()
    comment: str = ""
    """Note for people; nothing goes by it."""
    warrant: str = ""
    """`UID/NAME` of the file in which the submitter left image, command and options, in a shared state directory."""

    sweep: Pairs = ()
    """Names and values of a parameter sweep, as written: an array whose indices stand for their combinations."""

    def runs_as_much_as(self, other: JobSpec) -> bool:
        """Return whether both run the same: what a warrant is about."""
        return self.what_runs == other.what_runs

    @property
    def what_runs(self) -> JobSpec:
        """The fields that decide what is run."""
        return JobSpec(image=self.image, command=self.command, options=self.options, sweep=self.sweep)

    @property
    def is_host(self) -> bool:
        """Return whether the job runs as a process on the host, without a container."""
        return self.image is None


class BootTime(Struct, frozen=True):
    """A point on the clock that nobody sets: how long the machine has been awake since it was started."""

    boot: str
    """Identifier of the machine's boot."""
    seconds: float


class Attempt(Struct, frozen=True):
    """Attempt to run a job."""

    number: int
    """Number from 1. A start that was interrupted before a container ran gives its number back."""
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
    """Cause of its end; None if it ended well or still runs."""
    log_path: str | None = None
    """Path of its saved output once it has ended, relative to the state directory."""
    charged: bool = True
    """True if the attempt counts against the job's retries."""
    notes: tuple[str, ...] = ()
    """Adjustments that the runtime reported: cpus clamped to the host's, ..."""
    ports: tuple[PublishedPort, ...] = ()
    """Ports published, as the engine chose them at the start."""
    warned_at: datetime | None = None
    """Time at which the warning signal before its time limit was sent."""
    gpu_share: float = 1.0
    """Share of each GPU that its tenant is charged for: less than 1 where others may share it."""
    preempted_by: JobId | None = None
    preempted_at: datetime | None = None
    """Job that preempted it and the time of the request; it may have ended by itself before its grace was over."""
    clock_moved: timedelta = timedelta()
    """Amount by which the clock was set while it ran: applied to its times above, not to those of the runtime."""
    began: BootTime | None = None
    """`started_at` by the clock that nobody sets."""
    suspended_at: datetime | None = None
    """Time since which its processes stand still; None: they run."""
    suspensions: tuple[tuple[datetime, datetime], ...] = ()
    """Begins and ends of the times for which its processes stood still and then went on."""
    efficiency: Efficiency | None = None
    """Use of its GPUs; None while it runs, without GPUs, and where nothing could be read."""
    telemetry: AttemptTelemetry | None = None
    """Measurements of it; None while it runs, where nothing could be read, and in jobs of an older gputui."""
    error: str = ""
    """Line of its output that says why it failed; empty if none was found."""

    @property
    def is_over(self) -> bool:
        """Return whether the attempt has ended."""
        return self.ended_at is not None

    @property
    def end_words(self) -> str:
        """Return why it ended, by the line of its output where that says more; empty if it ended well or still runs."""
        return with_error(self.cause, self.error) if self.is_over else ""


class ArrayRef(Struct, frozen=True):
    """A job's place in an array."""

    id: JobId
    """Id of the array: that of its first element. Before ids are given out: minus one minus the place of the
    first element among the jobs submitted together, which the store turns into the id."""
    index: int
    limit: int | None = None
    """Maximum number of elements that run at a time; None: no limit."""


class Stopping(Struct, frozen=True):
    """An attempt on its way out: told to end, and killed when its grace is over."""

    cause: Cause
    at: datetime
    killed_at: datetime | None = None


class Placed(Struct, frozen=True):
    """A place beside another job: that job's rank at the time, and a tie.

    Both age alike, so the job stays beside the other whatever the clock says.
    """

    past: int
    """Id of the job beside which it was put."""
    beside: int
    """Id of the job whose rank it is: the same, unless that one stood beside a third."""
    tie: float
    """Below 0 it stands before that job, above 0 behind it; of several the least is first."""
    since: float
    """Second since the epoch from which on that job was eligible."""
    tenant: str
    """Tenant of that job, whose use of the GPUs counts."""
    time_limit: timedelta | None
    """Limit of that job; None: it has none."""
    priority: int
    nice: int
    topped_at: datetime | None
    gpus: int = 1
    """GPUs that job asks for, of a range the fewest."""


class Placing(Struct, frozen=True):
    """A place for a job, or for elements of an array that wait together."""

    ids: tuple[int, ...]
    placed: Placed


class Waited(Struct, frozen=True):
    """Time for which a job waited while it could run, and the priority that it had then."""

    priority: int
    time: timedelta


class Job(Struct, frozen=True, weakref=True):
    """State of a JobSpec in the queue and its attempts so far. Changed only by making the next Job.

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
    """Put at the head of the queue by hand; the latest goes first."""
    placed: Placed | None = None
    """Put beside another by hand; a later change of priority ends it."""
    held: bool = False
    hold_reason: str | None = None
    """Reason why the scheduler held the job; None when a user did."""
    cancel_requested: bool = False
    requeue_requested: bool = False
    not_before: datetime | None = None
    """End of a back-off."""
    started_at: datetime | None = None
    """Start of the latest attempt."""
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Cause of the last attempt's end; None if it ended well."""
    attempts: tuple[Attempt, ...] = ()
    stopping: Stopping | None = None
    array: ArrayRef | None = None
    avoid_gpus: tuple[str, ...] = ()
    """UUIDs of GPUs that failed it."""
    submitted_by: str = ""
    """User name of who submitted it."""
    released_at: datetime | None = None
    """Time of the latest release by a user: earlier failures no longer keep its image or tenant waiting."""
    recurring: JobId | None = None
    """Id of the recurring job that submitted it."""
    announced_end_at: datetime | None = None
    """The `ended_at` that hooks have been told of."""
    waited: tuple[Waited, ...] = ()
    """Eligible waits that ended by a hold, an attempt or a change of priority: `policy.eligible` adds them up."""
    waiting_since: datetime | None = None
    """Begin of the wait after those; None: the submission."""
    suspended: bool = False
    """A user wants its processes to stand still."""
    signals: tuple[int, ...] = ()
    """Signals that users requested and the scheduler has yet to send."""
    limit_changed_at: datetime | None = None
    """Time at which its time limit was last changed while it ran."""
    cancelled_by: str = ""
    """User who cancelled it; empty: nobody, or not recorded."""
    held_by: str = ""
    """User who held it; empty: the scheduler, or not recorded."""
    held_at: datetime | None = None
    ranked_by: str = ""
    """User who last changed its priority or its place in the queue; empty: nobody, or not recorded."""
    suspended_by: str = ""
    """User who wants its processes to stand still."""
    runs: tuple[Run, ...] = ()
    """Elements of an entry, in the order of their ids; empty: it is one job. `array` has the index of the first."""

    def to(self, state: JobState, **changes: Any) -> Job:
        """The next Job, in `state`; raises TransitionError when the table forbids it."""
        check_transition(self.state, state)
        return replace(self, state=state, **changes)

    def evolve(self, **changes: Any) -> Job:
        """Return the next Job, in the same state."""
        return replace(self, **changes)

    def unheld(self, **changes: Any) -> Job:
        """Return the job, not held, with other changes."""
        return self.evolve(held=False, hold_reason=None, held_by="", held_at=None, **changes)

    def prioritised(self, value: int, *, relative: bool = False) -> Job:
        """Return the job with that priority or so much more, within 0 to 100; its place by hand is over."""
        wanted = self.priority + value if relative else value
        return self.evolve(priority=min(MAX_PRIORITY, max(0, wanted)), topped_at=None, placed=None)

    def topped(self, at: datetime) -> Job:
        """Return the job, put at the head of the queue."""
        return self.evolve(topped_at=at, placed=None)

    def put(self, placed: Placed) -> Job:
        """Return the job, put beside another."""
        return self.evolve(priority=placed.priority, topped_at=placed.topped_at, placed=placed)

    @property
    def name(self) -> str:
        """The name as shown; that of an element of a sweep has its values: `train lr=1e-3 seed=4`."""
        if not self.spec.sweep or self.runs or self.array is None:
            return self.spec.name
        from gputui.domain import sweep as sweeps  # few jobs are of a sweep

        return sweeps.shown_name(self.spec.name, self.spec.sweep, self.array.index)

    @property
    def count(self) -> int:
        """Number of jobs it stands for: the elements of an entry, else 1."""
        return arrays.count(self.runs) if self.runs else 1

    @property
    def ids(self) -> Iterator[JobId]:
        """The ids of the jobs it stands for, in order."""
        return arrays.ids(self.runs) if self.runs else iter((self.id,))

    @property
    def last_id(self) -> JobId:
        """The id of the last job it stands for."""
        return self.runs[-1].end - 1 if self.runs else self.id

    @property
    def indices(self) -> Iterator[int]:
        """The indices in the array of the jobs it stands for, in the order of their ids; none where it is no array."""
        if self.runs:
            return arrays.indices(self.runs)
        return iter((self.array.index,) if self.array else ())

    def has(self, job_id: JobId) -> bool:
        """Return whether it is that job, or an entry that contains it."""
        return arrays.find(self.runs, job_id) is not None if self.runs else job_id == self.id

    def element(self, job_id: JobId) -> Job:
        """Return the job of that id alone; raises KeyError where it does not stand for it."""
        if not self.runs and job_id == self.id:
            return self
        run = arrays.find(self.runs, job_id)
        if run is None:
            raise KeyError(job_id)
        return self.with_runs((run.part(job_id, job_id + 1),))

    def with_runs(self, runs: tuple[Run, ...]) -> Job:
        """Return the entry of these elements of the same array; the job itself where it is one alone."""
        if self.array is None or not runs:
            raise ValueError(f"{self.shown_id} cannot be {len(runs)} runs of elements")
        array = ArrayRef(self.array.id, runs[0].index, self.array.limit)
        is_one = len(runs) == 1 and runs[0].count == 1
        return self.evolve(id=runs[0].id, array=array, runs=() if is_one else runs)

    def divided(self, ids: Iterable[JobId] | Spans) -> tuple[Job | None, Job | None]:
        """Return the jobs of it with these ids, and the others; None where there are none."""
        if not self.runs:
            return (self, None) if self.id in arrays.spans_of(ids) else (None, self)
        taken, left = arrays.divided(self.runs, ids)
        return self.with_runs(taken) if taken else None, self.with_runs(left) if left else None

    def without(self, ids: Iterable[JobId] | Spans) -> Job | None:
        """Return the jobs of it that have none of these ids; None where there are none."""
        return self.divided(ids)[1]

    @property
    def shown_id(self) -> str:
        """Return `7`, `5_19` for element 19 of array 5, `5_[0-9%2]` for an entry: as lists show it."""
        if self.array is None:
            return str(self.id)
        if not self.runs:
            return f"{self.array.id}_{self.array.index}"
        limit = f"%{self.array.limit}" if self.array.limit else ""
        return f"{self.array.id}_[{arrays.words(self.runs, MAX_INDICES)}{limit}]"

    @property
    def attempt(self) -> Attempt | None:
        """The attempt under way, or else the last one."""
        return self.attempts[-1] if self.attempts else None

    @property
    def next_attempt(self) -> int:
        """Number of the attempt after the last; a repaired queue may lack some before it."""
        return self.attempts[-1].number + 1 if self.attempts else 1

    @property
    def is_suspended(self) -> bool:
        """Return whether the attempt under way was suspended, and not woken yet."""
        attempt = self.attempt
        return self.state.is_active and attempt is not None and attempt.suspended_at is not None

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs it holds now: none unless an attempt is under way."""
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
        """Time at which the current attempt is, or was, warned of its time limit."""
        warning, limit_at = self.spec.warning, self.limit_at
        return limit_at - warning.before if warning and limit_at else None

    @property
    def end_info(self) -> str:
        """Return why its last attempt ended, and unless it failed how it used its GPUs."""
        told = self.attempt.efficiency if self.attempt and self.state is not JobState.FAILED else None
        return " · ".join(words for words in (self.end_words, told.short if told else "") if words)

    @property
    def end_words(self) -> str:
        """Return why its last attempt ended, or why it never started; empty if it ended well."""
        attempt = self.attempt
        return with_error(self.cause, attempt.error if attempt and attempt.is_over else "")

    @property
    def charged_attempts(self) -> int:
        """Attempts that count against its retries."""
        return sum(attempt.charged for attempt in self.attempts if attempt.is_over)

    def with_attempt(self, **changes: Any) -> Job:
        """The next Job, whose last attempt has `changes`."""
        last = replace(self.attempts[-1], **changes)
        return replace(self, attempts=(*self.attempts[:-1], last))


class Submission(Struct, frozen=True):
    """Request to submit: a spec, and how it enters the queue."""

    spec: JobSpec
    held: bool = False
    array: tuple[int, ...] = ()
    """Indices of its elements; empty: one job."""
    array_limit: int | None = None


class Placement(Struct, frozen=True):
    """Decided, not yet acted on: start this job on these GPUs."""

    job_id: JobId
    gpus: tuple[str, ...] = ()
    gpu_share: float = 1.0
    """Share of each GPU that it is charged for."""
