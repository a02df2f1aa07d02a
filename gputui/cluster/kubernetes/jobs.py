"""Jobs of our domain from jobs and pods of Kubernetes: their numbers, states, and the causes of their ends."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.journal import Submitted
from gputui.cluster.kubernetes.manifest import COMMENT, NAME, QUEUE, SUBMITTER
from gputui.cluster.kubernetes.objects import (
    ARRAY,
    INDEX,
    KubeCondition,
    KubeJob,
    KubeJobStatus,
    KubePod,
    KubePodSpec,
    KubeWorkload,
    condition,
    is_true,
    one_line,
)
from gputui.cluster.shared import LONG_AGO
from gputui.domain.cluster import INDEX_BITS, element_id
from gputui.domain.errors import Cause, CauseCode, cause_of_exit
from gputui.domain.job import ArrayRef, Attempt, Job
from gputui.domain.job_spec import MAX_ELEMENTS, MAX_PRIORITY, NORMAL_PRIORITY, GpuRequest, Interactive, JobId, JobSpec
from gputui.domain.state import JobState
from gputui.domain.text import plain

_LEAST = 10**11
_ARRAYS = 1 << 30
"""Least number of an array: always ten digits; ids of its elements stay within 56 bits."""
_MOST_INDEX = (1 << INDEX_BITS) - 2
_DEADLINE = "DeadlineExceeded"
CANCELLED = "gputui.cancelled"
"""Annotation of an array that is one Job, with the indices of cancelled elements; and the reason why they failed."""
_LOST = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
_RUN = re.compile(r"(?<![\d-])(\d{1,6})(?:-(\d{1,6}))?(?=,|$)", re.ASCII)


def single_number(uid: str, salt: int = 0) -> JobId:
    """Return the number of a job; with `salt` another one."""
    return _LEAST + _hash(uid, salt) % (9 * _LEAST)


def place_of(job: KubeJob) -> tuple[int, int] | None:
    """Return number and index of an array's element; None for other jobs."""
    meta = job.metadata
    key, index = meta.label(ARRAY), meta.label(INDEX)
    if not key or not (index.isascii() and index.isdigit()) or len(index) > 8 or int(index) > _MOST_INDEX:
        return None
    return array_number(meta.namespace, key), int(index)


def array_number(namespace: str, key: str) -> int:
    return _ARRAYS | _hash(f"{namespace}/{key}", 0) % _ARRAYS


def number_of(job: KubeJob) -> JobId:
    place = place_of(job)
    return element_id(*place) if place else single_number(job.metadata.uid)


def numbers_of(jobs: Iterable[KubeJob]) -> Mapping[str, JobId]:
    """Return the numbers of jobs by uid. Where two would have the same, the later job gets another one."""
    found: dict[str, JobId] = {}
    taken: set[JobId] = set()
    for job in sorted(jobs, key=lambda job: (_moment(job.metadata.creation_timestamp), job.metadata.uid)):
        number, salt = number_of(job), 0
        while number in taken:
            salt += 1
            number = single_number(job.metadata.uid, salt)
        taken.add(number)
        found[job.metadata.uid] = number
    return found


def whole_uid(uid: str) -> str:
    """Return the uid that Kubernetes knows: the one of the array for an element of an array that is one Job."""
    return uid.partition("/")[0]


def parts_uids(job: KubeJob) -> Iterator[str]:
    """Yield the uids of the elements of an array that is one Job, else the one of the job."""
    uid = job.metadata.uid
    yield from (f"{uid}/{index}" for index in range(job.spec.completions or 0)) if job.is_array else (uid,)


def elements_of(job: KubeJob, pods: Mapping[str, tuple[KubePod, ...]]) -> Iterator[KubeJob]:
    """Yield an array that is one Job as the Jobs that its elements would be; any other job as it is.

    `pods` are those of the elements, by uid.
    """
    if not job.is_array:
        yield job
        return
    meta, status = job.metadata, job.status
    done, failed = _indices(status.completed_indexes), _indices(status.failed_indexes)
    cancelled = _indices(meta.annotation(CANCELLED))
    for index, uid in enumerate(parts_uids(job)):
        own = replace(meta, uid=uid, labels={**(meta.labels or {}), INDEX: str(index)})
        if index in done or index in failed:
            pod = newest(pods.get(uid, ()))
            end = pod.container.terminated if pod is not None else None
            at = (end.finished_at if end else None) or end_of(job) or status.start_time
            is_good = index in done and index not in cancelled
            why = CANCELLED if index in cancelled else "BackoffLimitExceeded"
            told_of = KubeCondition("Complete" if is_good else "Failed", "True", None if is_good else why, None, at)
            mine = KubeJobStatus((told_of,), status.start_time, at if is_good else None)
        else:
            mine = status if job.has_ended else KubeJobStatus(start_time=status.start_time)
        yield KubeJob(own, job.spec, mine)


def _indices(text: str | None) -> frozenset[int]:
    """Return the numbers of `0-3,7`, as far as an array may have them: anybody may have written them."""
    found = frozenset[int]()
    for first, last in _RUN.findall(text or ""):
        found |= frozenset(range(int(first), min(int(last or first) + 1, MAX_ELEMENTS)))
    return found


def _hash(text: str, salt: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{text}#{salt}".encode()).digest()[:8], "big")


def sentence(words: str, message: str | None, *word: str | None) -> str:
    """Return our words, what Kubernetes says, and its own word for it, the first one that it has."""
    said, its_own = one_line(message), one_line(*word)
    return f"{words}: {said} ({its_own})" if said else f"{words} ({its_own})"


def newest(pods: Iterable[KubePod]) -> KubePod | None:
    return max(pods, key=lambda pod: (_moment(pod.metadata.creation_timestamp), pod.metadata.name), default=None)


def state_of(job: KubeJob, pods: Iterable[KubePod]) -> JobState:
    known = list(pods)
    deleted, ended, last = job.metadata.deletion_timestamp, end_of(job), newest(known)
    if deleted is not None and (ended is None or ended >= deleted):
        return JobState.COMPLETING  # the ends of its pods are no ends of its own
    if ended is not None and last is not None and _of_pod(last) is JobState.RUNNING:
        # a job ends after its pod, or has its pod deleted, but both are watched separately: exit code and cause follow
        return JobState.COMPLETING
    if is_true(job.status.conditions, "Complete"):
        return JobState.COMPLETED
    if is_true(job.status.conditions, "Failed"):
        return _failure(job, last)
    states = {_of_pod(pod) for pod in known}
    if job.spec.suspend:
        return JobState.PENDING
    order = (JobState.RUNNING, JobState.CONFIGURING, JobState.PENDING, JobState.COMPLETING)
    return next((state for state in order if state in states), JobState.PENDING)


def _of_pod(pod: KubePod) -> JobState:
    if pod.is_over or pod.metadata.deletion_timestamp is not None:
        return JobState.COMPLETING
    if pod.container.terminated is not None:
        return JobState.COMPLETING
    if pod.status.phase == "Pending":
        return JobState.CONFIGURING if pod.spec.node_name else JobState.PENDING
    return JobState.RUNNING


def _failure(job: KubeJob, pod: KubePod | None) -> JobState:
    end = pod.container.terminated if pod is not None else None
    failed = condition(job.status.conditions, "Failed")
    reasons = {failed.reason if failed is not None else None, pod.status.reason if pod is not None else None}
    if CANCELLED in reasons:
        return JobState.CANCELLED
    if end is not None and end.reason == "OOMKilled":
        return JobState.OUT_OF_MEMORY
    return JobState.TIMEOUT if _DEADLINE in reasons else JobState.FAILED


def end_of(job: KubeJob) -> datetime | None:
    if job.status.completion_time is not None:
        return job.status.completion_time
    failed = condition(job.status.conditions, "Failed")
    return failed.last_transition_time if failed is not None and failed.status == "True" else None


def exit_code_of(pod: KubePod | None) -> int | None:
    end = pod.container.terminated if pod is not None else None
    return end.exit_code if end is not None else None


def cause_of(job: KubeJob, pod: KubePod | None) -> Cause | None:
    """Return why a job failed, with Kubernetes' own words; None if it did not."""
    if not is_true(job.status.conditions, "Failed"):
        return None
    state, end = _failure(job, pod), pod.container.terminated if pod is not None else None
    if state is JobState.CANCELLED:
        return Cause(CauseCode.CANCELLED, "cancelled")
    if state is JobState.TIMEOUT:
        return Cause(CauseCode.TIME_LIMIT, f"ran into its time limit ({_DEADLINE})")
    if state is JobState.OUT_OF_MEMORY:
        return Cause(CauseCode.OUT_OF_MEMORY, "ran over its memory limit (OOMKilled)")
    if pod is not None and (found := _of_infrastructure(pod)) is not None:
        return found
    if end is not None and end.exit_code:
        if end.reason not in _NOT_STARTED:
            return cause_of_exit(end.exit_code)
        what = f"could not be started: {one_line(end.message, end.reason)} ({end.reason})"
        return Cause(CauseCode.COMMAND_NOT_FOUND, what)
    failed = condition(job.status.conditions, "Failed")
    words = one_line(failed.message if failed else None, "failed")
    reason = one_line(failed.reason if failed else None, "Failed")
    if reason == "PodFailurePolicy" and "DisruptionTarget" in words:
        what = "its pod was preempted, evicted or removed with its node"
        return Cause(CauseCode.CONTAINER_LOST, sentence(what, words, reason))
    if pod is None:
        return Cause(CauseCode.END_UNKNOWN, f"{words} ({reason}); its pod is gone")
    return Cause(CauseCode.RUNTIME_ERROR, f"{words} ({reason})")


def _of_infrastructure(pod: KubePod) -> Cause | None:
    where, reason = f"node {one_line(pod.spec.node_name, '?')}", one_line(pod.status.reason)
    disrupted = condition(pod.status.conditions, "DisruptionTarget")
    disrupted = disrupted if disrupted is not None and disrupted.status == "True" else None
    if reason == "Preempting" or (disrupted is not None and disrupted.reason == "PreemptionByScheduler"):
        return Cause(
            CauseCode.PREEMPTED, f"preempted by Kubernetes for another pod ({reason or 'PreemptionByScheduler'})"
        )
    if reason == "Evicted":
        return Cause(
            CauseCode.CONTAINER_LOST, f"evicted from {where}: {one_line(pod.status.message, 'no reason')} (Evicted)"
        )
    if reason in _LOST:
        return Cause(CauseCode.CONTAINER_LOST, f"lost with {where}: {one_line(pod.status.message, reason)} ({reason})")
    if disrupted is not None:
        words, word = one_line(disrupted.message, "no reason"), one_line(disrupted.reason, "DisruptionTarget")
        return Cause(CauseCode.CONTAINER_LOST, f"removed from {where}: {words} ({word})")
    deleted, end = pod.metadata.deleted_at, pod.container.terminated
    if deleted is not None and (end is None or end.finished_at is None or end.finished_at >= deleted):
        return Cause(CauseCode.CONTAINER_LOST, f"its pod on {where} was deleted in Kubernetes")
    if reason and end is None:  # the node has its own look at what it may run
        return Cause(CauseCode.RUNTIME_ERROR, f"refused by {where}: {one_line(pod.status.message, reason)} ({reason})")
    return None


def _moment(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0


class JobParts(Struct, frozen=True):
    job: KubeJob
    number: JobId
    pods: tuple[KubePod, ...] = ()
    workload: KubeWorkload | None = None
    known: Submitted | None = None
    """Its submission, if that was made from here."""
    kueue: str = ""
    """Path of Kueue's API; empty where it is not installed."""
    members: tuple[JobParts, ...] = ()
    """The elements for which it stands, of an array that is one Job: all that are left."""

    @property
    def shown_id(self) -> str:
        """The number as people write it, `12_3` for an element."""
        place = place_of(self.job)
        return f"{place[0]}_{place[1]}" if place else str(self.number)

    @property
    def numbers(self) -> tuple[JobId, ...]:
        return tuple(each.number for each in self.members) or (self.number,)

    @property
    def is_queued(self) -> bool:
        """Return whether Kueue decides when it starts."""
        return bool(self.kueue) and bool(self.job.metadata.label(QUEUE))

    @property
    def is_held(self) -> bool:
        """Return whether somebody keeps it from starting: Kueue suspends jobs too, until it admits them."""
        if self.job.has_ended:
            return False
        if self.is_queued:
            return self.workload is not None and self.workload.spec.active is False
        return bool(self.job.spec.suspend)


def job_of(parts: JobParts, classes: Sequence[str]) -> Job:
    """Return the job; `classes` are the PriorityClasses of the settings."""
    job, pod = parts.job, newest(parts.pods)
    state, spec = state_of(job, parts.pods), _spec(parts, classes)
    attempt = None if state is JobState.PENDING else _attempt(parts, pod, state, spec.gpus.minimum)
    ended = end_of(job) or (attempt.ended_at if attempt else None)
    place, count = place_of(job), job.spec.parallelism
    limit = count if job.is_array and count != job.spec.completions else None
    return Job(
        parts.number,
        spec,
        job.metadata.creation_timestamp or LONG_AGO,
        state=state,
        priority=spec.priority,
        held=state is JobState.PENDING and parts.is_held,
        started_at=attempt.started_at if attempt else None,
        ended_at=ended if state.is_terminal else None,
        exit_code=attempt.exit_code if attempt and state.is_terminal else None,
        cause=cause_of(job, pod) if state.is_terminal else None,
        attempts=(attempt,) if attempt else (),
        submitted_by=plain(job.metadata.annotation(SUBMITTER)),
        array=ArrayRef(*place, limit) if place else None,
    )


def _attempt(parts: JobParts, pod: KubePod | None, state: JobState, gpus: int) -> Attempt | None:
    """Return the run of the newest pod; None if the job never had one."""
    job = parts.job
    if pod is None and not job.has_ended:
        return None
    end = pod.container.terminated if pod is not None else None
    running = pod.container.running if pod is not None else None
    started = (end.started_at if end else None) or (running.started_at if running else None)
    started = started or (pod.status.start_time if pod is not None else job.status.start_time)
    is_over = state.is_terminal
    code = exit_code_of(pod)
    nodes = dict.fromkeys(each.spec.node_name for each in parts.pods if each.spec.node_name)
    return Attempt(
        max(1, len(parts.pods)),
        container_id=pod.container_id if pod is not None else None,
        started_at=started,
        ended_at=(end_of(job) or (end.finished_at if end else None)) if is_over else None,
        exit_code=(0 if code is None and state is JobState.COMPLETED else code) if is_over else None,
        cause=cause_of(job, pod) if is_over else None,
        node=",".join(plain(name) for name in nodes),
        unnamed_gpus=gpus,
    )


def _spec(parts: JobParts, classes: Sequence[str]) -> JobSpec:
    """Return the spec as it was submitted from here, else what Kubernetes knows of it."""
    job, meta = parts.job, parts.job.metadata
    if parts.known is not None:
        return replace(parts.known.submission.spec, tenant=plain(meta.namespace))
    pod = job.spec.template.spec
    main = pod.main(job.spec.template.metadata)
    words = (*(main.command or ()), *(main.args or ()))
    gpus = pod.gpus * (1 if job.is_array else max(1, job.spec.parallelism or 1))
    limit = pod.active_deadline_seconds or job.spec.active_deadline_seconds
    return JobSpec(
        image=plain(main.image or "?"),
        command=tuple(word.replace("$$", "$") for word in words),
        name=plain(meta.annotation(NAME) or meta.name),
        tenant=plain(meta.namespace),
        gpus=GpuRequest(gpus, gpus),
        priority=priority_of(pod, classes),
        time_limit=timedelta(seconds=limit) if limit else None,
        interactive=Interactive(main.stdin, main.tty) if main.tty else None,
        comment=plain(meta.annotation(COMMENT)),
    )


def priority_of(pod: KubePodSpec, classes: Sequence[str]) -> int:
    """Return our priority for a PriorityClass of the settings; that of a usual job for any other."""
    name = pod.priority_class_name
    if name and name in classes:
        return (MAX_PRIORITY * classes.index(name) + 2 * NORMAL_PRIORITY) // 4
    return NORMAL_PRIORITY
