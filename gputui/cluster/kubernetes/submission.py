"""Submission of jobs, once for each key, whatever is killed in between; changes of jobs and nodes.

A job's name is made of its key, and the server refuses a second job of that name: so a repeated submission finds the
jobs of the first one. Refusals have Kubernetes' own words, ours in front.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from gputui.cluster.journal import Submissions
from gputui.cluster.kubernetes import manifest, picture
from gputui.cluster.kubernetes.api_server import MERGE_PATCH, ApiRefusedError, ApiServer
from gputui.cluster.kubernetes.jobs import CANCELLED, JobParts, parts_uids, whole_uid
from gputui.cluster.kubernetes.manifest import KEY, QUEUE, SUBMITTER, KubeTarget
from gputui.cluster.kubernetes.mirror import KubeMirror
from gputui.cluster.kubernetes.objects import INDEX, RESOURCES, KubeJob, KubeList, KubePod, read_object
from gputui.cluster.shared import ChangeResults
from gputui.domain.action import DrainGpus, ResumeGpus
from gputui.domain.errors import ClusterRefusedError, InputError
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import Settings

_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,38}[A-Za-z0-9])?", re.ASCII)
_OPTION = re.compile(r"(?P<option>--[a-z-]+)(?:=\S*)?: (?P<why>.*)")
LATER_QUEUE = "gputui.queue"
"""Annotation with the queue of a job that is held: Kueue takes no notice of it before it has Kueue's label."""
_LOST = [{"type": "DisruptionTarget", "status": "True"}]
_STRICT = {"fieldValidation": "Strict"}
"""Asks the server to refuse fields that it does not know; releases before 1.25 drop them."""
_EXISTS = 409


def jobs_path(namespace: str, name: str = "") -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


class KubeSubmitter(Struct, eq=False):
    _settings: Settings
    _submissions: Submissions
    _user: str
    _created: Callable[[bytes], None]
    """Told of each job that the server has created or found."""

    def submit(
        self, server: ApiServer, target: KubeTarget, submissions: Sequence[Submission], key: str, *, has_kueue: bool
    ) -> tuple[KubeJob, ...]:
        """Submit jobs that were not submitted with this key before; return all of them, of some arrays one."""
        namespace = target.namespace
        if not _KEY.fullmatch(key):
            raise InputError("a key has up to 40 letters, digits, dots, dashes and underscores", where=key[:64])
        keys = [key if index == 0 else f"{key}.{index}" for index in range(len(submissions))]
        drafts = [self.drafts(each, its, target, has_kueue) for each, its in zip(submissions, keys, strict=True)]
        if self._submissions.of_key(keys[0]) is None and sum(map(len, drafts)) > 1:
            for documents in drafts:  # the server checks one job of each submission before any is created
                self.check(server, namespace, documents[0])
        found: list[KubeJob] = []
        for submission, its_key, documents in zip(submissions, keys, drafts, strict=True):
            if self._submissions.of_key(its_key) is None:
                self._submissions.intend(its_key, submission, namespace=namespace)
            created: list[KubeJob] = []
            for document in documents:
                if document["kind"] == "Job":
                    created.append(self._create(server, namespace, document))
                else:
                    _claim(server, namespace, document, created[-1])
            self._submissions.note_jobs(its_key, uids=tuple(uid for job in created for uid in parts_uids(job)))
            found += created
        return tuple(found)

    def drafts(self, submission: Submission, key: str, target: KubeTarget, has_kueue: bool) -> list[dict[str, Any]]:
        """Return what becomes of a submission; raises InputError for what Kubernetes has no counterpart of."""
        for sentence in manifest.left_out(submission, self._settings, target):
            match = _OPTION.fullmatch(sentence)
            raise InputError(match["why"] if match else sentence, where=match["option"] if match else "submit")
        documents = list(manifest.manifests(submission, key, self._settings, target))
        if not target.claims and any(each["kind"] != "Job" for each in documents):
            what = "this server has no claims of devices, by which jobs would get their GPUs"
            raise InputError(what, where="cluster.kubernetes.device_class")
        seconds = max(1, self._settings.cluster.keep_ended // timedelta(seconds=1))
        for document in documents:
            meta = document["metadata"]
            meta.pop("namespace", None)
            if document["kind"] != "Job":
                continue
            meta.setdefault("annotations", {})[SUBMITTER] = self._user
            if submission.held and has_kueue and QUEUE in meta["labels"]:
                meta["annotations"][LATER_QUEUE] = meta["labels"].pop(QUEUE)
            # a job tells that its pod was taken away, even once that is gone; early releases drop the rule
            action = "FailIndex" if "backoffLimitPerIndex" in document["spec"] else "FailJob"
            policy = {"rules": [{"action": action, "onPodConditions": _LOST}]}
            document["spec"] |= {"ttlSecondsAfterFinished": seconds, "podFailurePolicy": policy}
        return documents

    def check(self, server: ApiServer, namespace: str, document: Mapping[str, Any]) -> tuple[str, ...]:
        """Ask the server whether it would take a job; return what it warns of. Raises ClusterRefusedError."""
        try:
            return server.try_out(jobs_path(namespace), document, _STRICT)
        except ApiRefusedError as error:
            if error.status != _EXISTS:
                raise _refused(error) from error
            return ()

    def _create(self, server: ApiServer, namespace: str, document: Mapping[str, Any]) -> KubeJob:
        name = document["metadata"]["name"]
        try:
            data = server.send("POST", jobs_path(namespace), document, _STRICT)
        except ApiRefusedError as error:
            if error.status != _EXISTS:
                raise _refused(error) from error
            data = server.get(jobs_path(namespace, name))
        job = read_object(data, KubeJob)
        if job is None:
            raise ClusterRefusedError("the server's answer is no job", where=name)
        if job.metadata.label(KEY) != document["metadata"]["labels"][KEY]:
            raise ClusterRefusedError("another job has this name", where=name)
        self._created(data)
        return job


def _claim(server: ApiServer, namespace: str, document: Mapping[str, Any], job: KubeJob) -> None:
    """Create the template of a job's claims, which goes with the job; its pods wait for it until then."""
    meta = job.metadata
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta.name, "uid": meta.uid}
    made = {**document, "metadata": document["metadata"] | {"ownerReferences": [owner]}}
    version = document["apiVersion"].removeprefix(f"{RESOURCES}/")
    try:
        path = f"/apis/{RESOURCES}/{version}/namespaces/{namespace}/resourceclaimtemplates"
        server.send("POST", path, made, _STRICT)
    except ApiRefusedError as error:
        if error.status != _EXISTS:
            raise _refused(error) from error


def _refused(error: ApiRefusedError) -> ClusterRefusedError:
    return ClusterRefusedError(f"Kubernetes refused the job: {error.what}", hint=error.hint)


_GONE, _CHANGED = 404, 409
_TRIES = 4
"""Number of further tries for a job that changes at the same time."""


def cancel(
    server: ApiServer, mirror: KubeMirror, chosen: Iterable[JobParts], prepare: Callable[[JobParts], Callable[[], None]]
) -> tuple[JobId, ...]:
    """Remove jobs with their pods; a job is shown until its pods have ended.

    `prepare` is called before each, and what it returns afterwards. What the server answers goes into the mirror.
    """

    def cancelled(parts: JobParts) -> None:
        then, meta = prepare(parts), parts.job.metadata
        if parts.job.is_array and not parts.members:
            _cancel_element(server, mirror, parts)
        else:
            path = jobs_path(meta.namespace, meta.name)
            mirror.jobs.put(_delete(server, path, whole_uid(meta.uid), propagationPolicy="Foreground"))
        then()

    return _each(chosen, "cancelled", cancelled)


def _delete(server: ApiServer, path: str, uid: str, **how: str) -> bytes:
    """Delete an object; return it, nothing if it is gone or another one has its name."""
    body = {"apiVersion": "v1", "kind": "DeleteOptions", **how, "preconditions": {"uid": uid}}
    try:
        return server.send("DELETE", path, body)
    except ApiRefusedError as error:
        if error.status not in {_GONE, _CHANGED}:
            raise
        return b""


def _cancel_element(server: ApiServer, mirror: KubeMirror, parts: JobParts) -> None:
    pods = [pod.metadata for pod in parts.pods if not pod.is_over]
    if not pods:
        what = "it has no pod yet, and Kubernetes makes one in its turn: cancel the whole array"
        raise ClusterRefusedError(what)
    for pod in pods:
        _delete(server, f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", pod.uid)
    place = parts.job.metadata.label(INDEX)

    def noted(job: KubeJob) -> dict[str, Any]:
        earlier = job.metadata.annotation(CANCELLED)
        return {"metadata": {"annotations": {CANCELLED: f"{earlier},{place}".strip(",")}}}

    _patch(server, mirror, parts, noted)


def _patch(
    server: ApiServer,
    mirror: KubeMirror,
    parts: JobParts,
    change: Callable[[KubeJob], dict[str, Any]],
    *,
    is_hold: bool = False,
) -> None:
    """Change a job as it is now; look again if it changes in the meantime.

    Raises ClusterRefusedError for a hold once it has started: it would lose its pod.
    """
    meta = parts.job.metadata
    path, pods = jobs_path(meta.namespace, meta.name), f"/api/v1/namespaces/{meta.namespace}/pods"
    for is_last in (*[False] * _TRIES, True):
        try:
            job = read_object(server.get(path), KubeJob)
            if job is None or job.metadata.uid != whole_uid(meta.uid):
                raise ClusterRefusedError("it is gone")
            listed = server.read(pods, KubeList, {"labelSelector": f"job-name={meta.name}"}).items
            found = (read_object(each, KubePod) for each in listed or ())
            if is_hold and any(pod is not None and pod.status.phase != "Pending" for pod in found):
                raise ClusterRefusedError("it has started")
            body = change(job)
            body["metadata"]["resourceVersion"] = job.metadata.resource_version
            mirror.jobs.put(server.send("PATCH", path, body, kind=MERGE_PATCH))
            return
        except ApiRefusedError as error:
            if error.status != _CHANGED:
                raise
            if is_last:
                raise ClusterRefusedError("it has changed in the meantime") from error


def hold(server: ApiServer, mirror: KubeMirror, chosen: Iterable[JobParts], is_on: bool) -> tuple[JobId, ...]:
    """Suspend waiting jobs, and take those of Kueue out of their queues; or let held jobs start."""

    def changed(parts: JobParts) -> None:
        if parts.job.is_array and not parts.members:
            what = "its array is one Job of Kubernetes, held and released as a whole, before any element has started"
            raise ClusterRefusedError(what)
        if parts.is_queued and parts.workload is not None:
            meta = parts.workload.metadata
            path = f"{parts.kueue}/namespaces/{meta.namespace}/workloads/{meta.name}"
            mirror.workloads.put(server.send("PATCH", path, {"spec": {"active": not is_on}}, kind=MERGE_PATCH))
            return

        def suspended(job: KubeJob) -> dict[str, Any]:
            if not is_on and parts.kueue and (queue := job.metadata.annotation(LATER_QUEUE)):
                return {"metadata": {"labels": {QUEUE: queue}, "annotations": {LATER_QUEUE: None}}}
            return {"metadata": {}, "spec": {"suspend": is_on}}

        _patch(server, mirror, parts, suspended, is_hold=is_on)

    return _each(chosen, "held" if is_on else "released", changed)


def cordon(server: ApiServer, mirror: KubeMirror, action: DrainGpus | ResumeGpus, user: str) -> None:
    reason = (" ".join(action.reason.split()) or "no reason given") if isinstance(action, DrainGpus) else None
    notes = {picture.REASON: reason, picture.BY: user, picture.AT: datetime.now(UTC).isoformat(timespec="seconds")}
    annotations = notes if reason is not None else dict.fromkeys(notes)
    change = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": reason is not None or None}}
    with ChangeResults("resumed" if reason is None else "drained", "node") as results:
        for node in action.uuids:
            with results.of(node):
                try:
                    path = f"/api/v1/nodes/{quote(node, safe='')}"
                    mirror.nodes.put(server.send("PATCH", path, change, kind=MERGE_PATCH))
                except ApiRefusedError as error:
                    if error.status != _GONE:
                        raise
                    raise ClusterRefusedError(f"invalid node name: {error.what}") from error
        results.ids()


def _each(chosen: Iterable[JobParts], done_words: str, change: Callable[[JobParts], None]) -> tuple[JobId, ...]:
    with ChangeResults(done_words) as results:
        for parts in chosen:
            with results.of(parts.shown_id, parts.numbers):
                change(parts)
        return results.ids()
