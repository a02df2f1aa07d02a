"""Interface of a cluster: an engine that owns queue, order, node and GPU, such as Slurm.

No code of gputui chooses a node or a GPU there. Calls block on the engine's commands or its server, and raise
ClusterError: ClusterUnavailableError if the engine does not answer, ClusterRefusedError with the engine's own words if
it refuses, CapabilityError if it has no such function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime, timedelta

    from gputui.domain.cluster import Caps, ClusterFault
    from gputui.domain.container import ExecRequest, ProcessRow
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.snapshot import Snapshot
    from gputui.ports.channel import Channel
    from gputui.ports.runtime import StampedLogStream


class Cluster(Protocol):
    """Jobs and nodes of a cluster, with the rights of this process's user.

    Jobs have the engine's own ids where these are numbers. An element of an array has the id that `Job.array` derives
    from the array's, the same in each snapshot. Methods that change jobs apply to each id in turn, and return the ids
    that they changed; they raise ClusterRefusedError, with the ids changed so far in its text, if one is refused.
    """

    @property
    def name(self) -> str:
        """Name of the cluster, as the engine knows it."""
        ...

    @property
    def user(self) -> str:
        """Name by which the engine knows this process's user; empty until it has answered. Never blocks."""
        ...

    @property
    def caps(self) -> Caps:
        """The engine's capabilities, as far as this user may use them. Never blocks."""
        ...

    def snapshot(self) -> Snapshot:
        """Return all jobs that are not older than the engine remembers, all nodes and GPUs, reasons and starts.

        Jobs of other users and tools are included. Costs the engine one request for jobs and one for nodes, shared by
        all processes of this machine that ask within two seconds.
        """
        ...

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        """Submit jobs; return their ids, one for each element of an array.

        Idempotent: with the same `key`, a call repeated after a crash returns the jobs of the first one. `is_new`
        promises that no other state directory has seen the key, so a first call need not look for it.
        """
        ...

    def expected_start(self, submission: Submission) -> datetime | None:
        """Return when the job would start if it were submitted now; None if the engine cannot tell."""
        ...

    def cancel(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """End jobs, or take them out of the queue."""
        ...

    def hold(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Keep waiting jobs from starting."""
        ...

    def release(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Release held jobs."""
        ...

    def requeue(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Run jobs again."""
        ...

    def set_priority(self, ids: Iterable[JobId], value: int) -> tuple[JobId, ...]:
        """Set the priority, 0 to 100, 50 being that of a job submitted without one."""
        ...

    def top(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Put waiting jobs before the user's other jobs, or before all jobs where the user may."""
        ...

    def set_time_limit(self, ids: Iterable[JobId], limit: timedelta) -> tuple[JobId, ...]:
        """Change the time limit of waiting or running jobs."""
        ...

    def signal(self, ids: Iterable[JobId], number: int) -> tuple[JobId, ...]:
        """Send the containers of running jobs a signal."""
        ...

    def suspend(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Stop the processes of running jobs, which keep their GPUs."""
        ...

    def unsuspend(self, ids: Iterable[JobId]) -> tuple[JobId, ...]:
        """Continue suspended jobs."""
        ...

    def drain(self, nodes: Iterable[str], reason: str) -> None:
        """Start no further job on these nodes."""
        ...

    def resume(self, nodes: Iterable[str]) -> None:
        """Start jobs on these nodes again."""
        ...

    def job(self, job_id: JobId) -> Job:
        """Return a job from the engine, or from the records kept after the engine forgot it; raises NotFoundError."""
        ...

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield jobs that have ended, from the engine's accounting, else from our own records."""
        ...

    def log(self, job: Job, *, tail: int | None, follow: bool) -> StampedLogStream:
        """Return the output of a job."""
        ...

    def place(self, job: Job) -> str:
        """Return where `execute` runs commands, in words; raises ClusterRefusedError for a job of another user."""
        ...

    def execute(self, job: Job, request: ExecRequest) -> Channel:
        """Run a command in a running job: in its container, or beside its processes.

        Raises ClusterRefusedError if that is not allowed or not possible, here or at the first `receive`.
        """
        ...

    def attach(self, job: Job, detach_keys: str) -> Channel:
        """Attach to the streams of a running job that was submitted with a terminal or input, like `execute`.

        Waits for its container; what the job writes before anybody attaches is in its output.
        """
        ...

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Return the present processes of a running job."""
        ...

    def faults(self) -> Sequence[ClusterFault]:
        """Return what is in the way of jobs, as far as the engine's own settings tell; raises ClusterRefusedError."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
