"""All of it now: what every face shows and every plan is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import Drain, GpuView, ProbeStatus
from gputui.domain.job import Job, JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import TenantSettings, Window
from gputui.domain.state import Reason
from gputui.domain.unreadable import Unreadable
from gputui.domain.window import WindowView

EMPTY_MAP: Mapping[JobId, str] = MappingProxyType({})


@dataclass(frozen=True)
class Standing:
    """The standing rule as a command set it."""

    priority: int | None = None
    """While a job of at least this priority waits for GPUs, no job below it is given any; None: there is no rule."""


@dataclass(frozen=True)
class Controls:
    """The operator's standing wishes, kept in the store beside the jobs."""

    paused: bool = False
    pause_reason: str = ""
    paused_by: str = ""
    drains: Mapping[str, Drain] = field(default_factory=dict)
    """By GPU UUID."""
    resumed: Mapping[str, datetime] = field(default_factory=dict)
    """Times by GPU UUID at which an operator last declared it fit for jobs. Older Xids are forgiven."""
    reservations: tuple[Window, ...] = ()
    """Beside those of the settings file."""
    claimed: Mapping[str, datetime] = field(default_factory=dict)
    """By key of a window: since when a job it is kept for has run in it."""
    released: Mapping[str, datetime] = field(default_factory=dict)
    """By key of a window: when it was given up because nobody had claimed it."""
    standing: Standing | None = None
    """In place of the settings file's `policy.standing_priority`."""
    tenants: tuple[TenantSettings, ...] = ()
    """Each in place of the settings file's of that name."""


@dataclass(frozen=True)
class Leader:
    """The process that schedules: what it wrote into the lock file."""

    pid: int
    host: str
    user: str
    kind: str
    """`console` or `serve`."""
    started_at: datetime
    silent_for: timedelta = timedelta()
    """How long it has not responded: it is stopped, or hangs. Zero while it responds."""
    uid: int | None = None
    """The account it runs under, which under sudo is not the user's; None where an older gputui leads."""


@dataclass(frozen=True)
class Notice:
    """Something an operator should know now."""

    severity: str
    """`error`, `warning` or `information`."""
    text: str
    halts: bool = False
    """Whether no job starts until this is mended."""


@dataclass(frozen=True)
class Node:
    """One host and its GPUs."""

    name: str
    gpus: tuple[GpuView, ...] = ()
    probe: ProbeStatus = ProbeStatus()
    driver_version: str | None = None
    runtimes: tuple[RuntimeStatus, ...] = ()


@dataclass(frozen=True)
class Usage:
    """GPU-seconds by tenant of jobs that are no longer in the snapshot, already decayed to `at`."""

    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """One picture of everything, frozen. A plan is made from it; a face shows it."""

    taken_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    """The queue file's jobs by id: all that live, and the finished ones not yet moved to history."""
    controls: Controls = Controls()
    leader: Leader | None = None
    """None: nobody schedules."""
    leads_here: bool = False
    """This very process schedules."""
    order: tuple[JobId, ...] = ()
    """Waiting jobs, in the order in which they will start."""
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    """Of every waiting job."""
    expected_starts: Mapping[JobId, datetime] = field(default_factory=dict)
    progress: Mapping[JobId, str] = field(default_factory=lambda: EMPTY_MAP)
    """What a CONFIGURING job is doing: pulling its image, 45 %."""
    notices: tuple[Notice, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    """Stored entries that are left out, because this version cannot read them."""
    usage: Usage = Usage()
    """What tenants used in jobs that have moved to history."""
    recurring: tuple[RecurringJob, ...] = ()
    """By id."""
    windows: tuple[WindowView, ...] = ()
    """The reservations that are not over, by their start."""
    fragmentation: int = 0
    """GPUs that stay free although jobs wait for GPUs, because none of these can use them."""

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """The GPUs of all nodes."""
        return tuple(view for node in self.nodes for view in node.gpus)

    def job(self, job_id: JobId) -> Job | None:
        """The job of that id, if it is still in the queue file."""
        return next((job for job in self.jobs if job.id == job_id), None)

    def sharing(self) -> dict[JobId, tuple[JobId, ...]]:
        """Of each job that shares GPUs with others now, those others."""
        found: dict[JobId, dict[JobId, None]] = {}
        for view in self.gpus:
            for job_id in view.job_ids if len(view.job_ids) > 1 else ():
                found.setdefault(job_id, {}).update(dict.fromkeys(view.job_ids))
        return {
            job_id: tuple(other for other in all_of_them if other != job_id) for job_id, all_of_them in found.items()
        }

    def beside(self, job: Job) -> tuple[JobId, ...]:
        """The jobs that share GPUs with this one now."""
        return self.sharing().get(job.id, ()) if job.spec.gpus.promised else ()


EMPTY = Snapshot()
"""Nothing known yet: a value, so that no face needs to ask for None."""
