"""An attempt to run a job: its GPUs, its times and its end."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from gputui.domain.cause import Cause, with_error
from gputui.domain.container_options import PublishedPort
from gputui.domain.efficiency import Efficiency
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry import AttemptTelemetry


class BootTime(Struct, frozen=True):
    """Time since boot: a clock that cannot be set."""

    boot: str
    """Identifier of the machine's boot."""
    seconds: float


class Attempt(Struct, frozen=True):
    """Attempt to run a job."""

    number: int
    """Number from 1. A start that was interrupted before a container ran releases its number."""
    gpus: tuple[str, ...] = ()
    """UUIDs allocated to it."""
    claimed_at: datetime | None = None
    """Time at which the store assigned its GPUs: step (a) of the start protocol."""
    container_id: str | None = None
    """The runtime's handle: a container's full id, or a host attempt's name."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Cause of its end; None if it succeeded or still runs."""
    log_path: str | None = None
    """Path of its saved output once it has ended, relative to the state directory."""
    charged: bool = True
    """True if the attempt counts against the job's retries."""
    notes: tuple[str, ...] = ()
    """Remarks of the runtime: cpus clamped to the host's, a process out of memory, ..."""
    ports: tuple[PublishedPort, ...] = ()
    """Ports published, as the engine chose them at the start."""
    warned_at: datetime | None = None
    """Time of the warning before its limit."""
    gpu_share: float = 1.0
    """Share of each GPU that its tenant is charged for; less than 1 where others may share it."""
    preempted_by: JobId | None = None
    preempted_at: datetime | None = None
    """Preempting job, and time of the request; the attempt may have ended by itself during its grace period."""
    clock_moved: timedelta = timedelta()
    """Amount by which the clock was set while it ran; applied to its times above, not to those of the runtime."""
    began: BootTime | None = None
    """`started_at` on the clock that cannot be set."""
    suspended_at: datetime | None = None
    """Time since which its processes are stopped; None: they run."""
    suspensions: tuple[tuple[datetime, datetime], ...] = ()
    """Starts and ends of its past suspensions."""
    efficiency: Efficiency | None = None
    """Use of its GPUs; None while it runs, without GPUs, and if nothing could be read."""
    telemetry: AttemptTelemetry | None = None
    """Measurements; None while it runs, if nothing could be read, and in jobs of an older gputui."""
    error: str = ""
    """Line of its output that says why it failed; empty if none was found."""
    node: str = ""
    """Node of a cluster on which it runs, several with commas; empty: this machine, or unknown."""
    unnamed_gpus: int = 0
    """Number of GPUs that the engine of a cluster allocated to it without naming them."""

    @property
    def gpu_count(self) -> int:
        """Number of GPUs allocated to it."""
        return len(self.gpus) or self.unnamed_gpus

    @property
    def is_over(self) -> bool:
        """Return whether the attempt has ended."""
        return self.ended_at is not None

    @property
    def end_words(self) -> str:
        """Return why it ended, from its error line if that says more; empty if it succeeded or still runs."""
        return with_error(self.cause, self.error) if self.is_over else ""
