"""Kubernetes behind the port `Cluster`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import RLock

from msgspec.structs import replace

from gputui.cluster.journal import Submissions
from gputui.cluster.kubernetes import pod_channel, site, submission
from gputui.cluster.kubernetes.api_server import ApiServer
from gputui.cluster.kubernetes.jobs import JobParts, elements_of, newest, number_of, state_of, whole_uid
from gputui.cluster.kubernetes.manifest import KubeTarget, as_yaml
from gputui.cluster.kubernetes.mirror import KubeMirror
from gputui.cluster.kubernetes.objects import KubePod
from gputui.cluster.kubernetes.picture import KubePicture, KubePictures
from gputui.cluster.kubernetes.pod_channel import PodChannel
from gputui.cluster.kubernetes.records import KeptLog, KubeRecords, PodLog
from gputui.cluster.kubernetes.site import KubeSite, Sites
from gputui.cluster.kubernetes.submission import KubeSubmitter
from gputui.domain.action import DrainGpus, EditJobs, Hold, Release, ResumeGpus
from gputui.domain.arrays import LEAST_LONG
from gputui.domain.cluster import Capability, Caps, ClusterFault
from gputui.domain.container import ProcessRow
from gputui.domain.errors import CapabilityError, ClusterRefusedError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.pod_template import settings_of
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.ports.backend import Attach, Entry
from gputui.ports.cluster import EngineAction


class KubernetesCluster:
    def __init__(
        self, connect: Callable[[], ApiServer], settings: Settings, directory: Path, *, user: str, name: str = ""
    ) -> None:
        """`connect` returns the server, when it is first needed; `user` is the name written into submitted jobs."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._connect = connect
        self._settings = settings.cluster
        self.user = user
        self._name = name
        self._sites = Sites(directory)
        submissions = Submissions(directory)
        self._pictures = KubePictures(submissions, settings.cluster.priority_classes)
        self._records = KubeRecords(directory, user, submissions)
        self._submitter = KubeSubmitter(settings, submissions, user, lambda data: self._copy().jobs.put(data))
        self._server: ApiServer | None = None
        self._mirror: KubeMirror | None = None
        self._shown: tuple[object, KubePicture] | None = None
        self._lock = RLock()

    @property
    def name(self) -> str:
        return self._server.place if self._server else self._name or "kubernetes"

    @property
    def caps(self) -> Caps:
        return site.caps_of(self._sites.known)

    def snapshot(self) -> Snapshot:
        return self._latest().snapshot

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        server, site = self._reached()
        if any(each.held for each in submissions):
            self._need(Capability.HOLD)
        if any(each.spec.after or each.spec.after_any for each in submissions):
            self._need(Capability.DEPENDENCIES)
        target = self._target(server, site, submissions)
        found = self._submitter.submit(server, target, submissions, key, has_kueue=bool(site.kueue))
        parts = self._latest().parts
        made = [each for job in found for each in elements_of(job, {})]
        known = (parts.get(each.metadata.uid) for each in made)
        return tuple(each.number if each else number_of(job) for each, job in zip(known, made, strict=True))

    def draft(self, submission: Submission) -> str:
        server, site = self._reached()
        target = self._target(server, site, [submission])
        documents = self._submitter.drafts(submission, "dry-run", target, bool(site.kueue))
        told = self._submitter.check(server, target.namespace, documents[0])
        for document in documents:
            document["metadata"]["namespace"] = target.namespace
        return "".join(f"# {warning}\n" for warning in told) + "---\n".join(map(as_yaml, documents))

    def _target(self, server: ApiServer, site: KubeSite, submissions: Sequence[Submission]) -> KubeTarget:
        """Return what jobs are submitted to; nodes are looked at if a job asks for a model of GPUs."""
        models: tuple[str, ...] = ()
        if any(each.spec.gpus.model for each in submissions):
            self._copy().refresh()
            name = settings_of(self._settings.kubernetes).gpu_model_label
            nodes = self._copy().nodes.items().values()
            models = tuple(model for node in nodes if (model := node.metadata.label(name)))
        return KubeTarget(self._namespace(server), models, site.claims, site.counts_failures_by_index)

    def note(self, submission: Submission) -> str:
        return ""

    def expected_start(self, submission: Submission) -> datetime | None:
        raise CapabilityError(self.caps.why_not(Capability.TEST_ONLY))

    def act(self, action: EngineAction) -> tuple[JobId, ...]:
        from gputui.domain.verbs import verb_of

        capability = Capability.EXTEND if isinstance(action, EditJobs) else verb_of(action).capability
        if capability is not None:
            self._need(capability)
        if isinstance(action, DrainGpus | ResumeGpus):
            submission.cordon(self._opened(), self._copy(), action, self.user)
            return ()
        server, picture = self._opened(), self._latest()
        found = self._parts(action.ids, picture)
        if not isinstance(action, Hold | Release):
            living = [each for each in found if not each.job.has_ended and not each.job.metadata.deletion_timestamp]

            def prepare(parts: JobParts) -> Callable[[], None]:
                each_of = ((each, picture.jobs[each.job.metadata.uid]) for each in parts.members or (parts,))
                return self._records.cancelling(server, each_of)

            return submission.cancel(server, self._copy(), _together(living, picture), prepare)
        is_on = isinstance(action, Hold)
        waiting = [parts for parts in found if state_of(parts.job, parts.pods) is JobState.PENDING]
        chosen = _together((parts for parts in waiting if parts.is_held is not is_on), picture)
        return submission.hold(server, self._copy(), chosen, is_on)

    def job(self, job_id: JobId) -> Job:
        snapshot, record = self.snapshot(), self._records.of(job_id)
        found = snapshot.named(job_id)
        if found is None and record is None and job_id >= LEAST_LONG:  # not the first digits of a number
            found = self._latest(is_anew=True).snapshot.named(job_id)
        if found is not None:
            return _better(found, record)
        if record is None:
            raise NotFoundError(f"Kubernetes knows no job {job_id}, and nothing was recorded of it")
        return record

    def last_known(self, job_id: JobId) -> Job | None:
        return self._records.of(job_id)

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        now = self._latest().jobs.values()
        recorded = {job.id: job for job in self._records.all()}
        found = recorded | {job.id: _better(job, recorded.get(job.id)) for job in now}
        for job in found.values():
            if job.ended_at is not None and (since is None or job.ended_at >= since):
                yield job

    def log(self, job: Job, *, tail: int | None, follow: bool) -> PodLog | KeptLog:
        server, _ = self._reached()
        parts, pod = self._known(job.id)
        path = self._records.log_of(job.id)
        kept = KeptLog(path, tail) if path is not None else None
        if pod is None and kept is not None:
            return kept
        is_live = follow and parts is not None and not parts.job.has_ended
        return PodLog(server, pod, tail, (lambda: self._pod_to_follow(job.id)) if is_live else None, kept)

    def place(self, job: Job) -> str:
        pod = self._running_pod(job, Capability.INSIDE)[1]
        return f"pod {pod.metadata.name} on {pod.spec.node_name or 'its node'}"

    def enter(self, job: Job, request: Entry) -> PodChannel:
        """Enter it; the server knows no keys that detach, and closing the channel does."""
        if isinstance(request, Attach):
            return pod_channel.attach(*self._running_pod(job, Capability.STREAMS))
        return pod_channel.execute(*self._running_pod(job, Capability.INSIDE), request)

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        server, pod = self._running_pod(job, Capability.INSIDE)
        return pod_channel.processes(server, pod)

    def _running_pod(self, job: Job, capability: Capability) -> tuple[ApiServer, KubePod]:
        server, pod = self._need(capability), self._known(job.id)[1]
        if pod is None or pod.is_over:
            raise ClusterRefusedError("it has no pod that runs", where=f"job {job.shown_id}")
        return server, pod

    def faults(self) -> tuple[ClusterFault, ...]:
        return tuple(site.faults(self._opened, self._settings))

    def close(self) -> None:
        with self._lock:
            if self._mirror is not None:
                self._mirror.close()
            if self._server is not None:
                self._server.close()

    def _opened(self) -> ApiServer:
        with self._lock:
            if self._server is None:
                self._server = self._connect()
            return self._server

    def _reached(self) -> tuple[ApiServer, KubeSite]:
        server = self._opened()
        return server, self._sites.of(server, self._namespace(server))

    def _namespace(self, server: ApiServer) -> str:
        return self._settings.namespace or server.namespace

    def _copy(self) -> KubeMirror:
        with self._lock:
            if self._mirror is None:
                server, site = self._reached()
                self._mirror = KubeMirror(server, site, self._namespace(server))
            return self._mirror

    def _latest(self, *, is_anew: bool = False) -> KubePicture:
        """Return the latest picture; `is_anew`: with what a watch may not have told yet."""
        with self._lock:
            server, mirror = self._reached()[0], self._copy()
            if is_anew:
                mirror.look()
            version, now = mirror.refresh(), datetime.fromtimestamp(time.time(), UTC)
            if self._shown is not None and self._shown[0] == version:
                picture = replace(self._shown[1], snapshot=replace(self._shown[1].snapshot, taken_at=now))
            else:
                picture = self._pictures.of(mirror.objects(), server.place, now)
            is_complete = self._records.record(server, picture, mirror.sees, mirror.jobs.missing)
            self._shown = version if is_complete else None, picture
            if is_complete:
                mirror.forget(picture.deleted.keys() - picture.parts.keys())
            return replace(picture, snapshot=replace(picture.snapshot, notices=self._records.notices()))

    def _parts(self, ids: Iterable[JobId], picture: KubePicture) -> list[JobParts]:
        by_number = {each.number: each for each in picture.parts.values()}
        chosen = list(dict.fromkeys(ids))
        gone = [job_id for job_id in chosen if job_id not in by_number]
        recorded = (
            {number for job in self._records.all() for number in (job.id, job.array and job.array.id)} if gone else ()
        )
        for job_id in gone:
            if job_id not in recorded:
                raise NotFoundError(f"Kubernetes knows no job {job_id}; it removes jobs some time after their end")
        return [by_number[job_id] for job_id in chosen if job_id in by_number]

    def _known(self, job_id: JobId) -> tuple[JobParts | None, KubePod | None]:
        parts = next((each for each in self._latest().parts.values() if each.number == job_id), None)
        return parts, newest(parts.pods) if parts else None

    def _pod_to_follow(self, job_id: JobId) -> KubePod | None:
        parts, pod = self._known(job_id)
        return None if parts is None or (parts.job.has_ended and pod is None) else pod

    def _need(self, capability: Capability) -> ApiServer:
        """Return the server; raises CapabilityError if it, or this user, lacks this."""
        server, _ = self._reached()
        self.caps.need(capability)
        return server


def _together(chosen: Iterable[JobParts], picture: KubePicture) -> Iterator[JobParts]:
    """Yield jobs, one for the elements of an array that is one Job if these are all that are left of it."""
    groups: dict[str, list[JobParts]] = {}
    for parts in chosen:
        groups.setdefault(whole_uid(parts.job.metadata.uid), []).append(parts)
    for uid, group in groups.items():
        first = group[0]
        others = (picture.parts[f"{uid}/{place}"] for place in range(first.job.spec.completions or 0))
        if first.job.is_array and len(group) == sum(not each.job.has_ended for each in others):
            yield replace(first, members=tuple(group))
        else:
            yield from group


def _better(job: Job, record: Job | None) -> Job:
    """Return the record of a job that has ended if it knows the container's end, and the job's pod is gone."""
    is_known = record is not None and record.state is job.state and record.attempt is not None
    if is_known and job.state.is_terminal and (job.attempt is None or job.attempt.container_id is None):
        assert record is not None
        return record
    return job
