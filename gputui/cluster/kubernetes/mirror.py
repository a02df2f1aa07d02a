"""Copy of all objects that matter: listed for a single look, and watched for whoever looks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from gputui.cluster.kubernetes import calls
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer
from gputui.cluster.kubernetes.objects import KubeEvent, KubeJob, KubeNode, KubePod, KubeWorkload
from gputui.cluster.kubernetes.picture import KubeObjects
from gputui.cluster.kubernetes.reflector import Reflector
from gputui.cluster.kubernetes.site import KubeSite

FRESH = 0.5
"""Seconds for which a list is used as it is: most commands look once, and need no watch."""
_MOST_GONE = 1000
"""Number of pods that are remembered after they are gone."""
_SILENCE = 10.0
"""Seconds after which the server is asked whether it still answers: a watch is silent while nothing happens."""


class KubeMirror:
    """Jobs, pods, nodes, warnings and workloads, as far as the user may see them."""

    def __init__(
        self, server: ApiServer, site: KubeSite, namespace: str, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.on_job_removed: Callable[[KubeJob], None] = lambda job: None
        """Called with jobs that no longer exist, from any thread."""
        self._server = server
        self._site = site
        self._namespace = namespace
        self._monotonic = monotonic
        self._listed_at: float | None = None
        self._heard_at = 0.0
        core, kueue = "/api/v1", site.kueue
        self.jobs = Reflector(
            server,
            self._path("/apis/batch/v1", "jobs", calls.ALL_JOBS),
            KubeJob,
            removed=lambda job: self.on_job_removed(job),
        )
        self.nodes = Reflector(server, f"{core}/nodes", KubeNode)
        self._gone: dict[str, KubePod] = {}
        self._pods = Reflector(server, self._path(core, "pods", calls.ALL_PODS), KubePod, removed=self._remember)
        warnings = {"fieldSelector": "type=Warning"}
        self._events = Reflector(server, self._path(core, "events", calls.ALL_EVENTS), KubeEvent, query=warnings)
        self._workloads = Reflector(server, self._path(kueue, "workloads", calls.ALL_WORKLOADS), KubeWorkload)

    def refresh(self) -> object:
        """Bring the copy up to date; return a token that changes with it. Raises ClusterError."""
        now = self._monotonic()
        if self._listed_at is None:
            self._list()
        elif not self.jobs.is_watching and now - self._listed_at > FRESH:
            self._list()
            for _, reflector in self._reflectors():
                reflector.start()
        elif self.jobs.is_watching and now - self._heard_at > _SILENCE:
            self._server.get("/version")
            self._heard_at = self._monotonic()
        for is_needed, reflector in self._reflectors():
            error = reflector.error if reflector.is_watching else None
            if error is not None and (is_needed or not isinstance(error, ApiRefusedError)):
                raise error
        return tuple(reflector.changes for _, reflector in self._reflectors())

    def objects(self) -> KubeObjects:
        """Return all objects as they are now."""
        return KubeObjects(
            self.jobs.items(),
            self._pods.items(),
            self.nodes.items(),
            self._events.items(),
            self._workloads.items(),
            self._site.kueue,
            dict(self._gone),
        )

    def _remember(self, pod: KubePod) -> None:
        """Keep the last state of a pod of a job: it tells how the job ended."""
        if pod.job_uid:
            self._gone.pop(pod.job_uid, None)
            self._gone[pod.job_uid] = pod
            while len(self._gone) > _MOST_GONE:
                del self._gone[next(iter(self._gone))]

    def put_workload(self, data: bytes) -> None:
        """Take over a workload that the server answered after a change."""
        self._workloads.put(data)

    def close(self) -> None:
        """End the watches."""
        for _, reflector in self._reflectors():
            reflector.stop()
        for _, reflector in self._reflectors():
            reflector.close()

    def _list(self) -> None:
        for is_needed, reflector in self._reflectors():
            try:
                reflector.list()
            except ApiRefusedError:
                if is_needed:
                    raise
        self._listed_at = self._heard_at = self._monotonic()

    def _reflectors(self) -> Iterator[tuple[bool, Kinds]]:
        """Yield the copies that the user may have, each with whether nothing works without it."""
        yield True, self.jobs
        yield True, self._pods
        for names, reflector in self._optional().items():
            if any(map(self._site.may, names)):
                yield False, reflector

    def _optional(self) -> Mapping[tuple[str, ...], Kinds]:
        return {
            (calls.NODES,): self.nodes,
            (calls.ALL_EVENTS, calls.OWN_EVENTS): self._events,
            (calls.ALL_WORKLOADS, calls.OWN_WORKLOADS): self._workloads,
        }

    def _path(self, group: str, kind: str, wide: str) -> str:
        """Return the path of objects of all namespaces where the user may see them, else of her own."""
        return f"{group}/{kind}" if self._site.may(wide) else f"{group}/namespaces/{self._namespace}/{kind}"


Kinds = Reflector[KubeJob] | Reflector[KubePod] | Reflector[KubeNode] | Reflector[KubeEvent] | Reflector[KubeWorkload]
