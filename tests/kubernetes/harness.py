"""The adapter over a fake API server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from gputui.cluster.kubernetes.api_server import connect
from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.cluster.kubernetes.jobs import elements_of, number_of
from gputui.cluster.kubernetes.objects import INDEX, KubeJob, read_object
from gputui.cluster.kubernetes.site import RbacSubject, rbac
from gputui.domain.job import Job
from gputui.domain.job_spec import GpuRequest, JobId, JobSpec, Submission
from gputui.domain.settings import ClusterSettings, Settings
from gputui.ports import Cluster
from tests.factories import spec
from tests.kubernetes.fake.access import ADMIN
from tests.kubernetes.fake.objects import Manifest
from tests.kubernetes.fake.server import FakeKubernetes, kubeconfig

SETTINGS = ClusterSettings(priority_classes=("batch-low", "batch-normal", "batch-high"))
_PATIENCE = 60.0
"""Seconds in which the server answers."""


class KubernetesHarness:
    """Cluster whose jobs end when they are told to."""

    def __init__(self, fake: FakeKubernetes, directory: Path, settings: ClusterSettings = SETTINGS) -> None:
        self.fake = fake
        self.directory = directory
        self.settings = settings
        self._opened: list[KubernetesCluster] = []
        self._numbers = count()
        self.kube = self.open()
        self.cluster: Cluster = self.kube

    def open(
        self, token: str = ADMIN, user: str = "alice", *, state: str = "", namespace: str = "lab"
    ) -> KubernetesCluster:
        """Return another console's view of the cluster; with `state` one that shares notes."""
        number = next(self._numbers)
        file = self.directory / f"kubeconfig-{number}"
        file.write_text(kubeconfig(self.fake.address, token, namespace=namespace))
        made = KubernetesCluster(
            lambda: connect(None, {"KUBECONFIG": str(file)}, _PATIENCE),
            replace(Settings(), cluster=self.settings),
            self.directory / (state or f"state-{number}"),
            user=user,
        )
        self._opened.append(made)
        return made

    def as_user(self, name: str, *, is_operator: bool = False, is_wide: bool = True) -> KubernetesCluster:
        """Return the view of a user with the rights that `gputui cluster rbac` grants."""
        token = self.fake.access.add_user(name)
        for document in rbac("lab", RbacSubject("User", name), is_operator=is_operator, is_wide=is_wide):
            self.fake.access.apply(document)
        return self.open(token, name)

    def spec(self, gpus: int = 0) -> JobSpec:
        return spec(gpus)

    def contained(self, script: str) -> JobSpec:
        return spec(command=("sh", "-c", script))

    def pod(self, job: Job) -> Manifest:
        """Return the newest pod of a job."""
        name = self._name(job)
        found = [pod for pod in self.fake.objects.all("pods") if pod["metadata"]["name"].startswith(name)]
        return max(found, key=lambda pod: str(pod["metadata"]["name"]))

    def _name(self, job: Job) -> str:
        """Return the beginning of the names of a job's pods."""
        for each in self.fake.objects.all("jobs"):
            read = read_object(json.dumps(each).encode(), KubeJob)
            for part in elements_of(read, {}) if read is not None else ():
                if number_of(part) == job.id:
                    middle = f"-{part.metadata.label(INDEX)}-" if part.is_array else ""
                    return f"{each['metadata']['name']}{middle}"
        raise LookupError(job.id)

    def finish(self, job: Job, exit_code: int = 0) -> None:
        self.fake.controller.finish(self.pod(job), exit_code)

    def submit_as_another(self, spec: JobSpec) -> JobId:
        """Submit a job of another user, in his own namespace, that waits."""
        theirs = self.open(user="bob", namespace="other")
        waits = replace(spec, gpus=GpuRequest(9, 9))
        return theirs.submit([Submission(waits)], "of-bob")[0]

    def without_rights(self) -> Cluster:
        return self.as_user("eve")

    def signals(self, job: Job) -> Sequence[int]:
        raise NotImplementedError

    def close(self) -> None:
        for cluster in self._opened:
            cluster.close()
