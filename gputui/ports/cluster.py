"""Interface of a cluster: an engine that owns queue, order, node and GPU, such as Slurm.

No code of gputui chooses a node or a GPU there. Calls block on the engine's commands or its server, and raise
ClusterError: ClusterUnavailableError if the engine does not answer, ClusterRefusedError with the engine's own words if
it refuses, CapabilityError if it has no such function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from gputui.domain.action import DrainGpus, JobAction, ResumeGpus
    from gputui.domain.cluster import Caps, ClusterFault
    from gputui.domain.container import ProcessRow
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.snapshot import Snapshot
    from gputui.ports.backend import Entry
    from gputui.ports.runtime import Channel, StampedLogStream

EngineAction: TypeAlias = "JobAction | DrainGpus | ResumeGpus"
"""Actions that an engine carries out: on jobs by id, on nodes by name."""


class Cluster(Protocol):
    """Jobs and nodes of a cluster, with the rights of this process's user.

    Jobs have the engine's own ids where these are numbers. An element of an array has the id that `Job.array` derives
    from the array's, the same in each snapshot. Actions apply to each id in turn: if one is refused,
    ClusterRefusedError has the ids changed so far in its text.
    """

    @property
    def name(self) -> str:
        """Name of the cluster, as the engine knows it."""

    @property
    def user(self) -> str:
        """Name by which the engine knows this process's user; empty until it has answered. Never blocks."""

    @property
    def caps(self) -> Caps:
        """The engine's capabilities, as far as this user may use them. Never blocks."""

    def snapshot(self) -> Snapshot:
        """Return all jobs that are not older than the engine remembers, all nodes and GPUs, reasons and starts.

        Jobs of other users and tools are included. Costs the engine one request for jobs and one for nodes, shared by
        all processes of this machine that ask within two seconds.
        """

    def submit(self, submissions: Sequence[Submission], key: str, *, is_new: bool = False) -> tuple[JobId, ...]:
        """Submit jobs; return their ids, one for each element of an array.

        Idempotent: with the same `key`, a call repeated after a crash returns the jobs of the first one. `is_new`
        promises that no other state directory has seen the key, so a first call need not look for it.
        """

    def note(self, submission: Submission) -> str:
        """Return in a sentence what the engine decides for such a job, such as its time limit; empty for nothing.

        Raises the same errors as `submit`, as far as they are known without asking the engine.
        """

    def expected_start(self, submission: Submission) -> datetime | None:
        """Return when the job would start if it were submitted now; None if the engine cannot tell."""

    def draft(self, submission: Submission) -> str:
        """Return what the engine would be given for a job, in its own language, once it agrees to that.

        Empty where `expected_start` tells about a job before it is submitted. Raises as `submit` does.
        """

    def act(self, action: EngineAction) -> tuple[JobId, ...]:
        """Carry out an action on jobs or nodes, which are known to the engine; return the ids of the changed jobs.

        Jobs that it does not suit are left out. A priority is 0 to 100, 50 being that of a job submitted without one,
        and never relative; `Top` puts jobs before the user's others, or before all where the user may. Of an edit only
        the time limit, which is never None, is the engine's.
        """

    def job(self, job_id: JobId) -> Job:
        """Return a job from the engine, or from the records kept after the engine forgot it; raises NotFoundError."""

    def last_known(self, job_id: JobId) -> Job | None:
        """Return a job as it was last seen, for its output, without asking the engine; None if nobody saw it."""

    def history(self, since: datetime | None = None) -> Iterator[Job]:
        """Yield jobs that have ended, from the engine's accounting, else from our own records."""

    def log(self, job: Job, *, tail: int | None, follow: bool) -> StampedLogStream:
        """Return the output of a job."""

    def place(self, job: Job) -> str:
        """Return where `enter` runs commands, in words; raises ClusterRefusedError for a job of another user."""

    def enter(self, job: Job, request: Entry) -> Channel:
        """Run a command in a running job, in its container or beside its processes, or attach to its streams.

        Raises ClusterRefusedError if that is not allowed or not possible, here or at the first `receive`. Only a job
        that was submitted with a terminal or input can be attached to. That waits for its container; what the job
        writes before anybody attaches is in its output.
        """

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Return the present processes of a running job."""

    def faults(self) -> Sequence[ClusterFault]:
        """Return what is in the way of jobs, as far as the engine's own settings tell; raises ClusterRefusedError."""

    def close(self) -> None:
        """Close connections."""
