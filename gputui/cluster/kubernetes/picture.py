"""Snapshot of a copy of the cluster: jobs, nodes and GPUs. Jobs that have not changed stay the same objects.

Kubernetes gives a pod a number of GPUs and tells nobody which: the first GPUs of a node stand for those in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby

from msgspec import Struct, field

from gputui.cluster.journal import Submissions
from gputui.cluster.kubernetes.jobs import JobParts, elements_of, job_of, newest, numbers_of, sentence, whole_uid
from gputui.cluster.kubernetes.manifest import KEY, QUEUE
from gputui.cluster.kubernetes.objects import (
    ARRAY,
    KubeEvent,
    KubeJob,
    KubeNode,
    KubePod,
    KubeWorkload,
    condition,
    count,
    gpus_in,
    one_line,
)
from gputui.cluster.shared import LONG_AGO, gpu_view
from gputui.domain.cluster import element_runs, index_of
from gputui.domain.gpu import NO_PROBE, Drain, Gpu, GpuView
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Leader, Node, Snapshot
from gputui.domain.state import JobState, PendingReason, Reason, utc_moment
from gputui.domain.text import plain

_R = PendingReason
_WORDS = {
    "Inadmissible": (_R.QUOTA_EXCEEDED, "Kueue cannot admit it"),
    "Misconfigured": (_R.QUOTA_EXCEEDED, "Kueue cannot admit it"),
    "ExceedsMaxQuota": (_R.QUOTA_EXCEEDED, "asks for more than its queue can ever have"),
    "Suspended": (_R.SCHEDULER_PAUSED, "its queue is stopped"),
    "NoMatchingFlavor": (_R.NODE_UNKNOWN, "no nodes of its queue fit"),
    "TopologyPlacementFailed": (_R.RESOURCES, "no nodes near each other are free"),
    "WaitingForPreemptedWorkloads": (_R.RESOURCES, "waits for the end of jobs that Kueue preempts for it"),
    "WaitingForPodsReady": (_R.PRIORITY, "waits until the pods of earlier jobs run"),
    "Waiting": (_R.PRIORITY, "waits until the pods of earlier jobs run"),
    "PendingEvaluation": (_R.PRIORITY, "Kueue has not looked at it yet"),
    "OnHold": (_R.BACK_OFF, "another program keeps it out of its queue"),
    "AdmissionGated": (_R.BACK_OFF, "another program keeps it out of its queue"),
}
"""Code and words for a job without quota, by Kueue's reason; for any other reason it waits for quota."""
HELD = Reason(_R.JOB_HELD_USER, "held (Suspended)")
_FAULTS = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "RegistryUnavailable": "its image cannot be pulled",
    "SignatureValidationFailed": "its image cannot be pulled",
    "ImageInspectError": "its image cannot be read",
    "ErrImageNeverPull": "its image is not on the node",
    "InvalidImageName": "the name of its image is not valid",
    "CreateContainerConfigError": "its container cannot be set up",
    "CreateContainerError": "its container cannot be created",
}
"""Words for what keeps a container from starting, by the reason for which it waits."""
_UNDER_WAY = frozenset({"Pending", "ContainerCreating", "PodInitializing"})
_NO_ROOM = ("Insufficient", "Too many pods", "cannot allocate all claims")
"""Words of the scheduler about nodes that have not enough free; claims are those of dynamic resource allocation."""


def _queue_reason(workload: KubeWorkload | None, queue: str, now: datetime) -> Reason:
    """Return why a job waits in a queue: Kueue starts it once the queue has quota for it, and all checks agree."""
    if workload is None:
        return Reason(_R.PRIORITY, f"Kueue has not put it into its queue {one_line(queue)} yet (no Workload)")
    conditions = workload.status.conditions
    reserved = condition(conditions, "QuotaReserved")
    evicted = condition(conditions, "Evicted")
    if evicted is not None and evicted.status == "True":  # it has run, or was about to
        words = sentence("sent back to its queue by Kueue", evicted.message, evicted.reason, "Evicted")
        later = one_line(reserved.message) if reserved is not None and reserved.status == "False" else ""
        words += f"; {later}" if later and later != one_line(evicted.message) else ""
        again = workload.status.requeue_state.requeue_at if workload.status.requeue_state else None
        if again is not None and again > now:
            return Reason(_R.BACK_OFF, f"{words}; Kueue tries again at {utc_moment(again, now)}", (again,))
        return Reason(_R.QUOTA_EXCEEDED, words)
    if reserved is None:
        return Reason(_R.PRIORITY, "Kueue has not looked at it yet (no QuotaReserved)")
    if reserved.status == "True":
        checks = [each for each in workload.status.admission_checks or () if each.state != "Ready"]
        if not checks:
            return Reason(_R.PRIORITY, "Kueue has quota for it and starts it (QuotaReserved)")
        waits = (sentence(one_line(each.name), each.message, each.state, "Pending") for each in checks)
        what = f"Kueue has quota for it, and waits for its checks: {'; '.join(waits)} (QuotaReserved)"
        return Reason(_R.BACK_OFF, what)
    word = one_line(reserved.reason, "Pending")
    code, words = _WORDS.get(word, (_R.QUOTA_EXCEEDED, "waits for quota of its queue"))
    return Reason(code, sentence(words, reserved.message, word))


def reason_of(parts: JobParts, events: Iterable[KubeEvent], now: datetime) -> Reason:
    if parts.is_held:
        workload = parts.workload if parts.is_queued else None
        evicted = condition(workload.status.conditions, "Evicted") if workload is not None else None
        if evicted is not None and evicted.status == "True" and (evicted.reason or "").startswith("DeactivatedDueTo"):
            words = "Kueue has taken it out of its queue until it is released"
            return Reason(_R.JOB_HELD_USER, sentence(words, evicted.message, evicted.reason))
        return HELD if workload is None else Reason(_R.JOB_HELD_USER, "held (Deactivated)")
    pod = newest(parts.pods)
    if parts.is_queued and (pod is None or parts.job.spec.suspend):
        return _queue_reason(parts.workload, parts.job.metadata.label(QUEUE), now)
    if pod is None:
        failed = next((event for event in events if event.reason == "FailedCreate"), None)
        most = parts.job.spec.parallelism
        if failed is None and parts.job.is_array and most != parts.job.spec.completions:
            return Reason(_R.RESOURCES, f"{most} elements of its array run at a time (parallelism)")
        if failed is None:
            return Reason(_R.PRIORITY, "Kubernetes has not made a pod for it yet (no pod)")
        message = one_line(failed.message)
        code = _R.QUOTA_EXCEEDED if "quota" in message else _R.BACK_OFF
        return Reason(code, sentence("its pod cannot be created", message, "FailedCreate"))
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return Reason(_R.PRIORITY, "Kubernetes has not looked at it yet (Pending)")
    word, message = one_line(scheduled.reason, "Pending"), one_line(scheduled.message)
    if word == "SchedulingGated":
        return Reason(_R.BACK_OFF, f"another program keeps it back by a gate: {message} ({word})")
    if not message or any(words in message for words in _NO_ROOM):
        place = one_line(pod.status.nominated_node_name)
        words = f"node {place} is being freed for it" if place else "waits for resources"
        return Reason(_R.RESOURCES, sentence(words, message, word))
    return Reason(_R.NODE_UNKNOWN, sentence("no node takes it", message, word))


def progress_of(pod: KubePod, events: Iterable[KubeEvent]) -> str:
    waiting = pod.container.waiting
    word = one_line(waiting.reason if waiting else None, "Pending")
    if waiting is not None and word not in _UNDER_WAY:
        return sentence(_FAULTS.get(word, "its container cannot be started"), waiting.message, word)
    told_since = (event for event in events if event.reason != "FailedScheduling")  # since then a node has taken it
    if (warning := next(told_since, None)) is not None:
        return sentence("it cannot be started yet", warning.message, warning.reason, word)
    return f"its container is being made ({word})"


REASON, BY, AT = "gputui.drain-reason", "gputui.drained-by", "gputui.drained-at"
"""Annotations of a node that gputui drained."""
_PRODUCT, _MEMORY = "nvidia.com/gpu.product", "nvidia.com/gpu.memory"
_CORDONED = "node.kubernetes.io/unschedulable"
_MOST_GPUS = 1024
_MIG, _SHARED = "mig-", ".shared"
KIND = "kubernetes"
_UNHEALTHY = "the device plugin of the node calls a GPU unhealthy, and does not tell which"


def nodes_of(nodes: Iterable[KubeNode], pods: Iterable[KubePod], jobs: Mapping[str, Job]) -> tuple[Node, ...]:
    on: dict[str, list[KubePod]] = {}
    for pod in pods:
        if pod.spec.node_name and not pod.is_over and pod.spec.gpus:
            on.setdefault(pod.spec.node_name, []).append(pod)
    ordered = sorted(nodes, key=lambda node: node.metadata.name)
    return tuple(_node(node, on.get(node.metadata.name, []), jobs) for node in ordered)


def drain_of(node: KubeNode) -> Drain | None:
    if not node.spec.unschedulable:
        return None
    meta = node.metadata
    taint = next((each for each in node.spec.taints or () if each.key == _CORDONED), None)
    at = (taint.time_added if taint else None) or LONG_AGO
    with suppress(ValueError):
        noted = datetime.fromisoformat(meta.annotation(AT))
        at = noted if noted.tzinfo else at
    return Drain(one_line(meta.annotation(REASON), "cordoned"), plain(meta.annotation(BY)) or "Kubernetes", at)


def _node(node: KubeNode, pods: list[KubePod], jobs: Mapping[str, Job]) -> Node:
    name, drain, down = plain(node.metadata.name), drain_of(node), down_of(node)
    shut = f"node {name} is drained: {drain.reason}" if drain is not None else ""
    model = plain(node.metadata.label(_PRODUCT)).replace("-", " ") or None
    allocatable, views = node.status.allocatable or {}, list[GpuView]()
    for resource, number in gpus_in(node.status.capacity).items():  # each that its device plugin offers
        kind = resource.partition("/")[2].removesuffix(_SHARED)
        profile = kind.removeprefix(_MIG) if kind.startswith(_MIG) else ""
        size = count(node.metadata.label(f"nvidia.com/{_MIG}{profile}.memory" if profile else _MEMORY))
        total = min(_MOST_GPUS - len(views), number)
        users = [(pod, found) for pod in pods if (found := pod.spec.gpus_by_resource[resource])]
        used = min(total, sum(found for _, found in users))
        usable = min(total, max(used, count(allocatable.get(resource, total))))
        what = f" instances {profile}" if profile else ""
        what = f" shares of{what or ' GPUs'}" if resource.endswith(_SHARED) else what
        use = f"{used} of {total}{what} in use: {', '.join(_users(users, jobs))}"
        only = jobs.get(users[0][0].part_uid) if len(users) == 1 and used == total else None  # a job that has all
        for place in range(total):
            label = f"{name}:{len(views)}"  # stands for the UUID
            gpu = Gpu(label, len(views), model, memory_total=size * 1024**2 or None, mig_profile=profile or None)
            holders = (only,) if only is not None and place < used and not down else ()
            words, broken = use if place < used else None, _UNHEALTHY if place >= usable else ""
            views.append(gpu_view(gpu, holders, words, down=down, broken=broken, shut=shut, drain=drain))
    return Node(name, tuple(views), NO_PROBE, down=down, drain=drain)


def down_of(node: KubeNode) -> str:
    ready = condition(node.status.conditions, "Ready")
    if ready is None or ready.status == "True":
        return ""
    return f"node {plain(node.metadata.name)} is not ready: {one_line(ready.message, ready.reason, 'no reason given')}"


def _users(users: Iterable[tuple[KubePod, int]], jobs: Mapping[str, Job]) -> Iterator[str]:
    for pod, number in users:
        job, owner = jobs.get(pod.part_uid), pod.owner
        if job is not None:
            who = f"job {job.shown_id} {plain(job.name)}"
        else:
            who = f"pod {plain(pod.metadata.namespace)}/{plain(pod.metadata.name)}"
            who += f" of {plain(owner.kind)} {plain(owner.name)}" if owner is not None else ""
        yield f"{who} has {number}"


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
    deleted: Mapping[str, KubeJob] = field(default_factory=dict)
    """Last states of jobs that the watch saw deleted."""


class KubePicture(Struct, frozen=True):
    """A snapshot, and what it was made of, by uid."""

    snapshot: Snapshot
    parts: Mapping[str, JobParts]
    jobs: Mapping[str, Job]
    deleted: Mapping[str, JobParts] = field(default_factory=dict)
    """Jobs that the watch saw deleted."""


class KubePictures(Struct, eq=False):
    _submissions: Submissions
    _classes: Sequence[str]
    _made: dict[str, tuple[JobParts, Job]] = field(default_factory=dict)

    def of(self, objects: KubeObjects, place: str, now: datetime) -> KubePicture:
        parts = self._parts(objects, objects.jobs)
        deleted = self._parts(objects, objects.deleted) if objects.deleted else {}
        kept = ((uid, each, self._made.get(uid)) for uid, each in parts.items())
        self._made = {
            uid: made if made is not None and made[0] == each else (each, job_of(each, self._classes))
            for uid, each, made in kept
        }
        jobs = {uid: job for uid, (_, job) in self._made.items()}
        about: dict[str, list[KubeEvent]] = {}  # the events about each object by its uid, the latest first
        for event in sorted(
            objects.events.values(),
            key=lambda event: event.last_timestamp or event.event_time or event.metadata.creation_timestamp or LONG_AGO,
            reverse=True,
        ):
            about.setdefault(event.involved_object.uid or "", []).append(event)
        still = (uid for uid, job in jobs.items() if job.state is JobState.PENDING)
        why = {uid: reason_of(parts[uid], about.get(whole_uid(uid), ()), now) for uid in still}
        entries = list(_entries(jobs, why))
        waiting = [job for job in entries if job.state is JobState.PENDING]
        ranks = {parts[uid].number: _rank(parts[uid], job) for uid, job in jobs.items()}
        waiting.sort(key=lambda job: (job.held, *ranks[job.id]))
        of_number = {jobs[uid].id: reason for uid, reason in why.items()}
        snapshot = Snapshot(
            taken_at=now,
            nodes=nodes_of(objects.nodes.values(), objects.pods.values(), jobs),
            jobs=tuple(sorted(entries, key=lambda job: job.id)),
            leader=Leader(0, place, "", KIND, now),
            order=tuple(job.id for job in waiting),
            reasons={job.id: of_number[job.id] for job in waiting},
            progress=_progress(parts, jobs, about, objects.nodes.values()),
        )
        return KubePicture(snapshot, parts, jobs, deleted)

    def _parts(self, objects: KubeObjects, jobs: Mapping[str, KubeJob]) -> dict[str, JobParts]:
        of_part: dict[str, list[KubePod]] = {}
        for pod in objects.pods.values():
            if pod.job_uid:
                of_part.setdefault(pod.part_uid, []).append(pod)
        live = {uid: tuple(sorted(each, key=lambda pod: pod.metadata.name)) for uid, each in of_part.items()}
        pods = {uid: (pod,) for uid, pod in objects.gone.items()} | live
        workloads = {each.job_uid: each for each in objects.workloads.values()}
        elements = [part for job in jobs.values() for part in elements_of(job, pods)]
        numbers = numbers_of(elements)
        self._submissions.refresh()
        found = {}
        for job in elements:
            meta, whole = job.metadata, whole_uid(job.metadata.uid)
            key = meta.label(ARRAY) or meta.label(KEY)
            known = self._submissions.of_uid(meta.uid, key, meta.namespace)
            own = (pods if job.has_ended or whole in objects.deleted else live).get(meta.uid, ())
            found[meta.uid] = JobParts(job, numbers[meta.uid], own, workloads.get(whole), known, objects.kueue)
        return found


def _rank(parts: JobParts, job: Job) -> tuple[int, datetime, int, str]:
    """Return the place in the order in which Kubernetes' scheduler looks at jobs: by priority, then by age.

    Ages are whole seconds; jobs submitted together have keys that grow.
    """
    key = parts.job.metadata.label(KEY)
    pod = newest(parts.pods)
    priority = pod.spec.priority if pod is not None else None
    return -(priority or 0), job.submitted_at, len(key), key


def _progress(
    parts: Mapping[str, JobParts],
    jobs: Mapping[str, Job],
    about: Mapping[str, list[KubeEvent]],
    nodes: Iterable[KubeNode],
) -> dict[JobId, str]:
    down = {node.metadata.name: words for node in nodes if (words := down_of(node))}
    found = {}
    for uid, job in jobs.items():
        pod = newest(parts[uid].pods) if job.state.is_active else None
        if pod is None:
            continue
        if pod.spec.node_name in down:
            found[job.id] = down[pod.spec.node_name]
        elif job.state is JobState.CONFIGURING:
            found[job.id] = progress_of(pod, about.get(pod.metadata.uid, ()))
    return found


def _entries(jobs: Mapping[str, Job], why: Mapping[str, Reason]) -> Iterable[Job]:
    """Yield jobs; elements of an array that wait alike as one."""
    alike: dict[tuple[int, bool, str], list[Job]] = {}
    for uid, job in jobs.items():
        if job.array is None or job.state is not JobState.PENDING:
            yield job
        else:
            alike.setdefault((job.array.id, job.held, why[uid].text), []).append(job)
    for elements in alike.values():
        ordered = sorted(elements, key=lambda job: job.id)
        for _, group in groupby(ordered, key=lambda job: job.spec):  # those together whose requests are equal
            first, *others = group
            if others and first.array is not None:
                runs = element_runs(first.array.id, (index_of(job.id) for job in (first, *others)))
                yield first.with_runs(tuple(runs))
            else:
                yield first
