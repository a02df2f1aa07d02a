"""Copy of all objects that matter: listed for a single look, and watched for whoever looks again.

Each kind is listed once, then kept up to date by a watch, and listed again once that is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.cluster.kubernetes import site
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, ApiStream
from gputui.cluster.kubernetes.jobs import whole_uid
from gputui.cluster.kubernetes.objects import (
    Item,
    KubeChange,
    KubeEvent,
    KubeJob,
    KubeList,
    KubeNode,
    KubePod,
    KubeWorkload,
    read_object,
)
from gputui.cluster.kubernetes.picture import KubeObjects
from gputui.cluster.kubernetes.site import KubeSite
from gputui.domain.decoding import json_decoder
from gputui.domain.errors import ClusterError, ClusterUnavailableError

T = TypeVar("T")
PAGE = "250"
"""Number of objects in one answer."""
_WATCH = 60
"""Seconds after which the server ends a watch, to be begun anew from where it was: a lost one is silent as well."""
_SLACK = 10.0
_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
_PATIENCE = 0.2
"""Seconds for which the end of a watch is waited for."""
_CHANGE = json_decoder(KubeChange)
_GONE = 410
_UNKNOWN_USER = 401
FRESH = 0.5
"""Seconds for which a list is used as it is: most commands look once, and need no watch."""
_OF_JOBS = {"labelSelector": "job-name"}
"""Pods of jobs: the controller of jobs marks them, in every release."""
_IN_USE = {
    "labelSelector": "!job-name",
    "fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
}
"""Other pods, which may have GPUs of their node."""
_MOST_GONE = 1000
"""Number of objects of a kind that are remembered after they are gone."""
_SILENCE = 10.0
"""Seconds after which the server is asked whether it still answers: a watch is silent while nothing happens."""


class Reflector(Struct, Generic[Item], eq=False):
    _server: ApiServer
    _path: str
    _kind: type[Item]
    query: Mapping[str, str] = field(default_factory=dict)
    removed: Callable[[Item, bool], None] = lambda item, was_seen: None
    """Told of objects that no longer exist, and whether the watch saw that, from any thread."""
    keeps: Callable[[Item], object] = lambda item: True
    """Tells which ones matter."""
    changes: int = 0
    """Number of changes so far."""
    error: ClusterError | None = None
    """Reason why the copy is out of date; None while it is not."""
    _items: dict[str, Item] = field(default_factory=dict)
    _deleted: dict[str, None] = field(default_factory=dict)
    _version: str = ""
    _lock: Lock = field(default_factory=Lock)
    _closed: Event = field(default_factory=Event)
    _stream: ApiStream | None = None
    _thread: Thread | None = None

    def items(self) -> dict[str, Item]:
        with self._lock:
            return dict(self._items)

    def list(self) -> None:
        """Ask for all objects; raises ClusterError."""
        self._replace(*self._listed())

    def missing(self, uids: Collection[str]) -> set[str]:
        """Ask for all objects, and return which of these jobs, or elements, do not exist; raises ClusterError."""
        found = self._listed()[0]
        return {uid for uid in uids if whole_uid(uid) not in found}

    def look(self) -> None:
        """Take over all objects as they are now, beside a watch that may tell them later; raises ClusterError."""
        for item in self._all({"limit": PAGE})[0].values():
            self._put(item)

    def start(self) -> None:
        from gputui.threads import Watcher  # a single look starts no thread

        if self._thread is None:
            self._thread = Watcher(f"watch {self._path}", self._run, self._fail)
            self._thread.start()

    @property
    def is_watching(self) -> bool:
        return self._thread is not None and not self._closed.is_set()

    def put(self, data: bytes) -> None:
        """Take over an object that the server answered after a change, unless a later state is known."""
        item = read_object(data, self._kind)
        if item is not None and item.metadata.uid:
            self._put(item)

    def drop(self, uid: str) -> None:
        with self._lock:
            _remember(self._deleted, uid, None)
            self.changes += 1
            self._items.pop(uid, None)

    def stop(self) -> None:
        self._closed.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    def close(self) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join(_PATIENCE)  # one that waits for a silent server is left to the end of the process

    def _listed(self) -> tuple[dict[str, Item], str]:
        try:
            return self._all({"limit": PAGE})
        except ApiRefusedError as error:
            if error.status != _GONE:
                raise
            return self._all({})  # pages became too old before the last one: all at once

    def _all(self, limit: dict[str, str]) -> tuple[dict[str, Item], str]:
        found: dict[str, Item] = {}
        query = {**self.query, **limit}
        while True:
            page = self._server.read(self._path, KubeList, query)
            for raw in page.items or ():
                if (item := read_object(raw, self._kind)) is not None and self.keeps(item):
                    found[item.metadata.uid] = item
            if not page.metadata.continue_:
                return found, page.metadata.resource_version
            query = {**self.query, **limit, "continue": page.metadata.continue_}

    def _replace(self, found: dict[str, Item], version: str) -> None:
        with self._lock:
            gone = [item for uid, item in self._items.items() if uid not in found]
            self._items, self._version, self.error = found, version, None
            self.changes += 1
        for item in gone:
            self.removed(item, False)

    def _put(self, item: Item) -> None:
        meta = item.metadata
        with self._lock:
            known = self._items.get(meta.uid)
            new, old = meta.resource_version, known.metadata.resource_version if known is not None else ""
            is_older = new.isdigit() and old.isdigit() and int(new) < int(old)  # numbers in every release so far
            if meta.uid in self._deleted or is_older:
                return
            self._items[meta.uid] = item
            self.changes += 1

    def _run(self) -> None:
        pause = _PAUSE
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                if self.error is not None or not self._version:
                    self.list()
                self._watch()
                pause = _PAUSE
                self._closed.wait(_PAUSE if time.monotonic() - began < _PAUSE else 0)  # no proxy is asked in a loop
            except ClusterError as error:
                if _is_forbidden(error):  # better none than old ones
                    self._replace({}, "")
                self.error = error
                self._closed.wait(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    def _fail(self, error: Exception) -> None:
        from gputui.threads import fault_words

        self.error = ClusterUnavailableError(f"the watch of {self._path} failed: {fault_words(error)}")

    def _watch(self) -> None:
        query = {
            **self.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH),
        }
        try:
            stream = self._stream = self._server.stream(self._path, query, _WATCH + _SLACK)
            if self._closed.is_set():
                stream.close()
            for line in stream:
                if not self._take(line):
                    self.list()
                    break
        except ApiRefusedError as error:
            if error.status != _GONE:
                raise
            self.list()
        finally:
            if self._stream is not None:
                self._stream.close()

    def _take(self, line: bytes) -> bool:
        """Take over a change; return False if the watch goes on from nowhere: its version is forgotten."""
        try:
            change = _CHANGE.decode(line)
        except (msgspec.DecodeError, ValueError):
            return False
        if change.type == "ERROR":
            return False
        item = read_object(change.object, self._kind)
        if item is None:
            return True
        self._version = item.metadata.resource_version or self._version
        if not self.keeps(item):
            return True
        if change.type == "DELETED":
            self.removed(item, True)  # first: who misses it in the copy finds it there
            self.drop(item.metadata.uid)
        elif change.type in {"ADDED", "MODIFIED"}:
            self._put(item)
        return True


def _is_forbidden(error: ClusterError) -> bool:
    return isinstance(error, ApiRefusedError) and error.status != _UNKNOWN_USER


def _remember(found: dict[str, T], key: str, value: T) -> None:
    """Keep the latest values, of which this is one."""
    found.pop(key, None)
    found[key] = value
    while len(found) > _MOST_GONE:
        del found[next(iter(found))]


class KubeMirror:
    """Jobs, pods, nodes, warnings and workloads, as far as the user may see them."""

    def __init__(self, server: ApiServer, rights: KubeSite, namespace: str) -> None:
        self._server = server
        self._site = rights
        self._namespace = namespace
        self._listed_at: float | None = None
        self._heard_at = 0.0
        core, kueue = "/api/v1", rights.kueue
        jobs = self._path("/apis/batch/v1", "jobs", site.ALL_JOBS)
        self.jobs = Reflector(server, jobs, KubeJob, removed=self._remember_job)
        self.nodes = Reflector(server, f"{core}/nodes", KubeNode)
        self._gone: dict[str, KubePod] = {}
        self._deleted: dict[str, KubeJob] = {}
        pods = self._path(core, "pods", site.ALL_PODS)
        self._pods = Reflector(server, pods, KubePod, query=_OF_JOBS, removed=self._remember_pod)
        self._others = Reflector(
            server,
            pods,
            KubePod,
            query=_IN_USE,
            removed=self._remember_pod,
            keeps=lambda pod: pod.job_uid or pod.spec.gpus,  # most have no GPU, and most changes are theirs
        )
        warnings = {"fieldSelector": "type=Warning"}
        self._events = Reflector(server, self._path(core, "events", site.ALL_EVENTS), KubeEvent, query=warnings)
        self.workloads = Reflector(server, self._path(kueue, "workloads", site.ALL_WORKLOADS), KubeWorkload)

    def refresh(self) -> object:
        """Bring the copy up to date; return a token that changes with it. Raises ClusterError."""
        now = time.monotonic()
        if self._listed_at is None:
            self._list()
        elif not self.jobs.is_watching and now - self._listed_at > FRESH:
            self._list()
            for _, reflector in self._reflectors():
                reflector.start()
        elif self.jobs.is_watching and now - self._heard_at > _SILENCE:
            self._server.get("/version")
            self._heard_at = time.monotonic()
        for is_needed, reflector in self._reflectors():
            error = reflector.error if reflector.is_watching else None
            if error is not None and (is_needed or not _is_forbidden(error)):
                raise error
        return tuple(reflector.changes for _, reflector in self._reflectors())

    def look(self) -> None:
        """Take over jobs and pods that a watch has not told yet, or list all; raises ClusterError."""
        if not self.jobs.is_watching:
            self._list()
            return
        self.jobs.look()
        self._pods.look()

    def objects(self) -> KubeObjects:
        return KubeObjects(
            self.jobs.items(),
            self._others.items() | self._pods.items(),
            self.nodes.items(),
            self._events.items(),
            self.workloads.items(),
            self._site.kueue,
            dict(self._gone),
            dict(self._deleted),
        )

    def _remember_pod(self, pod: KubePod, was_seen: bool) -> None:
        """Keep the last state of a pod of a job: it tells how the job ended. One that was not over was deleted."""
        if not pod.is_over and pod.metadata.deletion_timestamp is None:
            pod = replace(pod, metadata=replace(pod.metadata, deletion_timestamp=datetime.now(UTC)))
        if pod.job_uid:
            _remember(self._gone, pod.part_uid, pod)

    def _remember_job(self, job: KubeJob, was_seen: bool) -> None:
        if was_seen:
            _remember(self._deleted, job.metadata.uid, job)

    def forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self._deleted.pop(whole_uid(uid), None)

    def sees(self, namespace: str) -> bool:
        return namespace == self._namespace or self._site.may(site.ALL_JOBS)

    def close(self) -> None:
        for _, reflector in self._reflectors():
            reflector.stop()
        for _, reflector in self._reflectors():
            reflector.close()

    def _list(self) -> None:
        for is_needed, reflector in self._reflectors():
            try:
                reflector.list()
            except ApiRefusedError as error:
                if is_needed or not _is_forbidden(error):
                    raise
        self._listed_at = self._heard_at = time.monotonic()

    def _reflectors(self) -> Iterator[tuple[bool, Kinds]]:
        """Yield the copies that the user may have, each with whether nothing works without it."""
        yield True, self.jobs
        yield True, self._pods
        yield True, self._others
        optional: Mapping[tuple[str, ...], Kinds] = {
            (site.NODES,): self.nodes,
            (site.ALL_EVENTS, site.OWN_EVENTS): self._events,
            (site.ALL_WORKLOADS, site.OWN_WORKLOADS): self.workloads,
        }
        yield from ((False, kind) for names, kind in optional.items() if any(map(self._site.may, names)))

    def _path(self, group: str, kind: str, wide: str) -> str:
        """Return the path of objects of all namespaces where the user may see them, else of her own."""
        return f"{group}/{kind}" if self._site.may(wide) else f"{group}/namespaces/{self._namespace}/{kind}"


Kinds = Reflector[KubeJob] | Reflector[KubePod] | Reflector[KubeNode] | Reflector[KubeEvent] | Reflector[KubeWorkload]
