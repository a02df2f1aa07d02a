"""Cluster in memory with the whole port: starts jobs on free GPUs whenever it is asked or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from queue import SimpleQueue
from threading import Event, RLock

from msgspec.structs import replace

from gputui.domain.action import (
    Cancel,
    DrainGpus,
    EditJobs,
    Hold,
    JobAction,
    Release,
    Requeue,
    ResumeGpus,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unsuspend,
)
from gputui.domain.cluster import Capability, Caps, ClusterFault, element_id
from gputui.domain.container import ExecRequest, ProcessRow
from gputui.domain.errors import (
    CapabilityError,
    Cause,
    CauseCode,
    ClusterRefusedError,
    ClusterUnavailableError,
    NotFoundError,
    cause_of_exit,
)
from gputui.domain.gpu import NO_PROBE, Drain, Gpu, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.job import ArrayRef, Attempt, Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.runs import Run
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.ports import Channel, Clock
from gputui.ports.backend import Attach, Entry
from gputui.ports.cluster import EngineAction
from tests.cluster.talk import local_command

THREE_NODES = {"gpu1": 2, "gpu2": 2, "gpu3": 2}


def gpu_name(node: str, index: int) -> str:
    """Return the UUID that stands for a GPU without readings."""
    return f"{node}:{index}"


class FakeLog:
    """Output of a job in memory; with `follow` until the job has ended."""

    is_stamped = False

    def __init__(self, lines: Iterable[bytes], more: SimpleQueue[bytes | None] | None) -> None:
        self._lines = tuple(lines)
        self._more = more

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        while self._more is not None and (line := self._more.get()) is not None:
            yield line

    def close(self) -> None:
        if self._more is not None:
            self._more.put(None)


class FakeCluster:
    """A cluster with nodes of so many GPUs each.

    Jobs write the lines of `output`, and run until the test ends them by `end`. `answers`
    False makes every call fail as an engine that is away does.
    """

    def __init__(
        self,
        clock: Clock,
        nodes: Mapping[str, int] = THREE_NODES,
        *,
        lacking: Mapping[Capability, str] | None = None,
        caps: Caps | None = None,
        user: str = "alice",
        is_operator: bool = True,
        name: str = "lab",
        model: str = "NVIDIA H200",
        output: tuple[bytes, ...] = (),
        first: JobId = 1,
    ) -> None:
        options = {"idle_timeout": "Fake does not watch for idle jobs", "preemptible": "Fake decides"}
        self.answers = True
        self.snapshots = 0
        self.followed = Event()
        """Set once the output of a running job is followed."""
        self.attached = Event()
        """Set once a command is attached to a job."""
        self.asked_twice = Event()
        """Set once two snapshots were taken since the last job was submitted."""
        self.closed = False
        self.refuses_cancel = ""
        """Words with which it refuses to cancel jobs."""
        self.default_limit = ""
        """Time limit of jobs that ask for none, as `note` tells it."""
        self.found: tuple[ClusterFault, ...] = ()
        """Faults that `faults` returns."""
        self._clock = clock
        self._user = user
        self._first_lines = output
        self.is_operator = is_operator
        self._name = name
        self._caps = caps or Caps("Fake", dict(lacking or {}), options)
        self._gpus = {node: [Gpu(gpu_name(node, i), i, model) for i in range(count)] for node, count in nodes.items()}
        self._drains: dict[str, Drain] = {}
        self._lost: dict[str, str] = {}
        self._jobs: dict[JobId, Job] = {}
        self._records: dict[JobId, Job] = {}
        self._keys: dict[str, tuple[JobId, ...]] = {}
        self._output: dict[JobId, list[bytes]] = {}
        self._followers: dict[JobId, list[SimpleQueue[bytes | None]]] = {}
        self._signals: dict[JobId, list[int]] = {}
        self._next = first
        self._lock = RLock()

    # What tests do to it

    def end(self, job_id: JobId, exit_code: int = 0) -> None:
        """End a running job with this exit code."""
        with self._lock:
            job, now = self._running(job_id), self._clock.now()
            state = JobState.FAILED if exit_code else JobState.COMPLETED
            self._finish(job, state, cause_of_exit(exit_code), exit_code, now)
            self._schedule()

    def write(self, job_id: JobId, *lines: str) -> None:
        """Add lines to the output of a running job."""
        with self._lock:
            for line in lines:
                self._output.setdefault(job_id, []).append(line.encode())
                for follower in self._followers.get(job_id, ()):
                    follower.put(line.encode())

    def signals(self, job_id: JobId) -> list[int]:
        """Return the signals that a job was sent."""
        return self._signals.get(job_id, [])

    def forget(self, job_id: JobId) -> None:
        """Forget a job that has ended, as engines do after minutes; its record stays."""
        with self._lock:
            self._records[job_id] = self._jobs.pop(job_id)

    def submit_as(self, user: str, submission: Submission) -> tuple[JobId, ...]:
        """Submit as another user."""
        with self._lock:
            ids = tuple(self._add(submission, user))
            self._schedule()
            return ids

    def lose_node(self, node: str) -> None:
        """Lose a node with its jobs."""
        with self._lock:
            cause = Cause(CauseCode.CONTAINER_LOST, f"node {node} does not answer")
            for job in [job for job in self._jobs.values() if job.attempt and job.attempt.node == node]:
                if job.state.is_active:
                    self._finish(job, JobState.FAILED, cause, None, self._clock.now())
            self._drains[node] = Drain("Not responding", "slurm", self._clock.now())
            self._lost[node] = f"node {node} is down: Not responding"
            self._schedule()

    # The port

    @property
    def name(self) -> str:
        return self._name

    @property
    def user(self) -> str:
        return self._user

    @property
    def caps(self) -> Caps:
        return self._caps

    def snapshot(self) -> Snapshot:
        with self._asked():
            self.snapshots += 1
            if self.snapshots > 1:
                self.asked_twice.set()
            now, waiting = self._clock.now(), self._waiting()
            jobs = tuple(_joined(self._jobs.values()))
            reasons = self._reasons(waiting)
            return Snapshot(
                taken_at=now,
                nodes=tuple(self._node(name) for name in self._gpus),
                jobs=jobs,
                leader=Leader(0, "head", "slurm", "slurm", now),
                order=tuple(job.id for job in waiting if any(job.id == entry.id for entry in jobs)),
                reasons={job.id: reasons[job.id] for job in jobs if job.id in reasons},
                expected_starts={job.id: now + timedelta(hours=1) for job in waiting[:1]},
            )

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        with self._asked():
            if key not in self._keys:
                for submission in submissions:
                    self._check(submission)
                self._keys[key] = tuple(one for each in submissions for one in self._add(each, self._user))
                self._schedule()
                self.snapshots = 0
                self.asked_twice.clear()
            return self._keys[key]

    def draft(self, submission: Submission) -> str:
        del submission
        return ""

    def note(self, submission: Submission) -> str:
        limit = submission.spec.time_limit
        return (
            "" if limit or not self.default_limit else f"time limit {self.default_limit}, the default of partition gpu"
        )

    def expected_start(self, submission: Submission) -> datetime | None:
        with self._asked():
            self._check(submission)
            wanted = submission.spec.gpus.minimum
            is_free = any(len(self._free(node)) >= wanted for node in self._gpus)
            return self._clock.now() + (timedelta() if is_free else timedelta(hours=1))

    def act(self, action: EngineAction) -> tuple[JobId, ...]:
        if isinstance(action, DrainGpus | ResumeGpus):
            self._drain(action)
            return ()
        if isinstance(action, Cancel) and self.refuses_cancel:
            raise ClusterRefusedError(self.refuses_cancel)
        if isinstance(action, SetPriority):
            for needed, raises in ((Capability.RAISE_PRIORITY, True), (Capability.LOWER_PRIORITY, False)):
                if any((action.value > self.job(job_id).priority) is raises for job_id in action.ids):
                    self._need(needed)
        capability, may = _CHANGES[type(action)]
        done: list[JobId] = []
        with self._asked():
            self._need(capability)
            for job_id in action.ids:
                if job_id not in self._jobs:
                    raise NotFoundError(f"there is no job {job_id}")
                job = self._jobs[job_id]
                if job.submitted_by != self._user and not self.is_operator:
                    raise ClusterRefusedError("Access/permission denied", where=f"job {job.shown_id}")
                if may(job):
                    self._jobs[job_id] = self._changed(job, action)
                    done.append(job_id)
            self._schedule()
        return tuple(done)

    def _changed(self, job: Job, action: JobAction) -> Job:
        match action:
            case Cancel():
                return self._cancelled(job)
            case Requeue():
                return job.evolve(state=JobState.PENDING, started_at=None, ended_at=None, exit_code=None, cause=None)
            case Signal():
                self._signals.setdefault(job.id, []).append(action.number)
                return job
            case EditJobs():
                return job.evolve(spec=replace(job.spec, time_limit=action.edit.spec["time_limit"]))
            case SetPriority():
                return job.prioritised(action.value)
            case Top():
                return job.evolve(topped_at=self._clock.now(), placed=None)
            case Release():
                return job.unheld()
            case Hold():
                return job.evolve(held=True, held_by=self._user, held_at=self._clock.now())
        return job.evolve(suspended=isinstance(action, Suspend))

    def _drain(self, action: DrainGpus | ResumeGpus) -> None:
        with self._asked():
            self._need(Capability.DRAIN_NODE)
            for node in self._known_nodes(action.uuids):
                if isinstance(action, DrainGpus):
                    self._drains[node] = Drain(action.reason, self._user, self._clock.now())
                else:
                    self._drains.pop(node, None)
                    self._lost.pop(node, None)
            if isinstance(action, ResumeGpus):
                self._schedule()

    def job(self, job_id: JobId) -> Job:
        with self._asked():
            found = self._jobs.get(job_id) or self._records.get(job_id)
            found = found or next((job for job in self._all() if job.array and job.array.id == job_id), None)
            if found is None:
                raise NotFoundError(f"there is no job {job_id}")
            return found

    def last_known(self, job_id: JobId) -> Job | None:
        return self._jobs.get(job_id) or self._records.get(job_id)

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        with self._asked():
            ended = [job for job in self._all() if job.state.is_terminal and job.ended_at is not None]
            return iter([job for job in ended if since is None or (job.ended_at and job.ended_at >= since)])

    def log(self, job: Job, *, tail: int | None, follow: bool) -> FakeLog:
        with self._asked():
            lines = self._output.get(job.id, [])
            lines = lines if tail is None else lines[max(0, len(lines) - tail) :]
            if not follow or not self.job(job.id).state.is_active:
                return FakeLog(lines, None)
            more: SimpleQueue[bytes | None] = SimpleQueue()
            self._followers.setdefault(job.id, []).append(more)
            self.followed.set()
            return FakeLog(lines, more)

    def place(self, job: Job) -> str:
        with self._asked():
            self._need(Capability.INSIDE)
            if job.submitted_by != self._user:
                raise ClusterRefusedError(f"job {job.shown_id} is a job of {job.submitted_by}")
            return f"container fake-{job.id} on {job.attempt.node if job.attempt else '?'}"

    def enter(self, job: Job, request: Entry) -> Channel:
        if isinstance(request, Attach):
            self._need(Capability.STREAMS)
        self.place(job)
        if not isinstance(request, Attach):
            return local_command(request)
        streams = job.spec.interactive
        if streams is None:
            raise ClusterRefusedError("it has neither a terminal nor input", where=f"job {job.shown_id}")
        self.attached.set()
        keys = request.detach_keys
        return local_command(ExecRequest(job.spec.command, streams.stdin, streams.tty, detach_keys=keys))

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        self.place(job)
        return (ProcessRow(4711, job.submitted_by, " ".join(job.spec.command) or "true"),)

    def faults(self) -> tuple[ClusterFault, ...]:
        with self._asked():
            return self.found

    def close(self) -> None:
        self.closed = True

    # The engine

    def _asked(self) -> RLock:
        """Return the lock; raise ClusterUnavailableError while the engine is away."""
        if not self.answers:
            raise ClusterUnavailableError("the cluster does not answer", where=self._name)
        return self._lock

    def _need(self, capability: Capability | None) -> None:
        if capability is not None and not self._caps.has(capability):
            raise CapabilityError(self._caps.why_not(capability))

    def _all(self) -> Iterator[Job]:
        yield from (*self._records.values(), *self._jobs.values())

    def _running(self, job_id: JobId) -> Job:
        job = self._jobs[job_id]
        assert job.state.is_active, f"job {job.shown_id} is {job.state}"
        return job

    def _check(self, submission: Submission) -> None:
        largest = max(map(len, self._gpus.values()), default=0)
        if submission.spec.gpus.minimum > largest:
            raise ClusterRefusedError("Requested node configuration is not available")

    def _add(self, submission: Submission, user: str) -> Iterator[JobId]:
        number, self._next = self._next, self._next + 1
        for index in submission.array or (None,):
            job_id = number if index is None else element_id(number, index)
            array = None if index is None else ArrayRef(number, index, submission.array_limit)
            spec = submission.spec
            self._jobs[job_id] = Job(
                job_id,
                spec,
                self._clock.now(),
                priority=spec.priority,
                held=submission.held,
                array=array,
                submitted_by=user,
            )
            yield job_id

    def _cancelled(self, job: Job) -> Job:
        cause = Cause(CauseCode.CANCELLED, f"cancelled by {self._user}")
        self._finish(job, JobState.CANCELLED, cause, None, self._clock.now())
        return self._jobs[job.id].evolve(cancelled_by=self._user)

    def _finish(self, job: Job, state: JobState, cause: Cause | None, exit_code: int | None, at: datetime) -> None:
        ended = job.evolve(state=state, cause=cause, exit_code=exit_code, ended_at=at)
        if job.attempts:
            ended = ended.with_attempt(ended_at=at, exit_code=exit_code, cause=cause)
        self._jobs[job.id] = ended
        for follower in self._followers.pop(job.id, ()):
            follower.put(None)

    def _known_nodes(self, nodes: Iterable[str]) -> tuple[str, ...]:
        chosen = tuple(nodes)
        for node in chosen:
            if node not in self._gpus:
                raise ClusterRefusedError("Invalid node name specified", where=node)
        if not self.is_operator:
            raise ClusterRefusedError("Invalid user id")
        return chosen

    def _waiting(self) -> list[Job]:
        """Return the waiting jobs in the order in which they start."""

        def rank(job: Job) -> tuple[float, int, JobId]:
            return (-job.topped_at.timestamp() if job.topped_at else 0.0, -job.priority, job.id)

        return sorted((job for job in self._jobs.values() if _is_waiting(job)), key=rank)

    def _schedule(self) -> None:
        """Start waiting jobs in order until one does not fit."""
        for job in self._waiting():
            if self._gate(job) is not None:
                continue
            node = next((name for name in self._gpus if len(self._free(name)) >= job.spec.gpus.minimum), None)
            if node is None:
                return
            gpus, now = tuple(self._free(node)[: job.spec.gpus.minimum]), self._clock.now()
            attempt = Attempt(job.next_attempt, gpus, container_id=f"gputui-{job.id}", started_at=now, node=node)
            self._output.setdefault(job.id, []).extend(self._first_lines)
            self._jobs[job.id] = job.evolve(
                state=JobState.RUNNING, started_at=now, attempts=(*job.attempts, attempt), topped_at=None
            )

    def _free(self, node: str) -> list[str]:
        """Return the free GPUs of a node, none if it takes no jobs."""
        if node in self._drains:
            return []
        taken = {gpu for job in self._jobs.values() for gpu in job.gpus}
        return [gpu.uuid for gpu in self._gpus[node] if gpu.uuid not in taken]

    def _gate(self, job: Job) -> Reason | None:
        """Return why the job waits whatever is free."""
        if job.held:
            return Reason(PendingReason.JOB_HELD_USER, f"held by {job.held_by or job.submitted_by}")
        if job.spec.begin_at and job.spec.begin_at > self._clock.now():
            return Reason(PendingReason.BEGIN_TIME, "waits for its begin time")
        if any(self.job(other).state is not JobState.COMPLETED for other in job.spec.after) or any(
            not self.job(other).state.is_terminal for other in job.spec.after_any
        ):
            return Reason(PendingReason.DEPENDENCY, "waits for other jobs")
        limit = job.array.limit if job.array else None
        siblings = (each for each in self._jobs.values() if each.array and job.array and each.array.id == job.array.id)
        if limit and sum(each.state.is_active for each in siblings) >= limit:
            return Reason(PendingReason.RESOURCES, f"{limit} elements of its array run")
        return None

    def _reasons(self, waiting: Iterable[Job]) -> dict[JobId, Reason]:
        found: dict[JobId, Reason] = {}
        is_first = True
        for job in waiting:
            gate = self._gate(job)
            if gate is None:
                code = PendingReason.RESOURCES if is_first else PendingReason.PRIORITY
                words = f"needs {job.spec.gpus.minimum} GPUs" if is_first else "jobs of higher priority wait"
                gate, is_first = Reason(code, words), False
            found[job.id] = gate
        return found

    def _node(self, name: str) -> Node:
        gpus = tuple(self._view(name, gpu) for gpu in self._gpus[name])
        return Node(name, gpus, NO_PROBE, down=self._lost.get(name, ""), drain=self._drains.get(name))

    def _view(self, node: str, gpu: Gpu) -> GpuView:
        holder = next((job for job in self._jobs.values() if gpu.uuid in job.gpus), None)
        drain = self._drains.get(node)
        state = GpuState.ALLOCATED if holder else GpuState.DRAINED if drain else GpuState.FREE
        return GpuView(
            gpu,
            GpuState.UNKNOWN if node in self._lost else state,
            Health(HealthCode.UNKNOWN, self._lost[node]) if node in self._lost else Health(),
            why=f"drained: {drain.reason}" if drain else "",
            job_id=holder.id if holder else None,
            job_ids=(holder.id,) if holder else (),
            holders=(Holder("job", holder.name, holder.submitted_by),) if holder else (),
            drain=drain,
        )


def _is_waiting(job: Job) -> bool:
    return job.state is JobState.PENDING


def _is_running(job: Job) -> bool:
    return job.state is JobState.RUNNING


_CHANGES: Mapping[type[JobAction], tuple[Capability | None, Callable[[Job], bool]]] = {
    Cancel: (None, lambda job: not job.state.is_terminal),
    Hold: (Capability.HOLD, _is_waiting),
    Release: (Capability.HOLD, lambda job: job.held),
    Requeue: (Capability.REQUEUE, lambda job: not _is_waiting(job)),
    SetPriority: (None, lambda job: not job.state.is_terminal),
    Top: (Capability.TOP, _is_waiting),
    EditJobs: (Capability.EXTEND, lambda job: not job.state.is_terminal),
    Signal: (Capability.SIGNAL, _is_running),
    Suspend: (Capability.SUSPEND, _is_running),
    Unsuspend: (Capability.SUSPEND, _is_running),
}
"""Capability that an action needs, and the test for the jobs that it changes."""


def _joined(jobs: Iterable[Job]) -> Iterator[Job]:
    """Yield the jobs by id, with waiting elements of one array that are alike as one entry."""
    groups: dict[object, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.id):
        is_alone = job.array is None or not _is_waiting(job)
        groups.setdefault(job.id if is_alone else (job.array and job.array.id, job.priority, job.held), []).append(job)
    for group in groups.values():
        yield group[0] if len(group) == 1 else _entry(group)


def _entry(group: Sequence[Job]) -> Job:
    runs: list[Run] = []
    for job in group:
        index = job.array.index if job.array else 0
        if runs and runs[-1].end == job.id:
            runs[-1] = runs[-1]._replace(count=runs[-1].count + 1)
        else:
            runs.append(Run(job.id, index, 1))
    return group[0].with_runs(tuple(runs))
