"""Frozen state of queue, GPUs and scheduler: the input of every screen, command and plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.cluster import ENGINES
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import Drain, GpuFault, GpuView, HostSample, ProbeStatus
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.recurring import RecurringJob
from gputui.domain.settings import PolicySettings, Settings, TenantSettings, Window
from gputui.domain.state import Reason
from gputui.domain.text import minute, plain


class WindowState(StrEnum):
    """State of a reservation."""

    UPCOMING = "UPCOMING"
    ACTIVE = "ACTIVE"
    """Started; not necessarily claimed yet."""
    RELEASED = "RELEASED"
    """Not claimed in time: its GPUs are released."""


class WindowView(Struct, frozen=True):
    """A reservation that has not ended."""

    window: Window
    state: WindowState
    source: str = "file"
    """Source: `file`, the settings file; `command`, `gputui reserve`."""
    claimed_at: datetime | None = None
    """Time since which one of its jobs has run in it."""
    released_at: datetime | None = None
    lapses_at: datetime | None = None
    """Time at which it is released if unused; None: it is in use, released, or for nobody."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs now reserved; empty if it is released or no GPU is known."""


class Unreadable(Struct, frozen=True):
    """A stored entry that cannot be read; it is left out and kept unchanged."""

    kind: str
    """`job` or `recurring job`."""
    key: str
    """Id of the entry, as stored."""
    why: str
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that it may hold."""

    @property
    def sentence(self) -> str:
        held = f"; GPUs that it may hold count as taken: {', '.join(self.gpus)}" if self.gpus else ""
        return f"{self.kind} {self.key} cannot be read and is left out: {self.why}{held}"


class StandingRule(Struct, frozen=True):
    """The standing rule as set by a command."""

    priority: int | None = None
    """Priority of the rule: while a job of at least this priority waits for GPUs, no job below it gets any; None: no
    rule."""


class Controls(Struct, frozen=True):
    """The operator's controls, stored with the jobs."""

    paused: bool = False
    pause_reason: str = ""
    paused_by: str = ""
    drains: Mapping[str, Drain] = field(default_factory=dict)
    """Drains by GPU UUID."""
    resumed: Mapping[str, datetime] = field(default_factory=dict)
    """Times by GPU UUID at which an operator last resumed it. Older Xids no longer count."""
    faults: Mapping[str, GpuFault] = field(default_factory=dict)
    """Fatal Xids by GPU UUID, which keep jobs off the GPU until it is reset or resumed."""
    reservations: tuple[Window, ...] = ()
    """Reservations in addition to those of the settings file."""
    claimed: Mapping[str, datetime] = field(default_factory=dict)
    """Time since which one of its jobs has run in each reservation, by key."""
    released: Mapping[str, datetime] = field(default_factory=dict)
    """Release time of each unused reservation, by key."""
    standing: StandingRule | None = None
    """Rule that replaces the settings file's `policy.standing_priority`."""
    tenants: tuple[TenantSettings, ...] = ()
    """Tenants, each replacing the one of that name in the settings file."""
    paused_at: datetime | None = None


class Leader(Struct, frozen=True):
    """The process that schedules, as recorded in the lock file."""

    pid: int
    host: str
    """Empty: an engine that has not answered yet."""
    user: str
    kind: str
    """Kind of process: `console` or `serve`; or the engine of a cluster."""
    started_at: datetime
    silent_for: timedelta = timedelta()
    """Time since it last responded, if it is stopped or hangs; zero otherwise."""
    uid: int | None = None
    """Uid of the process, which under sudo is not the user's; None if an older gputui schedules."""
    version: str = ""
    """Version of its gputui; empty: 0.1."""
    schema: int | None = None
    """Schema of the queue that it reads and writes; None: not known, as of 0.1."""
    stands_in: bool = False
    """True if it took over from a console: it yields to a service that waits, and ends when there is nothing to do."""


class Notice(Struct, frozen=True):
    """A problem that operators should know now."""

    severity: str
    """`error`, `warning` or `information`."""
    text: str
    halts: bool = False
    """True if no job starts until this is fixed."""
    short: str = ""
    """Text for the status line; empty: none, or the status line already shows it."""
    since: datetime | None = None
    """Time since which it lasts; None: unknown."""


class Node(Struct, frozen=True):
    """A host with its GPUs."""

    name: str
    gpus: tuple[GpuView, ...] = ()
    probe: ProbeStatus = ProbeStatus()
    driver_version: str | None = None
    runtimes: tuple[RuntimeStatus, ...] = ()
    host: HostSample | None = None
    """Readings of the machine itself; None before the first."""
    down: str = ""
    """Sentence of the engine of a cluster that says why it cannot use the node; empty: it can."""
    drain: Drain | None = None
    """Drain of the whole node, in a cluster."""
    is_elsewhere: bool = False
    """True if it is the machine of a container engine that is used from another: no pid and no path is of this one."""


class Usage(Struct, frozen=True):
    """GPU-seconds by tenant of jobs that are no longer in the snapshot, already decayed to `at`."""

    at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    gpu_seconds: Mapping[str, float] = field(default_factory=dict)


class Snapshot(Struct, frozen=True, weakref=True):
    """Frozen state of jobs, GPUs and controls. Plans use it as input; interfaces display it."""

    taken_at: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    nodes: tuple[Node, ...] = ()
    jobs: tuple[Job, ...] = ()
    """The queue file's jobs by id: all live ones, and the finished ones not yet moved to history.

    An array's elements that wait alike are one entry.
    """
    controls: Controls = Controls()
    leader: Leader | None = None
    """Leading scheduler; None: no scheduler runs."""
    leads_here: bool = False
    """True if this process schedules."""
    order: tuple[JobId, ...] = ()
    """Waiting jobs in the order of their turn; a job that fits into a gap may start before it."""
    reasons: Mapping[JobId, Reason] = field(default_factory=dict)
    """Reason of every waiting job."""
    expected_starts: Mapping[JobId, datetime] = field(default_factory=dict)
    progress: Mapping[JobId, str] = field(default_factory=dict)
    """Progress of CONFIGURING jobs: pulling its image, 45 %; or what their start waits for."""
    notices: tuple[Notice, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    """Stored entries that this version cannot read; they are left out."""
    usage: Usage = Usage()
    """Use by tenants in jobs that have moved to history."""
    recurring: tuple[RecurringJob, ...] = ()
    """Recurring jobs by id."""
    windows: tuple[WindowView, ...] = ()
    """The reservations that have not ended, by start."""
    fragmentation: int = 0
    """Number of free GPUs that no waiting job can use, although jobs wait for GPUs."""
    server_name: str = ""
    """Name of the server that it is of, in a console over several; empty: it is the snapshot of the whole console."""
    servers: tuple[ServerView, ...] = ()
    """Independent servers that were brought together in it, each with its own snapshot; empty: it is of one queue."""

    @property
    def engine_decides(self) -> bool:
        """True if the engine of a cluster decides which job starts where; gputui only watches its GPUs."""
        return self.leader is not None and self.leader.kind in ENGINES

    @property
    def is_read(self) -> bool:
        """False until the queue, or one of several servers, has been read for the first time."""
        if self.servers:
            return any(server.seen_at for server in self.servers)
        return self is not EMPTY and (self.leader is None or bool(self.leader.host))

    @property
    def elsewhere(self) -> str:
        """Name of the machine of the engine, its GPUs and its jobs, if the scheduler runs on another; else empty."""
        return "" if self.servers else next((node.name for node in self.nodes if node.is_elsewhere), "")

    @property
    def jobs_machine(self) -> str:
        """Name of the machine where jobs run, if it is another than the scheduler's; else empty."""
        engines = (status.gpus for node in self.nodes for status in node.runtimes if status.gpus)
        return self.elsewhere or next((engine.elsewhere for engine in engines if engine.elsewhere), "")

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        return tuple(chain.from_iterable(node.gpus for node in self.nodes))

    def server(self, name: str) -> ServerView | None:
        return next((server for server in self.servers if server.name == name), None)

    def of_server(self, name: str) -> Snapshot:
        found = self.server(name) if name else None
        return found.snapshot if found is not None else self

    def server_of_gpu(self, uuid: str) -> str:
        found = (s.name for s in self.servers for view in s.snapshot.gpus if view.gpu.uuid == uuid)
        return next(found, "")

    def job(self, job_id: JobId) -> Job | None:
        """Return the single job with that id, also for an element of an array; None if it is not in the queue file."""
        entry = self.entry(job_id)
        return entry.element(job_id) if entry is not None else None

    def named(self, job_id: JobId) -> Job | None:
        alike = (job for job in self.jobs if job.array is not None and job.array.id == job_id)
        return self.job(job_id) or next(alike, None)

    def entry(self, job_id: JobId) -> Job | None:
        """Return the job with that id, or the entry that contains it; None if it is not in the queue file."""
        return next((job for job in self.jobs if job.id == job_id or (job.runs and job.has(job_id))), None)

    def of_elements(self) -> Snapshot:
        """Return the snapshot with the reason of each entry repeated for its elements."""
        entries = ((job, self.reasons.get(job.id)) for job in self.jobs if job.runs)
        repeated = {job_id: reason for job, reason in entries if reason is not None for job_id in job.ids}
        return replace(self, reasons={**repeated, **self.reasons}) if repeated else self

    @property
    def count(self) -> int:
        return sum(job.count for job in self.jobs)

    def sharing(self) -> dict[JobId, tuple[JobId, ...]]:
        """Return, for each job that shares GPUs now, the jobs that it shares them with."""
        found: dict[JobId, dict[JobId, None]] = {}
        for view in self.gpus:
            for job_id in view.job_ids if len(view.job_ids) > 1 else ():
                found.setdefault(job_id, {}).update(dict.fromkeys(view.job_ids))
        return {
            job_id: tuple(other for other in all_of_them if other != job_id) for job_id, all_of_them in found.items()
        }

    def sharing_with(self, job: Job) -> tuple[JobId, ...]:
        return self.sharing().get(job.id, ()) if job.spec.gpus.promised else ()


CONNECTING = "connecting"
"""Problem of a server that has not answered yet, and may at any moment."""


class ServerView(Struct, frozen=True):
    """Independent server among several in a console."""

    name: str
    snapshot: Snapshot = Snapshot()
    """Its own snapshot, with ids that are unique in the console; the last one while it does not answer."""
    settings: Settings = Settings()
    """Its settings for planning."""
    seen_at: datetime | None = None
    """Time of its last message; None: there was none."""
    problem: str = ""
    """Sentence that says why it does not answer; empty while it does."""


EMPTY = Snapshot()
"""Snapshot without any data, so that callers need no None."""


def effective_settings(settings: Settings, controls: Controls) -> Settings:
    """Return the effective settings; the same object if nothing is overridden."""
    policy = effective_policy(settings.policy, controls)
    return settings if policy is settings.policy else replace(settings, policy=policy)


def effective_policy(policy: PolicySettings, controls: Controls) -> PolicySettings:
    if not (controls.reservations or controls.tenants or controls.standing):
        return policy
    tenants = {tenant.name: tenant for tenant in (*policy.tenants, *controls.tenants)}
    standing = controls.standing.priority if controls.standing else policy.standing_priority
    return replace(
        policy,
        tenants=tuple(tenants.values()),
        reservations=(*policy.reservations, *controls.reservations),
        standing_priority=standing,
    )


def reservations_by_gpu(snapshot: Snapshot) -> dict[str, list[WindowView]]:
    """Return the reservations of each reserved GPU, by its UUID, in the order of their start.

    One over any GPUs chooses anew until it begins, so no GPU is its own before.
    """
    found: dict[str, list[WindowView]] = {}
    for view in snapshot.windows:
        for uuid in view.gpus if view.window.gpus or view.state is not WindowState.UPCOMING else ():
            found.setdefault(uuid, []).append(view)
    return found


def kept_from(snapshot: Snapshot, tenant: str, priority: int) -> frozenset[str]:
    """Return the UUIDs of the GPUs that are reserved now for other jobs than such ones."""
    now = snapshot.taken_at
    return frozenset(
        uuid
        for view in snapshot.windows
        if view.state is not WindowState.RELEASED and view.window.start <= now < view.window.end
        if not view.window.admits(tenant, priority)
        for uuid in view.gpus
    )


def kept_words(windows: Iterable[WindowView], now: datetime) -> str:
    """Return `reserved for alice until 16:00`, for the first relevant window within a day.

    One that has not begun is `from 14:00 reserved for alice`: where it is cut, it must not look like a present one.
    """
    for view in windows:
        window = view.window
        if view.state is WindowState.RELEASED or window.end <= now or window.start - now > timedelta(hours=24):
            continue
        parts = [plain(window.tenant, 24)] if window.tenant is not None else []
        parts += [] if window.priority is None else [f"priority {window.priority}+"]
        whom = f"nobody ({plain(window.name, 24)})" if window.for_nobody else " or ".join(parts)
        words = f"reserved for {whom}"
        is_now = window.start <= now
        return f"{words} until {minute(window.end, now)}" if is_now else f"from {minute(window.start, now)} {words}"
    return ""
