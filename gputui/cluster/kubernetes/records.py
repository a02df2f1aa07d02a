"""Records of jobs that have ended, with their output, made before Kubernetes removes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gputui.cluster.kubernetes import phases
from gputui.cluster.kubernetes.api_server import ApiServer
from gputui.cluster.kubernetes.jobs import JobParts
from gputui.cluster.kubernetes.logs import LogKeeper
from gputui.cluster.kubernetes.notes import KubeEnded, KubeEndedJobs
from gputui.cluster.kubernetes.objects import KubeJob
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import ClusterUnavailableError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState

MOST_AT_ONCE = 4
"""Number of jobs whose output is copied at one look; the others follow at the next ones."""

_SILENCE = 60.0
"""Seconds for which a node that did not answer is not asked for the output of pods that are being removed."""
_MOST_TRIES = 3
"""Number of looks after which a job is recorded without its output, because its node does not answer."""


class KubeRecords:
    """Jobs that were submitted or cancelled from here, after their end."""

    def __init__(self, directory: Path, user: str) -> None:
        self._user = user
        self._ended = KubeEndedJobs(directory)
        self._logs = LogKeeper(directory / "logs")
        self._living: dict[str, Job] = {}
        self._tries: dict[str, int] = {}
        self._silent: dict[str, float] = {}
        """Times at which nodes did not answer, by name: a node may have many pods, each with its patience."""
        self._copied_steps: set[tuple[str, bool]] = set()
        """Pods whose output was copied before their job had ended: uid, and whether their container had ended."""

    def of(self, number: JobId) -> Job | None:
        """Return the record of a job."""
        found = self._ended.of(number)
        return found.job if found is not None else None

    def all(self) -> Iterator[Job]:
        """Yield all recorded jobs."""
        return (each.job for each in self._ended.all())

    def log_of(self, number: JobId) -> Path | None:
        """Return the copy of a job's output; None if there is none."""
        found = self._ended.of(number)
        path = self._logs.path(found.log) if found is not None and found.log else None
        return path if path is not None and path.exists() else None

    def seen(self, server: ApiServer, parts: Mapping[str, JobParts], jobs: Mapping[str, Job]) -> bool:
        """Record jobs submitted from here that have ended; return False if some were left for the next look."""
        ours = [uid for uid, each in parts.items() if each.known is not None]
        new = [uid for uid in ours if jobs[uid].state.is_terminal and not self._is_recorded(uid, jobs[uid])]
        done = 0
        for uid in new[:MOST_AT_ONCE]:
            try:
                self._ended.add([KubeEnded(uid, jobs[uid], self._copied(server, parts[uid]))])
            except ClusterUnavailableError:
                if not self._gives_up(uid):
                    break  # the others may be on the same node, each with its patience
                self._ended.add([KubeEnded(uid, jobs[uid])])
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
        uid, pod = parts.job.metadata.uid, phases.newest(parts.pods)
        code = phases.exit_code_of(pod)
        if pod is None or (code is None and pod.metadata.deletion_timestamp is None):
            return
        record, step = self._ended.of_uid(uid), (pod.metadata.uid, code is not None)
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
            self._ended.add([KubeEnded(uid, ended.evolve(exit_code=code), log or record.log)])

    def cancelling(self, server: ApiServer, parts: JobParts, job: Job) -> Callable[[], None]:
        """Copy the output of a job that is about to be deleted; return what records it once it is."""
        try:
            log = self._copied(server, parts)
        except ClusterUnavailableError:
            log = ""
        return lambda: self._ended.add(
            [KubeEnded(parts.job.metadata.uid, _cancelled(job, "cancelled", self._user), log)]
        )

    def removed(self, job: KubeJob) -> None:
        """Record a job that somebody else deleted while it was watched."""
        living = self._living.pop(job.metadata.uid, None)
        if living is not None and self._ended.of_uid(job.metadata.uid) is None:
            self._ended.add([KubeEnded(job.metadata.uid, _cancelled(living, "deleted in Kubernetes", ""))])

    def _gives_up(self, uid: str) -> bool:
        """Return whether the output of a job was asked for often enough."""
        self._tries[uid] = self._tries.get(uid, 0) + 1
        return self._tries[uid] >= _MOST_TRIES

    def _is_recorded(self, uid: str, job: Job) -> bool:
        found = self._ended.of_uid(uid)
        return found is not None and found.job.state is job.state

    def _copied(self, server: ApiServer, parts: JobParts) -> str:
        pod = phases.newest(parts.pods)
        return self._logs.keep(server, pod) if pod is not None and pod.status.start_time is not None else ""


def _cancelled(job: Job, words: str, user: str) -> Job:
    now, cause = datetime.now(UTC), Cause(CauseCode.CANCELLED, words)
    ended = job.with_attempt(ended_at=now, cause=cause) if job.attempts else job
    return ended.evolve(state=JobState.CANCELLED, ended_at=now, cause=cause, cancelled_by=user, held=False)
