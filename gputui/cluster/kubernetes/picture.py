"""Snapshot of a copy of the cluster. Jobs that have not changed are the same objects as in the snapshot before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby

from msgspec import Struct, field

from gputui.cluster.kubernetes import phases, reasons, views
from gputui.cluster.kubernetes.jobs import JobParts, job_of
from gputui.cluster.kubernetes.manifest import KEY
from gputui.cluster.kubernetes.notes import KubeSubmissions
from gputui.cluster.kubernetes.numbers import numbers_of
from gputui.cluster.kubernetes.objects import KubeEvent, KubeJob, KubeNode, KubePod, KubeWorkload
from gputui.domain.cluster import element_runs, index_of
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Controls, Leader, Snapshot
from gputui.domain.state import JobState, Reason

KIND = "kubernetes"
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class KubeObjects(Struct, frozen=True):
    """All objects of one moment, by uid."""

    jobs: Mapping[str, KubeJob]
    pods: Mapping[str, KubePod]
    nodes: Mapping[str, KubeNode]
    events: Mapping[str, KubeEvent]
    workloads: Mapping[str, KubeWorkload]
    kueue: str = ""
    """Path of Kueue's API; empty where it is not installed."""
    gone: Mapping[str, KubePod] = field(default_factory=dict)
    """Last states of pods that are gone, by the uid of their job."""


class KubePicture(Struct, frozen=True):
    """A snapshot, and what it was made of, by uid."""

    snapshot: Snapshot
    parts: Mapping[str, JobParts]
    jobs: Mapping[str, Job]


class KubePictures:
    """Makes snapshots of objects."""

    def __init__(self, submissions: KubeSubmissions, classes: Sequence[str]) -> None:
        self._submissions = submissions
        self._classes = classes
        self._made: dict[str, tuple[JobParts, Job]] = {}

    def of(self, objects: KubeObjects, place: str, now: datetime) -> KubePicture:
        """Return the picture of these objects."""
        parts = self._parts(objects)
        jobs = {uid: self._job(uid, each) for uid, each in parts.items()}
        self._made = {uid: self._made[uid] for uid in jobs}
        about = _by_object(objects.events.values())
        why = _reasons(parts, jobs, about, now)
        entries = list(_entries(jobs, why))
        waiting = [job for job in entries if job.state is JobState.PENDING]
        ranks = {parts[uid].number: _rank(parts[uid], job) for uid, job in jobs.items()}
        waiting.sort(key=lambda job: (job.held, *ranks[job.id]))
        of_number = {jobs[uid].id: reason for uid, reason in why.items()}
        snapshot = Snapshot(
            taken_at=now,
            nodes=views.nodes_of(objects.nodes.values(), objects.pods.values(), jobs),
            jobs=tuple(sorted(entries, key=lambda job: job.id)),
            controls=Controls(drains=views.drains_of(objects.nodes.values())),
            leader=Leader(0, place, "", KIND, now),
            order=tuple(job.id for job in waiting),
            reasons={job.id: of_number[job.id] for job in waiting},
            progress=_progress(parts, jobs, about, objects.nodes.values()),
        )
        return KubePicture(snapshot, parts, jobs)

    def _parts(self, objects: KubeObjects) -> dict[str, JobParts]:
        """Return all that belongs to each job."""
        pods: dict[str, list[KubePod]] = {}
        for pod in objects.pods.values():
            if pod.job_uid:
                pods.setdefault(pod.job_uid, []).append(pod)
        workloads = {each.job_uid: each for each in objects.workloads.values()}
        numbers = numbers_of(objects.jobs.values())
        self._submissions.refresh()
        found = {}
        for uid, job in objects.jobs.items():
            meta = job.metadata
            known = self._submissions.of_job(uid, meta.label(KEY), meta.namespace)
            own = tuple(sorted(pods.get(uid, ()), key=lambda pod: pod.metadata.name))
            if not own and job.has_ended and uid in objects.gone:
                own = (objects.gone[uid],)
            found[uid] = JobParts(job, numbers[uid], own, workloads.get(uid), known, objects.kueue)
        return found

    def _job(self, uid: str, parts: JobParts) -> Job:
        made = self._made.get(uid)
        if made is None or made[0] != parts:
            made = self._made[uid] = parts, job_of(parts, self._classes)
        return made[1]


def _rank(parts: JobParts, job: Job) -> tuple[int, datetime, int, str]:
    """Return the place in the order in which Kubernetes' scheduler looks at jobs: by priority, then by age.

    Ages are whole seconds; jobs submitted together have keys that grow.
    """
    key = parts.job.metadata.label(KEY)
    pod = phases.newest(parts.pods)
    priority = pod.spec.priority if pod is not None else None
    return -(priority or 0), job.submitted_at, len(key), key


def _by_object(events: Iterable[KubeEvent]) -> Mapping[str, list[KubeEvent]]:
    """Return the events about each object, by its uid, the latest first."""
    about: dict[str, list[KubeEvent]] = {}
    for event in sorted(events, key=_told_at, reverse=True):
        about.setdefault(event.involved_object.uid or "", []).append(event)
    return about


def _reasons(
    parts: Mapping[str, JobParts], jobs: Mapping[str, Job], about: Mapping[str, list[KubeEvent]], now: datetime
) -> dict[str, Reason]:
    """Return why jobs wait, by uid."""
    waiting = (uid for uid, job in jobs.items() if job.state is JobState.PENDING)
    return {uid: reasons.reason_of(parts[uid], about.get(uid, ()), now) for uid in waiting}


def _told_at(event: KubeEvent) -> datetime:
    return event.last_timestamp or event.event_time or event.metadata.creation_timestamp or _LONG_AGO


def _progress(
    parts: Mapping[str, JobParts],
    jobs: Mapping[str, Job],
    about: Mapping[str, list[KubeEvent]],
    nodes: Iterable[KubeNode],
) -> dict[JobId, str]:
    """Return what starting jobs wait for, and on which jobs' nodes nothing is known."""
    down = {node.metadata.name: words for node in nodes if (words := views.down_of(node))}
    found = {}
    for uid, job in jobs.items():
        pod = phases.newest(parts[uid].pods) if job.state.is_active else None
        if pod is None:
            continue
        if pod.spec.node_name in down:
            found[job.id] = down[pod.spec.node_name]
        elif job.state is JobState.CONFIGURING:
            found[job.id] = reasons.progress_of(pod, about.get(pod.metadata.uid, ()))
    return found


def _entries(jobs: Mapping[str, Job], why: Mapping[str, Reason]) -> Iterable[Job]:
    """Yield jobs; elements of an array that wait alike as one."""
    alike: dict[tuple[int, bool, str], list[Job]] = {}
    for uid, job in jobs.items():
        if job.array is None or job.state is not JobState.PENDING:
            yield job
        else:
            alike.setdefault((job.array.id, job.held, why[uid].text), []).append(job)
    for found in alike.values():
        yield from _joined(found)


def _joined(elements: list[Job]) -> Iterable[Job]:
    """Yield elements of an array, those together whose requests are equal."""
    ordered = sorted(elements, key=lambda job: job.id)
    for _, group in groupby(ordered, key=lambda job: job.spec):
        members = list(group)
        first = members[0]
        if len(members) > 1 and first.array is not None:
            runs = element_runs(first.array.id, (index_of(job.id) for job in members))
            yield first.with_runs(tuple(runs))
        else:
            yield first
