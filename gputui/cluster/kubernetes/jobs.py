"""Jobs of our domain from jobs and pods of Kubernetes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from gputui.cluster.kubernetes import phases
from gputui.cluster.kubernetes.manifest import COMMENT, NAME, QUEUE, SUBMITTER
from gputui.cluster.kubernetes.notes import KubeSubmitted
from gputui.cluster.kubernetes.numbers import place_of
from gputui.cluster.kubernetes.objects import KubeJob, KubePod, KubePodSpec, KubeWorkload
from gputui.domain.attempt import Attempt
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import MAX_PRIORITY, NORMAL_PRIORITY, GpuRequest, Interactive, JobId, JobSpec
from gputui.domain.state import JobState
from gputui.domain.text import plain

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class JobParts(Struct, frozen=True):
    """A job of Kubernetes with all that belongs to it."""

    job: KubeJob
    number: JobId
    pods: tuple[KubePod, ...] = ()
    workload: KubeWorkload | None = None
    known: KubeSubmitted | None = None
    """Its submission, if that was made from here."""
    kueue: str = ""
    """Path of Kueue's API; empty where it is not installed."""

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
    job, pod = parts.job, phases.newest(parts.pods)
    state, spec = phases.state_of(job, parts.pods), _spec(parts, classes)
    attempt = None if state is JobState.PENDING else _attempt(parts, pod, state, spec.gpus.minimum)
    ended = phases.end_of(job) or (attempt.ended_at if attempt else None)
    place = place_of(job)
    return Job(
        parts.number,
        spec,
        job.metadata.creation_timestamp or _LONG_AGO,
        state=state,
        priority=spec.priority,
        held=state is JobState.PENDING and parts.is_held,
        started_at=attempt.started_at if attempt else None,
        ended_at=ended if state.is_terminal else None,
        exit_code=attempt.exit_code if attempt and state.is_terminal else None,
        cause=phases.cause_of(job, pod) if state.is_terminal else None,
        attempts=(attempt,) if attempt else (),
        submitted_by=plain(job.metadata.annotation(SUBMITTER)),
        array=ArrayRef(*place) if place else None,
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
    code = phases.exit_code_of(pod)
    nodes = dict.fromkeys(each.spec.node_name for each in parts.pods if each.spec.node_name)
    return Attempt(
        max(1, len(parts.pods)),
        container_id=pod.container_id if pod is not None else None,
        started_at=started,
        ended_at=(phases.end_of(job) or (end.finished_at if end else None)) if is_over else None,
        exit_code=(0 if code is None and state is JobState.COMPLETED else code) if is_over else None,
        cause=phases.cause_of(job, pod) if is_over else None,
        node=",".join(plain(name) for name in nodes),
        unnamed_gpus=gpus,
    )


def _spec(parts: JobParts, classes: Sequence[str]) -> JobSpec:
    """Return the spec as it was submitted from here, else what Kubernetes knows of it."""
    if parts.known is None:
        return _foreign_spec(parts.job, classes)
    return replace(parts.known.submission.spec, tenant=plain(parts.job.metadata.namespace))


def _foreign_spec(job: KubeJob, classes: Sequence[str]) -> JobSpec:
    pod, meta = job.spec.template.spec, job.metadata
    main = pod.main(job.spec.template.metadata)
    words = (*(main.command or ()), *(main.args or ()))
    gpus = pod.gpus * max(1, job.spec.parallelism or 1)
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
