"""Jobs that have ended, recorded with their output before Kubernetes removes them; and output of those that it has."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.cluster.journal import Index, Submissions, Submitted, write_whole
from gputui.cluster.kubernetes.api_server import ApiRefusedError, ApiServer, ApiStream
from gputui.cluster.kubernetes.jobs import JobParts, array_number, exit_code_of, job_of, newest, single_number
from gputui.cluster.kubernetes.manifest import label
from gputui.cluster.kubernetes.objects import KubePod, one_line
from gputui.cluster.kubernetes.picture import KubePicture
from gputui.domain.cluster import element_id
from gputui.domain.errors import Cause, CauseCode, ClusterError, ClusterUnavailableError, NotFoundError, end_unknown
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Notice
from gputui.domain.state import JobState
from gputui.domain.text import plain

log = logging.getLogger(__name__)

_PATIENCE = 5.0
"""Seconds for which the node of a pod may be silent while its output is copied."""
_PAUSE = 1.0
"""Seconds between two looks at a pod that has not started."""
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
_REST = 10.0
"""Seconds after which a disk that refused a record is tried again."""
_LOOKS = timedelta(seconds=5)
"""Least time between two looks that are noted."""
Missing = Callable[[Collection[str]], set[str]]


class KubeEnded(Struct, frozen=True):
    """A job that has begun or ended, as it was last seen."""

    uid: str
    job: Job
    log: str | None = ""
    """Name of the file with its output; empty if none was kept, None as long as it has to be copied."""


class _JobMark(Struct, frozen=True):
    submitted_at: datetime
    state: JobState = JobState.PENDING


class _Mark(Struct, frozen=True):
    """Part of a record that each look at the cluster needs: records are many, and most looks need no job."""

    uid: str
    job: _JobMark
    log: str | None = ""


class PodLog(Struct, eq=False, weakref=True):
    """Lines of a pod's container, with their times; with `pod_of` those still to come."""

    is_stamped = True
    _server: ApiServer
    _pod: KubePod | None
    _tail: int | None
    _pod_of: Callable[[], KubePod | None] | None
    """Returns the pod to follow, None once the job has ended without one."""
    _kept: KeptLog | None = None
    """Copy of the output, for a node that does not have it any more or does not answer."""
    _stream: ApiStream | None = None
    _closed: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        if self._pod_of is None and self._pod is None:
            raise NotFoundError("Kubernetes has no pod of it any more, and its output was not kept on this machine")

    def __iter__(self) -> Iterator[bytes]:
        number, stream = 0, None
        try:
            stream = self._opened()
            for line in stream or ():
                if not _STAMP.match(line):
                    raise NotFoundError(f"its output cannot be read: {one_line(line.decode(errors='replace'))}")
                number += 1
                yield line
        except (ClusterError, NotFoundError):
            if self._kept is None or number:
                raise
            yield from self._kept
        finally:
            if stream is not None:
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
                    query = log_query(pod) | ({} if self._tail is None else {"tailLines": str(self._tail)})
                    query |= {"follow": "true"} if self._pod_of is not None else {}
                    stream = self._stream = self._server.stream(log_path(pod), query, None)
                    if self._closed.is_set():
                        stream.close()
                    return stream
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


class KeptLog:
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


class LogKeeper(Struct, eq=False):
    _directory: Path

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


def log_path(pod: KubePod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}/log"


def log_query(pod: KubePod) -> dict[str, str]:
    name = pod.main.name
    return {"timestamps": "true"} | ({"container": name} if name else {})


class KubeRecords:
    """Jobs that were submitted from here: those that run, as they began, and all after their end.

    No error of the disk is raised: what it does not take is kept in memory, tried again, and told by `notices`.
    """

    def __init__(self, directory: Path, user: str, submissions: Submissions) -> None:
        self._user = user
        self._submissions = submissions
        self._directory = directory
        self._records = Index(directory / "ended.jsonl", KubeEnded, lambda each: each.uid)
        self._marks = Index(directory / "ended.jsonl", _Mark, lambda each: each.uid)
        self._marked: Mapping[str, _Mark] = {}
        self._unwritten: dict[str, KubeEnded] = {}
        self._fault = self._told = ""
        self._again_at = 0.0
        self._logs = LogKeeper(directory / "logs")
        self._looked = directory / "looked"
        """File whose time is that of the last look, at which all jobs without an end existed."""
        self._late: set[str] = set()
        """Deleted jobs whose pod, if they had one, the watch of pods may tell only at the next look."""
        self._tries: dict[str, int] = {}
        self._silent: dict[str, float] = {}
        """Times at which nodes did not answer, by name: a node may have many pods, each with its patience."""
        self._copied_steps: set[tuple[str, bool]] = set()
        """Pods whose output was copied before their job had ended: uid, and whether their container had ended."""

    def of(self, number: JobId) -> Job | None:
        return next((job for job in self.all() if job.id == number), None)

    def all(self) -> Iterator[Job]:
        yield from [each.job for each in (self._records.all() | self._unwritten).values()]

    def log_of(self, number: JobId) -> Path | None:
        records = (self._records.all() | self._unwritten).values()
        found = next((each for each in records if each.job.id == number), None)
        path = self._logs.path(found.log) if found is not None and found.log else None
        return path if path is not None and path.exists() else None

    def notices(self) -> tuple[Notice, ...]:
        return (Notice("error", self._fault, short="ends are not recorded"),) if self._fault else ()

    def _of(self, uid: str) -> KubeEnded | None:
        return self._unwritten.get(uid) or self._records.of(uid)

    def _mark_of(self, uid: str) -> KubeEnded | _Mark | None:
        return self._unwritten.get(uid) or self._marked.get(uid)

    def _has_end(self, uid: str) -> bool:
        found = self._mark_of(uid)
        return found is not None and found.job.state.is_terminal

    def _add(self, *records: KubeEnded) -> None:
        self._unwritten |= {each.uid: each for each in records}
        self._write()

    def _write(self) -> None:
        try:
            self._records.add(self._unwritten.values())
        except OSError as error:
            self._blame(error)
        else:
            self._unwritten = {}
        self._marked = self._marks.all()

    def _blame(self, error: OSError) -> None:
        """Note why something cannot be kept, and try again after a while."""
        fault = f"ends of jobs cannot be recorded: {self._directory}: {error.strerror}"
        if fault != self._told:
            log.error("%s", fault)
        self._fault = self._told = fault
        self._again_at = time.monotonic() + _REST

    def record(self, server: ApiServer, picture: KubePicture, sees: Callable[[str], bool], missing: Missing) -> bool:
        """Record jobs submitted from here that have begun or ended; return False if some were left for the next look.

        `sees` tells of a namespace whether the picture shows its jobs; `missing` looks afresh which do not exist.
        """
        if self._fault and time.monotonic() < self._again_at:
            return False
        self._fault = ""
        self._write()
        parts, jobs = picture.parts, picture.jobs
        ours = [uid for uid, each in parts.items() if each.known is not None]
        ended = ((uid, self._mark_of(uid), jobs[uid].state) for uid in ours if jobs[uid].state.is_terminal)
        new = [uid for uid, mark, state in ended if mark is None or mark.job.state is not state or mark.log is None]
        done = 0
        later = (uid for uid in new[MOST_AT_ONCE:] if not self._has_end(uid))
        self._add(*(KubeEnded(uid, jobs[uid], None) for uid in later))
        for uid in new[:MOST_AT_ONCE]:
            try:
                self._add(KubeEnded(uid, jobs[uid], self._copied(server, parts[uid])))
            except ClusterUnavailableError:
                self._tries[uid] = self._tries.get(uid, 0) + 1
                if self._tries[uid] < _MOST_TRIES:
                    break  # the others may be on the same node, each with its patience
                self._add(KubeEnded(uid, jobs[uid]))
            except OSError as error:
                self._blame(error)
                break
            done += 1
        begun = (uid for uid in ours if jobs[uid].state is JobState.RUNNING and self._mark_of(uid) is None)
        self._add(*(KubeEnded(uid, jobs[uid]) for uid in begun))
        for uid in ours:
            if jobs[uid].state is JobState.COMPLETING:
                self._complete(server, parts[uid])
        gone = {uid: each for uid, each in picture.deleted.items() if each.known is not None and uid not in parts}
        ends = {uid: newest(each.pods) for uid, each in gone.items()}
        known = {uid for uid, pod in ends.items() if pod and (pod.is_over or pod.metadata.deletion_timestamp)}
        late = {uid for uid in gone.keys() - known if uid not in self._late and not self._has_end(uid)}
        self._late |= late  # pods are watched separately
        for uid in gone.keys() - late:
            if not self._has_end(uid):
                self._take_deleted(server, gone[uid])
        self._note_uids(picture)
        self._record_lost(picture, sees, missing)
        self._told = self._fault
        return done == len(new) and not late and not self._fault

    def _complete(self, server: ApiServer, parts: JobParts) -> None:
        """Copy the output of a pod that is being removed, and once more when its container has ended.

        Add to the record of a cancelled job how its container ended.
        """
        uid, pod = parts.job.metadata.uid, newest(parts.pods)
        code = exit_code_of(pod)
        if pod is None or (code is None and pod.metadata.deletion_timestamp is None):
            return
        record = self._of(uid) if self._has_end(uid) else None
        step = (pod.metadata.uid, code is not None)
        if step in self._copied_steps or (code is None and record is not None):  # `cancel` has copied it
            return
        self._copied_steps.add(step)
        node, copy = pod.spec.node_name or "", ""
        if time.monotonic() - self._silent.get(node, -_SILENCE) >= _SILENCE:
            try:
                copy = self._copied(server, parts)
            except ClusterUnavailableError:
                self._silent[node] = time.monotonic()
            except OSError as error:
                self._blame(error)
                self._copied_steps.discard(step)
        if record is not None and code is not None and record.job.exit_code is None:
            self._add(KubeEnded(uid, _with_code(record.job, code), copy or record.log))

    def cancelling(self, server: ApiServer, chosen: Iterable[tuple[JobParts, Job]]) -> Callable[[], None]:
        """Copy the output of jobs that are about to be deleted; return what records them once they are."""
        kept = [(each.job.metadata.uid, job, self._kept(server, each)) for each, job in chosen]
        return lambda: self._add(
            *(KubeEnded(uid, _cancelled(job, "cancelled", self._user), copy) for uid, job, copy in kept)
        )

    def _take_deleted(self, server: ApiServer, parts: JobParts) -> None:
        uid = parts.job.metadata.uid
        job, known = job_of(parts, ()), self._of(uid)
        if job.attempt is None and known is not None:
            job = known.job
        if not job.state.is_terminal:
            job = _with_code(_cancelled(job, "deleted in Kubernetes", ""), exit_code_of(newest(parts.pods)))
        self._add(KubeEnded(uid, job, self._kept(server, parts)))

    def _note_uids(self, picture: KubePicture) -> None:
        """Note which jobs submissions became that were killed before, or whose disk was full."""
        found: dict[str, dict[JobId, str]] = {each.key: {} for each in self._submissions.all() if each.known_at is None}
        for uid, each in picture.parts.items():
            if each.known is not None and each.known.key in found:
                found[each.known.key][each.number] = uid
                if len(found[each.known.key]) == len(each.known.submission.array or (None,)):
                    uids = tuple(uid for _, uid in sorted(found[each.known.key].items()))
                    self._submissions.note_jobs(each.known.key, uids=uids)

    def _record_lost(self, picture: KubePicture, sees: Callable[[str], bool], missing: Missing) -> None:
        shown, now, seen_at = picture.parts.keys() | picture.deleted.keys(), datetime.now(UTC), None
        with suppress(OSError):
            seen_at = datetime.fromtimestamp(self._looked.stat().st_mtime, UTC)
        gone = {uid: each for uid, each in self._without_end(sees) if uid not in shown}
        missed, lost = missing(gone) if gone else (), []
        for uid, (submitted, index) in gone.items():
            if uid in missed:
                after, known = max(filter(None, (submitted.at, seen_at))), self._of(uid)
                cause = end_unknown(after, now)
                job = known.job if known is not None else _as_submitted(uid, submitted, index, self._user)
                job = job.with_attempt(ended_at=after, cause=cause) if job.attempts else job
                lost.append(KubeEnded(uid, job.evolve(state=JobState.FAILED, ended_at=now, cause=cause)))
        self._add(*lost)
        if seen_at is None or now - seen_at > _LOOKS:
            with suppress(OSError):
                self._looked.touch(0o600)

    def _without_end(self, sees: Callable[[str], bool]) -> Iterator[tuple[str, tuple[Submitted, int | None]]]:
        """Yield the jobs submitted from here that have no record of their end: each by uid, with its index."""
        first = next(iter(self._marked.values()), None) if self._marks.journal.may_lack_older else None
        oldest = first.job.submitted_at if first is not None else None
        for each in tuple(self._submissions.all()):
            indices: tuple[int | None, ...] = each.submission.array or (None,)
            if len(indices) != len(each.uids) or not sees(each.namespace) or (oldest and each.at < oldest):
                continue
            for uid, index in zip(each.uids, indices, strict=True):
                if not self._has_end(uid):
                    yield uid, (each, index)

    def _kept(self, server: ApiServer, parts: JobParts) -> str:
        try:
            return self._copied(server, parts)
        except ClusterUnavailableError:
            pass
        except OSError as error:
            self._blame(error)
        return ""

    def _copied(self, server: ApiServer, parts: JobParts) -> str:
        pod = newest(parts.pods)
        return self._logs.keep(server, pod) if pod is not None and pod.status.start_time is not None else ""


def _as_submitted(uid: str, submitted: Submitted, index: int | None, user: str) -> Job:
    spec, array = submitted.submission.spec, array_number(submitted.namespace, label(submitted.key))
    return Job(
        single_number(uid) if index is None else element_id(array, index),
        replace(spec, tenant=plain(submitted.namespace)),
        submitted.at,
        priority=spec.priority,
        submitted_by=user,
        array=ArrayRef(array, index) if index is not None else None,
    )


def _with_code(job: Job, code: int | None) -> Job:
    return (job.with_attempt(exit_code=code) if job.attempts else job).evolve(exit_code=code)


def _cancelled(job: Job, words: str, user: str) -> Job:
    now, cause = datetime.now(UTC), Cause(CauseCode.CANCELLED, words)
    ended = job.with_attempt(ended_at=now, cause=cause) if job.attempts else job
    return ended.evolve(state=JobState.CANCELLED, ended_at=now, cause=cause, cancelled_by=user, held=False)
