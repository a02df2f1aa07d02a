"""Submission of jobs, once for each key, whatever is killed in between.

A job's name is made of its key, and the server refuses a second job of that name: so a repeated submission finds the
jobs of the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from gputui.cluster.kubernetes import manifest
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer
from gputui.cluster.kubernetes.jobs import parts_uids
from gputui.cluster.kubernetes.manifest import KEY, QUEUE, SUBMITTER, KubeTarget
from gputui.cluster.kubernetes.objects import RESOURCES, KubeJob, Reader
from gputui.cluster.submissions import Submissions
from gputui.domain.errors import ClusterRefusedError, InputError
from gputui.domain.job_spec import Submission
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
    """Return the path of the jobs of a namespace, or of one of them."""
    return f"/apis/batch/v1/namespaces/{namespace}/jobs" + (f"/{name}" if name else "")


class KubeSubmitter:
    """Submits jobs and remembers what it submitted."""

    def __init__(
        self,
        settings: Settings,
        submissions: Submissions,
        user: str,
        created: Callable[[bytes], None],
    ) -> None:
        """`created` is told of each job that the server has created or found."""
        self._settings = settings
        self._submissions = submissions
        self._user = user
        self._created = created
        self._reader = Reader(KubeJob)

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
            self._submissions.settle(its_key, uids=tuple(uid for job in created for uid in parts_uids(job)))
            found += created
        return tuple(found)

    def drafts(self, submission: Submission, key: str, target: KubeTarget, has_kueue: bool) -> list[dict[str, Any]]:
        """Return what becomes of a submission; raises InputError for what Kubernetes has no counterpart of."""
        for sentence in manifest.left_out(submission, self._settings, target):
            match = _OPTION.fullmatch(sentence)
            raise InputError(match["why"] if match else sentence, where=match["option"] if match else "submit")
        classes = self._settings.cluster.priority_classes
        if classes and len(classes) != 3:
            hint = "name three PriorityClasses: for low, normal and high"
            raise InputError("has not three entries", where="cluster.priority_classes", hint=hint)
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
        """Create a job, or return the one that an earlier call created."""
        name = document["metadata"]["name"]
        try:
            data = server.send("POST", jobs_path(namespace), document, _STRICT)
        except ApiRefusedError as error:
            if error.status != _EXISTS:
                raise _refused(error) from error
            data = server.get(jobs_path(namespace, name))
        job = self._reader.read(data)
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
