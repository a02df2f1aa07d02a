"""Changes of jobs and nodes. Refusals have Kubernetes' own words, ours in front."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from gputui.cluster.change_results import ChangeResults
from gputui.cluster.kubernetes import picture
from gputui.cluster.kubernetes.api_server import MERGE_PATCH, ApiRefusedError, ApiServer
from gputui.cluster.kubernetes.jobs import CANCELLED, JobParts, whole_uid
from gputui.cluster.kubernetes.manifest import QUEUE
from gputui.cluster.kubernetes.mirror import KubeMirror
from gputui.cluster.kubernetes.objects import INDEX, KubeJob, KubeList, KubePod, Reader
from gputui.cluster.kubernetes.submission import LATER_QUEUE, jobs_path
from gputui.domain.action import DrainGpus, ResumeGpus
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.job_spec import JobId

_GONE, _CHANGED = 404, 409
_TRIES = 4
"""Number of further tries for a job that changes at the same time."""


def cancel(
    server: ApiServer,
    mirror: KubeMirror,
    chosen: Iterable[JobParts],
    prepare: Callable[[JobParts], Callable[[], None]],
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
    """Delete the pod of an element of an array that is one Job, which fails then, and note that this was meant."""
    pods = [pod.metadata for pod in parts.pods if not pod.is_over]
    if not pods:
        what = "it has no pod yet, and Kubernetes makes one in its turn: cancel the whole array"
        raise ClusterRefusedError(what)
    for pod in pods:
        _delete(server, f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}", pod.uid)
    place = parts.job.metadata.label(INDEX)

    def noted(fresh: JobParts) -> dict[str, Any]:
        earlier = fresh.job.metadata.annotation(CANCELLED)
        return {"metadata": {"annotations": {CANCELLED: f"{earlier},{place}".strip(",")}}}

    _patch(server, mirror, parts, noted)


def _patch(
    server: ApiServer,
    mirror: KubeMirror,
    parts: JobParts,
    change: Callable[[JobParts], dict[str, Any]],
    *,
    is_hold: bool = False,
) -> None:
    """Change a job in the state that was looked at; look again if it has changed in the meantime."""
    for is_last in (*[False] * _TRIES, True):
        try:
            fresh = _fresh(server, parts, is_hold)
            meta, body = fresh.job.metadata, change(fresh)
            body["metadata"]["resourceVersion"] = meta.resource_version
            mirror.jobs.put(server.send("PATCH", jobs_path(meta.namespace, meta.name), body, kind=MERGE_PATCH))
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
        _patch(server, mirror, parts, lambda fresh: _suspended(fresh, is_on), is_hold=is_on)

    return _each(chosen, "held" if is_on else "released", changed)


def _suspended(parts: JobParts, is_on: bool) -> dict[str, Any]:
    """Return the change by which a job is suspended or resumed."""
    if not is_on and parts.kueue and (queue := parts.job.metadata.annotation(LATER_QUEUE)):
        return {"metadata": {"labels": {QUEUE: queue}, "annotations": {LATER_QUEUE: None}}}
    return {"metadata": {}, "spec": {"suspend": is_on}}


def _fresh(server: ApiServer, parts: JobParts, is_on: bool) -> JobParts:
    """Return a job as it is now; raises ClusterRefusedError for a hold once it has started: it would lose its pod."""
    meta = parts.job.metadata
    job = Reader(KubeJob).read(server.get(jobs_path(meta.namespace, meta.name)))
    if job is None or job.metadata.uid != whole_uid(meta.uid):
        raise ClusterRefusedError("it is gone")
    query = {"labelSelector": f"job-name={meta.name}"}
    pods = server.read(f"/api/v1/namespaces/{meta.namespace}/pods", KubeList, query).items
    found = (Reader(KubePod).read(each) for each in pods or ())
    if is_on and any(pod is not None and pod.status.phase != "Pending" for pod in found):
        raise ClusterRefusedError("it has started")
    return replace(parts, job=job)


def cordon(server: ApiServer, mirror: KubeMirror, action: DrainGpus | ResumeGpus, user: str) -> None:
    """Keep new pods from nodes, or let them start there again."""
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
    """Change each job in turn."""
    with ChangeResults(done_words) as results:
        for parts in chosen:
            with results.of(parts.shown_id, parts.numbers):
                change(parts)
        return results.ids()
