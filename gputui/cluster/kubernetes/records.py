"""Jobs that have ended, recorded with their output before Kubernetes removes them; and output of those that it has."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from msgspec import Struct

from gputui.cluster.journal import Journal, write_whole
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, ApiStream
from gputui.cluster.kubernetes.jobs import JobParts, exit_code_of, newest
from gputui.cluster.kubernetes.objects import KubeJob, KubePod
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import ClusterError, ClusterUnavailableError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.domain.text import plain

_PATIENCE = 5.0
"""Seconds for which the node of a pod may be silent while its output is copied."""
_PAUSE = 1.0
"""Seconds between two looks at a pod that has not started."""
_MOST_WORDS = 300
MOST_KEPT = 64 * 1024**2
MOST_LINES = 50_000
"""Bytes and last lines of a job's output that are kept."""
_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]+(Z|[+-]\d\d:\d\d)( |$)")
"""Beginning of each line of output: nodes answer with their complaints in its place, and call that a success."""
_NOT_YET, _GONE = 400, 404
_QUIET = frozenset({_NOT_YET, _GONE})
MOST_AT_ONCE = 4
"""Number of jobs whose output is copied at one look; the others follow at the next ones."""
_SILENCE = 60.0
"""Seconds for which a node that did not answer is not asked for the output of pods that are being removed."""
_MOST_TRIES = 3
"""Number of looks after which a job is recorded without its output, because its node does not answer."""


class KubeEnded(Struct, frozen=True):
    """A job that has ended, as it was last seen."""

    uid: str
    job: Job
    log: str = ""
    """Name of the file with its output; empty if none was kept."""


class PodLog:
    """Lines of a pod's container, with their times; with `pod_of` those still to come."""

    is_stamped = True

    def __init__(
        self,
        server: ApiServer,
        pod: KubePod | None,
        tail: int | None,
        pod_of: Callable[[], KubePod | None] | None,
        kept: KeptLog | None = None,
    ) -> None:
        """`pod_of` returns the pod to follow, None once the job has ended without one.

        `kept` is a copy of the output, for a node that does not have it any more or does not answer.
        """
        if pod_of is None and pod is None:
            raise NotFoundError("Kubernetes has no pod of it any more, and its output was not kept on this machine")
        self._kept = kept
        self._server = server
        self._pod = pod
        self._tail = tail
        self._pod_of = pod_of
        self._stream: ApiStream | None = None
        self._closed = Event()

    def __iter__(self) -> Iterator[bytes]:
        number = 0
        try:
            for line in self._lines():
                if not _STAMP.match(line):
                    raise NotFoundError(f"its output cannot be read: {_words(line)}")
                number += 1
                yield line
        except (ClusterError, NotFoundError):
            if self._kept is None or number:
                raise
            yield from self._kept

    def _lines(self) -> Iterator[bytes]:
        stream = self._opened()
        if stream is not None:
            try:
                yield from stream
            finally:
                stream.close()

    def close(self) -> None:
        self._closed.set()
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> ApiStream | None:
        """Return the output as soon as there is some; None if there never will be."""
        pod = self._pod
        while not self._closed.is_set():
            try:
                if pod is not None:
                    return self._open(pod)
            except ApiRefusedError as error:
                if self._pod_of is None or error.status not in _QUIET:
                    raise (
                        NotFoundError(f"it has no output: {error.what}") if error.status in _QUIET else error
                    ) from error
            self._closed.wait(_PAUSE)
            pod = self._pod_of() if self._pod_of is not None else None
            if pod is None:
                return None
        return None

    def _open(self, pod: KubePod) -> ApiStream:
        query = log_query(pod) | ({} if self._tail is None else {"tailLines": str(self._tail)})
        query |= {"follow": "true"} if self._pod_of is not None else {}
        stream = self._stream = self._server.stream(log_path(pod), query, None)
        if self._closed.is_set():
            stream.close()
        return stream


class KeptLog:
    """Lines of a copy of a job's output, with their times."""

    is_stamped = True

    def __init__(self, path: Path, tail: int | None) -> None:
        try:
            *lines, rest = path.read_bytes().split(b"\n")
        except OSError as error:
            raise NotFoundError("its output was not kept on this machine", where=str(path)) from error
        lines += [rest] if rest else []
        self._lines = lines if tail is None else lines[max(0, len(lines) - tail) :]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._lines)

    def close(self) -> None:
        pass


class LogKeeper:
    """Copies of the output of jobs, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, name: str) -> Path:
        return self._directory / name

    def keep(self, server: ApiServer, pod: KubePod) -> str:
        """Copy the output of a pod; return the name of the copy, which may be an earlier one, empty if there is none.

        Raises ClusterUnavailableError: the server asks the pod's node, which may be down.
        """
        query = log_query(pod) | {"limitBytes": str(MOST_KEPT), "tailLines": str(MOST_LINES)}
        name = f"{pod.metadata.uid}.log"
        try:
            data = server.get(log_path(pod), query, _PATIENCE)
        except ApiRefusedError:
            return name if self.path(name).exists() else ""
        if data and not _STAMP.match(data):
            return name if self.path(name).exists() else ""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.path(name), data)
        return name


def _words(line: bytes) -> str:
    return plain(" ".join(line.decode(errors="replace").split()))[:_MOST_WORDS]


def log_path(pod: KubePod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/log"


def log_query(pod: KubePod) -> dict[str, str]:
    """Return what asks for the output of a pod's container, with times."""
    name = pod.main.name
    return {"timestamps": "true"} | ({"container": name} if name else {})


class KubeRecords:
    """Jobs that were submitted or cancelled from here, after their end."""

    def __init__(self, directory: Path, user: str) -> None:
        self._user = user
        self._journal = Journal(directory / "ended.jsonl", KubeEnded)
        self._by_number: dict[JobId, KubeEnded] = {}
        self._by_uid: dict[str, KubeEnded] = {}
        self._logs = LogKeeper(directory / "logs")
        self._living: dict[str, Job] = {}
        self._tries: dict[str, int] = {}
        self._silent: dict[str, float] = {}
        """Times at which nodes did not answer, by name: a node may have many pods, each with its patience."""
        self._copied_steps: set[tuple[str, bool]] = set()
        """Pods whose output was copied before their job had ended: uid, and whether their container had ended."""

    def of(self, number: JobId) -> Job | None:
        """Return the record of a job."""
        self._refresh()
        found = self._by_number.get(number)
        return found.job if found is not None else None

    def all(self) -> Iterator[Job]:
        """Yield all recorded jobs."""
        self._refresh()
        yield from [each.job for each in self._by_number.values()]

    def log_of(self, number: JobId) -> Path | None:
        """Return the copy of a job's output; None if there is none."""
        self._refresh()
        found = self._by_number.get(number)
        path = self._logs.path(found.log) if found is not None and found.log else None
        return path if path is not None and path.exists() else None

    def _of_uid(self, uid: str) -> KubeEnded | None:
        self._refresh()
        return self._by_uid.get(uid)

    def _add(self, uid: str, job: Job, log: str = "") -> None:
        self._journal.append([KubeEnded(uid, job, log)])

    def _refresh(self) -> None:
        is_new, found = self._journal.fresh()
        if is_new:
            self._by_number, self._by_uid = {}, {}
        for each in found:
            self._by_number[each.job.id] = self._by_uid[each.uid] = each

    def seen(self, server: ApiServer, parts: Mapping[str, JobParts], jobs: Mapping[str, Job]) -> bool:
        """Record jobs submitted from here that have ended; return False if some were left for the next look."""
        ours = [uid for uid, each in parts.items() if each.known is not None]
        new = [uid for uid in ours if jobs[uid].state.is_terminal and not self._is_recorded(uid, jobs[uid])]
        done = 0
        for uid in new[:MOST_AT_ONCE]:
            try:
                self._add(uid, jobs[uid], self._copied(server, parts[uid]))
            except ClusterUnavailableError:
                self._tries[uid] = self._tries.get(uid, 0) + 1
                if self._tries[uid] < _MOST_TRIES:
                    break  # the others may be on the same node, each with its patience
                self._add(uid, jobs[uid])
            done += 1
        self._living = {uid: jobs[uid] for uid in ours if not jobs[uid].state.is_terminal}
        for uid in ours:
            if jobs[uid].state is JobState.COMPLETING:
                self._complete(server, parts[uid])
        return done == len(new)

    def _complete(self, server: ApiServer, parts: JobParts) -> None:
        """Copy the output of a pod that is being removed, and once more when its container has ended.

        Add to the record of a cancelled job how its container ended.
        """
        uid, pod = parts.job.metadata.uid, newest(parts.pods)
        code = exit_code_of(pod)
        if pod is None or (code is None and pod.metadata.deletion_timestamp is None):
            return
        record, step = self._of_uid(uid), (pod.metadata.uid, code is not None)
        if step in self._copied_steps or (code is None and record is not None):  # `cancel` has copied it
            return
        self._copied_steps.add(step)
        node, log = pod.spec.node_name or "", ""
        if time.monotonic() - self._silent.get(node, -_SILENCE) >= _SILENCE:
            try:
                log = self._copied(server, parts)
            except ClusterUnavailableError:
                self._silent[node] = time.monotonic()
        if record is not None and code is not None and record.job.exit_code is None:
            ended = record.job.with_attempt(exit_code=code) if record.job.attempts else record.job
            self._add(uid, ended.evolve(exit_code=code), log or record.log)

    def cancelling(self, server: ApiServer, parts: JobParts, job: Job) -> Callable[[], None]:
        """Copy the output of a job that is about to be deleted; return what records it once it is."""
        try:
            log = self._copied(server, parts)
        except ClusterUnavailableError:
            log = ""
        return lambda: self._add(parts.job.metadata.uid, _cancelled(job, "cancelled", self._user), log)

    def removed(self, job: KubeJob) -> None:
        """Record a job that somebody else deleted while it was watched."""
        living = self._living.pop(job.metadata.uid, None)
        if living is not None and self._of_uid(job.metadata.uid) is None:
            self._add(job.metadata.uid, _cancelled(living, "deleted in Kubernetes", ""))

    def _is_recorded(self, uid: str, job: Job) -> bool:
        found = self._of_uid(uid)
        return found is not None and found.job.state is job.state

    def _copied(self, server: ApiServer, parts: JobParts) -> str:
        pod = newest(parts.pods)
        return self._logs.keep(server, pod) if pod is not None and pod.status.start_time is not None else ""


def _cancelled(job: Job, words: str, user: str) -> Job:
    now, cause = datetime.now(UTC), Cause(CauseCode.CANCELLED, words)
    ended = job.with_attempt(ended_at=now, cause=cause) if job.attempts else job
    return ended.evolve(state=JobState.CANCELLED, ended_at=now, cause=cause, cancelled_by=user, held=False)
