"""Output of the jobs of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gputui.domain.cluster import Capability
from gputui.domain.errors import NotFoundError

if TYPE_CHECKING:
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId
    from gputui.engine.cluster.store import ClusterStore
    from gputui.ports import LogStream, StampedLogStream


class ClusterLogs:
    """Opens the output of any job, running or ended."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store

    def open(
        self,
        job_id: JobId,
        attempt: int | None = None,
        *,
        tail: int | None = None,
        follow: bool = False,
        stamped: bool = False,
    ) -> LogStream:
        """Return the lines of the job's last attempt, starting at the last `tail` lines.

        With `stamped` lines begin with their times if the cluster knows them. Raises NotFoundError for an earlier
        attempt: its output is not kept apart.
        """
        job, cluster = self._store.get(job_id), self._store.cluster
        _check(job, attempt)
        if follow and job.state.is_active:
            cluster.caps.need(Capability.LIVE_LOG)
        stream = cluster.log(job, tail=tail, follow=follow)
        return stream if stamped or not stream.is_stamped else WithoutTimes(stream)


class WithoutTimes:
    """Stream whose lines lose the times before them."""

    def __init__(self, stream: StampedLogStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines as the job wrote them."""
        return (line.partition(b" ")[2] for line in self._stream)

    def close(self) -> None:
        """End the iteration."""
        self._stream.close()


def _check(job: Job, attempt: int | None) -> None:
    if job.attempt is None:
        raise NotFoundError(f"job {job.shown_id} has not started yet, so it has no output")
    if attempt is not None and attempt != job.attempt.number:
        hint = f"attempt {job.attempt.number} is the last one"
        raise NotFoundError(f"attempt {attempt} of job {job.shown_id} has no output of its own", hint=hint)
