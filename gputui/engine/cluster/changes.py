"""Changes of jobs and nodes by a cluster: what each action needs, and how it is undone.

A change is undone by the opposite wish, while its jobs and nodes are as the action left them.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.action import (
    Action,
    AddRecurring,
    Cancel,
    DrainGpus,
    Edit,
    EditJobs,
    Hold,
    JobAction,
    Release,
    Requeue,
    ReserveGpus,
    ResumeGpus,
    SetPriority,
    Signal,
    Suspend,
    Top,
    Unreserve,
    Unsuspend,
)
from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError, ClusterError, ClusterUnavailableError, LostAnswerError, NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.job_spec import MAX_PRIORITY, JobId, Submission
from gputui.domain.state import JobState
from gputui.domain.submit_action import Done, Ids
from gputui.domain.text import format_duration, plural
from gputui.domain.verbs import VERBS

if TYPE_CHECKING:
    from gputui.domain.access import AuditEntry
    from gputui.domain.accounting import JobRecord
    from gputui.domain.arrays import Entries
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import Controls, Snapshot, Unreadable
    from gputui.engine.cluster.measurements import MeasuredJobs
    from gputui.ports import Cluster, StoreWatch


_SPLIT = {SetPriority, DrainGpus, ResumeGpus}
"""Actions that need one capability or another, by what they change."""
NEEDS: Mapping[type[Action], Capability] = {
    **{verb.wish: verb.capability for verb in VERBS if verb.capability and verb.wish not in _SPLIT},
    ReserveGpus: Capability.RESERVE,
    Unreserve: Capability.RESERVE,
    AddRecurring: Capability.RECURRING,
}
"""Capability that an action needs."""


def act(queue: EngineQueue, action: Action) -> Done:
    """Carry out an action on jobs or nodes that exist."""
    action = _checked(queue, action)
    match action:
        case EditJobs():
            return _edit(queue, action)
        case Hold() | Release():
            return _set(queue, action, "hold", isinstance(action, Hold))
        case SetPriority():
            return _set_priority(queue, action)
        case Cancel() | Requeue() | Suspend() | Unsuspend() | Top() | Signal():
            return Done(_call(queue, action))
        case DrainGpus() | ResumeGpus():
            return _drain(queue, action)
    raise _refusal(queue)


def foresee(queue: EngineQueue, action: Action) -> Done:
    """Return the jobs as `act` would leave them; raises the same errors, but for those of the engine."""
    action = _checked(queue, action)
    match action:
        case EditJobs():
            _check_edit(queue, action)
        case SetPriority():
            _check_priority(queue, action)
        case DrainGpus() | ResumeGpus():
            _check_nodes(queue, action.uuids)
            return Done()
    if not isinstance(action, JobAction):
        raise _refusal(queue)
    now, by = queue.read().taken_at, queue.cluster.user
    return Done(action.ids, jobs=tuple(action.apply(queue.get(job_id), now, by) for job_id in action.ids))


def _checked(queue: EngineQueue, action: Action) -> Action:
    """Return the action on jobs that exist; an array that was submitted elsewhere a moment ago is all its elements.

    Raises NotFoundError if one of them does not exist, CapabilityError if the engine has no such function.
    """
    if type(action) in NEEDS:
        queue.cluster.caps.need(NEEDS[type(action)])
    if not isinstance(action, JobAction):
        return action
    found: dict[JobId, None] = {}
    for job_id in action.ids:
        job = queue.get(job_id)
        is_whole = job.array is not None and job.array.id == job_id != job.id
        alike = queue.arrays().get(job_id, {}).values() if is_whole else ()
        found |= dict.fromkeys(alike or (job_id,))
    return action if tuple(found) == action.ids else replace(action, ids=tuple(found))


def _edit(queue: EngineQueue, action: EditJobs) -> Done:
    _check_edit(queue, action)
    ids, edit = action.ids, action.edit
    parts = [act(queue, Release(ids))] if edit.held is False else []  # Slurm fixes the priority of a held job
    if "time_limit" in edit.spec:
        limit = edit.spec["time_limit"]
        parts.append(_set(queue, EditJobs(ids, Edit({"time_limit": limit})), "time limit", limit))
    if "priority" in edit.spec:
        parts.append(act(queue, SetPriority(ids, edit.spec["priority"])))
    if edit.held:
        parts.append(act(queue, Hold(ids)))
    return _joined(parts)


def _check_edit(queue: EngineQueue, action: EditJobs) -> None:
    """Raise CapabilityError for fields that the engine does not change."""
    edit, caps = action.edit, queue.cluster.caps
    if edit.spec.keys() - {"time_limit", "priority"} or edit.gpus or edit.options:
        caps.need(Capability.EDIT)
        what = f"of a job of {caps.engine} only time limit, priority and hold can be changed"
        raise CapabilityError(what, hint="cancel it and submit it again")
    if "time_limit" in edit.spec:
        if edit.spec["time_limit"] is None:
            what = f"{caps.engine} plans with time limits: each job has one"
            raise CapabilityError(what, hint="give it a longer one")
        caps.need(Capability.EXTEND)


def _set_priority(queue: EngineQueue, action: SetPriority) -> Done:
    _check_priority(queue, action)
    by_value: dict[int, list[JobId]] = {}
    for job_id in action.ids:
        by_value.setdefault(_after(action, queue.get(job_id).priority), []).append(job_id)
    parts = (_set(queue, SetPriority(tuple(ids), value), "priority", value) for value, ids in by_value.items())
    return _joined(list(parts))


def _check_priority(queue: EngineQueue, action: SetPriority) -> None:
    for before in {queue.get(job_id).priority for job_id in action.ids}:
        after = _after(action, before)
        if after != before:
            queue.cluster.caps.need(Capability.RAISE_PRIORITY if after > before else Capability.LOWER_PRIORITY)
    action.check()


def _after(action: SetPriority, before: int) -> int:
    """Return a job's priority after the action."""
    return min(MAX_PRIORITY, max(0, before + action.value if action.relative else action.value))


def _drain(queue: EngineQueue, action: DrainGpus | ResumeGpus) -> Done:
    """Drain nodes, or resume them; raises CapabilityError for single GPUs."""
    nodes, drains = _check_nodes(queue, action.uuids), isinstance(action, DrainGpus)
    before = {node: _drain_of(queue, node) for node in nodes}
    queue.cluster.act(action)
    queue.refresh()
    changes = []
    for node, drain in before.items():
        if (drain is not None) != drains:
            back = ResumeGpus((node,)) if drain is None else DrainGpus((node,), drain.reason)
            words = "takes jobs again" if drain is None else f"is drained again: {drain.reason}".rstrip(": ")
            changes.append(EngineChange(f"node {node}", words, back, "drain", drains))
    return Done(changes=tuple(changes))


def _drain_of(queue: EngineQueue, name: str) -> Drain | None:
    """Return the drain of a node; None for one that takes jobs, or is gone."""
    return next((node.drain for node in queue.read().nodes if node.name == name), None)


def _check_nodes(queue: EngineQueue, names: Iterable[str]) -> tuple[str, ...]:
    """Return these names, which must be those of nodes."""
    chosen, snapshot = tuple(names), queue.read()
    queue.cluster.caps.need(Capability.DRAIN_NODE)
    nodes = {node.name for node in snapshot.nodes}
    gpus = {view.gpu.uuid for view in snapshot.gpus}
    for name in chosen:
        if name in gpus:
            queue.cluster.caps.need(Capability.DRAIN_GPU)
            raise _refusal(queue)
        if name not in nodes:
            raise NotFoundError(f"there is no node {name}", hint="gputui gpus lists them")
    return chosen


def _call(queue: EngineQueue, action: JobAction) -> tuple[JobId, ...]:
    """Have the cluster change jobs; what was read before is out of date then, also after an error."""
    try:
        return queue.cluster.act(action) if action.ids else ()
    finally:
        queue.refresh()


def _set(queue: EngineQueue, action: JobAction, name: str, after: object) -> Done:
    """Have the cluster set a value of jobs; those whose values were alike are one change."""
    before = {job_id: queue.get(job_id) for job_id in action.ids}
    done = _call(queue, action)
    if isinstance(action, Hold):  # some engines hold held jobs again; they check whose job it is
        held = {job_id for job_id, job in before.items() if job.held and job.hold_reason is None}
        done = tuple(job_id for job_id in done if job_id not in held)
    alike: dict[Any, list[JobId]] = {}
    for job_id in done:
        value = _VALUES[name](before[job_id]) if job_id in before else None
        if value not in (None, after):
            alike.setdefault(value, []).append(job_id)
    changes = []
    for value, ids in alike.items():
        words = f"job {before[ids[0]].shown_id}" if len(ids) == 1 else plural(len(ids), "job")
        changes.append(EngineChange(words, *_back(name, tuple(ids), value), name, after))
    return Done(done, tuple(changes))


def _back(name: str, ids: Ids, before: Any) -> tuple[str, JobAction]:
    """Return the sentence about jobs whose value is set back, and the action that does it."""
    is_one = len(ids) == 1
    if name == "hold":
        words = f"{'is' if is_one else 'are'} held again" if before else "may start again"
        return words, Hold(ids) if before else Release(ids)
    has = "has" if is_one else "have"
    if name == "priority":
        return f"{has} priority {before} again", SetPriority(ids, before)
    return f"{has} the time limit {format_duration(before)} again", EditJobs(ids, Edit({"time_limit": before}))


def _refusal(queue: EngineQueue) -> CapabilityError:
    return CapabilityError(f"gputui cannot do that with {queue.cluster.caps.engine}")


def _joined(parts: Sequence[Done]) -> Done:
    """Return the results of several actions on the same jobs as one."""
    ids = dict.fromkeys(job_id for part in parts for job_id in part.ids)
    return Done(tuple(ids), tuple(change for part in parts for change in part.changes))


_VALUES: Mapping[str, Callable[[Job], Any]] = {
    "hold": lambda job: job.held,
    "priority": lambda job: job.priority,
    "time limit": lambda job: job.spec.time_limit,
}
"""Values of a job that can be set back, by name."""


class EngineChange(Struct, frozen=True):
    """Change of one value of jobs that had the same value before, or of a node."""

    words: str
    """Name of what was changed."""
    done: str
    action: JobAction | DrainGpus | ResumeGpus
    """Opposite wish."""
    name: str
    """Name of the value: `hold`, `priority`, `time limit`, `drain`."""
    after: Any

    def subject(self, indices: Mapping[str, str]) -> str:
        del indices
        return self.words


def undone(queue: EngineQueue, changes: Iterable[EngineChange]) -> Iterator[tuple[EngineChange, str]]:
    """Undo changes, the latest first; yield each with the reason why it was not undone, empty if it was."""
    for change in reversed(list(changes)):
        queue.refresh()
        why = _obstacle(queue, change)
        if not why:
            try:
                queue.cluster.act(change.action)
            except ClusterError as error:
                why = f"stays as it is: {error}"
        yield change, why
    queue.refresh()


def _obstacle(queue: EngineQueue, change: EngineChange) -> str:
    """Return why a change is not undone; empty if its jobs or its node are as the action left them."""
    if isinstance(change.action, DrainGpus | ResumeGpus):
        values = [_drain_of(queue, node) is not None for node in change.action.uuids]
    else:
        try:
            jobs = [queue.get(job_id) for job_id in change.action.ids]
        except NotFoundError:
            return "no longer exists"
        if change.name == "hold" and (begun := [job for job in jobs if job.state is not JobState.PENDING]):
            return f"is {begun[0].state} now"
        values = [_VALUES[change.name](job) for job in jobs]
    return "has been changed since" if any(value != change.after for value in values) else ""


DIRECTORY = "submitting"
"""Directory of these files."""
_AGAIN = "submit the same again within an hour: the job is looked for first, and there is no second one"
_TOLD_WITHIN = 5.0
"""Seconds in which an answer is shown to the user."""
_LASTS = 3600.0
"""Seconds after which the same submission is a new one."""


class UnansweredSubmissions:
    """Such submissions of this process and of earlier ones; without the directory nothing is kept."""

    def __init__(self, directory: Path) -> None:
        self._parent = directory
        self._answered: list[tuple[Path, int]] = []

    @contextmanager
    def begun(self, submissions: Sequence[Submission]) -> Iterator[tuple[str, bool]]:
        """Yield the key to submit these with, and whether they are a repetition.

        They stay known until `told`, or some seconds after their answer: also after ClusterUnavailableError, or what
        is no Exception. KeyboardInterrupt gets words for the user.
        """
        self.told()
        if self._parent == Path() or not self._parent.is_dir():
            yield uuid4().hex, False
            return
        content, place = msgspec.json.encode(submissions), self._parent / DIRECTORY
        place.mkdir(mode=0o700, exist_ok=True)
        taken = _taken_over(place, content)
        path, descriptor = taken or _made(place / uuid4().hex, content)
        try:
            yield path.name, taken is not None
        except ClusterUnavailableError as error:
            os.close(descriptor)
            hint = _AGAIN if isinstance(error, LostAnswerError) else error.hint
            raise type(error)(error.what, where=error.where, hint=hint) from error
        except KeyboardInterrupt as stop:
            stop.args = (f"interrupted: whether a job was submitted is not known ({_AGAIN})",)
            raise
        except Exception:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        self._answered.append((path, descriptor))
        later = threading.Timer(_TOLD_WITHIN, self.told)
        later.daemon = True
        later.start()

    def told(self) -> None:
        """Forget those whose answers the user has got by now."""
        while self._answered:
            with suppress(IndexError, OSError):
                path, descriptor = self._answered.pop()
                path.unlink(missing_ok=True)
                os.close(descriptor)


def _made(path: Path, content: bytes) -> tuple[Path, int]:
    """Make the file of a new submission, and lock it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        os.write(descriptor, content)
    except OSError as error:
        path.unlink()
        os.close(descriptor)
        raise OSError(error.errno, f"{error.strerror}, so nothing is submitted", str(path.parent)) from error
    return path, descriptor


def _taken_over(place: Path, content: bytes) -> tuple[Path, int] | None:
    """Return the file of the same submission whose process waits no longer, locked; remove those that are too old."""
    for path in place.iterdir():
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if _is_left(path, descriptor) and path.read_bytes() == content:
                return path, descriptor
            os.close(descriptor)
    return None


def _is_left(path: Path, descriptor: int) -> bool:
    """Return whether nobody waits for the answer, and it has not come; the file is locked then."""
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if status.st_nlink and time.time() - status.st_mtime < _LASTS:
            return True
        path.unlink(missing_ok=True)
    return False


FRESH = 1.0
"""Seconds for which a snapshot is used before the cluster is asked again."""


class EngineQueue:
    """Jobs of a cluster. Controls and recurring jobs are empty: the engine has its own.

    The modules about jobs are imported when they are first read: a submission reads none.
    """

    def __init__(
        self,
        cluster: Cluster,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        directory: Path = Path(),
        measured: Callable[[], MeasuredJobs] | None = None,
    ) -> None:
        """`directory` is for what this user's processes keep about the cluster; `measured` adds telemetry."""
        self.cluster = cluster
        self.directory = directory
        self._measured = measured
        self._monotonic = monotonic
        self._latest: tuple[Snapshot, Entries] | None = None
        self._taken_at = 0.0
        self._lock = Lock()
        self.on_refresh: Callable[[], None] = lambda: None
        """Called after each change of the cluster by this process."""

    def version(self) -> object:
        """Return a token that changes whenever the cluster would be asked again."""
        return int(self._monotonic() / (2 * FRESH))

    def read(self) -> Snapshot:
        """Return a snapshot that is at most a second old."""
        return self._read()[0]

    def _read(self) -> tuple[Snapshot, Entries]:
        from gputui.domain.arrays import Entries

        with self._lock:
            latest = self._latest
            if latest is None or self._monotonic() - self._taken_at > FRESH:
                snapshot = self.cluster.snapshot()
                if self._measured is not None:
                    snapshot = self._measured().joined(snapshot)
                jobs = sorted(snapshot.jobs, key=lambda job: job.id)
                self._latest = latest = snapshot, Entries({job.id: job for job in jobs})
                self._taken_at = self._monotonic()
            return latest

    def refresh(self) -> None:
        """Ask the cluster again at the next read, as after a change."""
        self._latest = None
        self.on_refresh()

    def jobs(self) -> Entries:
        return self._read()[1]

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        from gputui.domain.arrays import places_of

        return places_of(self.jobs().values())

    def get(self, job_id: JobId) -> Job:
        """Return a job; for an array, its first element. The first digits of a long number do, if no other has them.

        Of one that is not in the queue the cluster is asked anew.
        """
        if (job := self.jobs().get(job_id)) is not None:
            return job
        try:
            found = self.cluster.job(job_id)
        except NotFoundError:
            from gputui.domain.arrays import begun_by

            if (begun := begun_by(job_id, chain(self.jobs().values(), self.cluster.history()))) is None:
                raise
            found = begun
        if found.id not in self.jobs() and not found.state.is_terminal:  # it has just been submitted elsewhere
            self.refresh()
        return self.jobs().get(found.id) or next(self._with_telemetry((found,)))

    def whole_id(self, number: JobId) -> JobId:
        from gputui.domain.arrays import number_of

        if number in self.jobs() or number in self.arrays():
            return number
        job = self.get(number)
        return found if str(found := number_of(job)).startswith(str(number)) else job.id

    def past(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield jobs that the engine has forgotten, the latest month of their end first."""
        return iter(sorted(self._forgotten(since), key=lambda job: f"{job.end:%Y-%m}", reverse=True))

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        from gputui.domain.accounting import record_of

        yield from map(record_of, self.jobs().values())
        yield from map(record_of, self._forgotten(since))

    def _forgotten(self, since: datetime | None) -> Iterator[Job]:
        jobs = self.jobs()
        return self._with_telemetry(job for job in self.cluster.history(since) if job.id not in jobs)

    def _with_telemetry(self, jobs: Iterable[Job]) -> Iterator[Job]:
        return iter(jobs) if self._measured is None else self._measured().jobs(jobs)

    @property
    def store_id(self) -> str:
        return self.cluster.name

    def controls(self) -> Controls:
        from gputui.domain.snapshot import Controls

        return Controls()

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return {}

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Yield nothing: the engine has its own log."""
        del target
        return iter(())

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        del uid
        return iter(())

    def watch(self) -> StoreWatch | None:
        """Return None: clusters are polled."""
        return None

    def check(self) -> None:
        """Do nothing: no file is read."""

    def unread(self) -> tuple[str, ...]:
        return ()

    def unreadable(self) -> tuple[Unreadable, ...]:
        return ()

    def close(self) -> None:
        self.cluster.close()
