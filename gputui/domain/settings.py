"""What a site may set, with the defaults. Read from the settings file by `gputui.config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

EVENTS = ("job_completed", "job_failed", "job_cancelled", "gpu_sick", "gpu_well", "disk_low")
"""What hooks can be told of."""


@dataclass(frozen=True)
class SchedulerSettings:
    """How the scheduler behaves."""

    tick_interval: timedelta = timedelta(seconds=2)
    """Longest pause between two ticks; events wake it at once."""
    reconcile_interval: timedelta = timedelta(seconds=30)
    stop_grace: timedelta = timedelta(seconds=10)
    """Between the polite signal and SIGKILL."""
    stale_after: timedelta = timedelta(seconds=5)
    """A reading older than this is not believed: its GPU is UNKNOWN."""
    memory_floor: int = 1024**3
    """Bytes: a GPU with more in use than this, by whoever, is not free."""
    backoff_cap: timedelta = timedelta(minutes=10)
    infrastructure_retries: int = 20
    """Uncharged tries before a job is held, so that a broken host does not spin for ever."""
    fast_failure: timedelta = timedelta(seconds=10)
    """An attempt that fails sooner than this after its start fails fast."""
    fast_failures: int = 3
    """So many fast failures of a job in a row are named in its cause when its retries are used up; 0: never."""
    fast_failing_jobs: int = 5
    """So many different jobs of an image or a tenant that fail fast in a row, and its other jobs wait; 0: never."""
    max_time: timedelta | None = None
    """The longest time limit that may be submitted. Unless `policy.max_time` says otherwise, nothing is planned to run
    longer either."""
    limit_all: bool = False
    """Whether a job submitted without a time limit gets `max_time` as its own."""
    cpu_jobs: int = 8
    """At most so many jobs without GPUs run at once."""
    host_jobs: bool = True
    """Whether host processes may be submitted."""
    hand_over: str = "auto"
    """When the console that schedules goes: `auto` hands over to a background scheduler on hang-up and
    asks on quit, `always` never asks, `never` stops dispatching."""
    disk_floor: int = 1024**3
    """Bytes: with less left for the queue and the logs, a warning is shown and told; 0: never."""
    ignore_processes: tuple[str, ...] = ("Xorg", "gnome-shell", "nvidia-persistenced")
    """Commands whose presence on a GPU does not make it busy."""


@dataclass(frozen=True)
class StoreSettings:
    """How the queue is kept."""

    history_after: timedelta = timedelta(days=7)
    """Finished jobs older than this move to the history files."""
    keep_finished: int = 2000
    """At most so many finished jobs stay in the queue file."""
    group: str | None = None
    """A group that may share the state directory; None: its owner alone."""
    lock_timeout: timedelta = timedelta(seconds=60)
    """How long a command waits for another process that holds `queue.json.lock`, before it gives up."""


@dataclass(frozen=True)
class RuntimeSettings:
    """How jobs are run."""

    docker_host: str | None = None
    """`unix://…`, `tcp://…` or `ssh://…`; None: DOCKER_HOST, else the current docker context."""
    docker_timeout: timedelta = timedelta(seconds=60)
    pull_stall: timedelta = timedelta(minutes=15)
    """A pull of an image without any progress for so long is ended, and tried again like any other failed pull."""
    log_max_size: int = 64 * 1024**2
    log_max_files: int = 3
    """The engine's own rotation of a container's output."""
    pids_limit: int | None = None
    run_as_submitter: bool = False
    """Whether containers run as the user who submitted them (`--user UID:GID`, without new privileges)."""


@dataclass(frozen=True)
class GpuSettings:
    """How GPUs are read."""

    sample_interval: timedelta = timedelta(seconds=1)
    process_interval: timedelta = timedelta(seconds=2)
    slow_interval: timedelta = timedelta(seconds=15)
    hang_after: timedelta = timedelta(seconds=10)
    """A sweep that has not come for so long is given up, with its process."""


@dataclass(frozen=True)
class TenantSettings:
    """What a tenant is due, and may never exceed. What it leaves unused is lent to others."""

    name: str
    weight: float = 1.0
    """Its share is its weight over the sum of all tenants' weights."""
    gpus: int | None = None
    running: int | None = None
    pending: int | None = None
    """At most so many GPUs held, jobs running, and jobs waiting; None: no cap."""


@dataclass(frozen=True)
class Window:
    """GPUs kept for somebody from `start` to `end`."""

    name: str
    start: datetime
    end: datetime
    count: int = 0
    """Any so many GPUs; or else those named."""
    gpus: tuple[str, ...] = ()
    """UUIDs or indices."""
    tenant: str | None = None
    priority: int | None = None
    """Kept for this tenant's jobs, and for all jobs of at least this priority; with neither it is kept for nobody."""

    @property
    def key(self) -> str:
        """What it is remembered by: another window of that name has another start."""
        return f"{self.name}@{self.start.isoformat()}"

    @property
    def for_nobody(self) -> bool:
        """Whether no job may run in it at all."""
        return self.tenant is None and self.priority is None

    def admits(self, tenant: str, priority: int) -> bool:
        """Whether it is kept for such jobs."""
        return (self.tenant is not None and tenant == self.tenant) or (
            self.priority is not None and priority >= self.priority
        )


@dataclass(frozen=True)
class AllowSettings:
    """Options of `docker run` that jobs may use."""

    options: Mapping[str, bool] = field(default_factory=dict)
    """Options by their names in a job file: false forbids one to all, true allows it to all. In a shared queue, options
    that are not named here may be for operators alone."""
    mounts: tuple[str, ...] | None = None
    """Directories of the host that may be mounted, with all below them; None: all, but none in a shared queue."""


@dataclass(frozen=True)
class PolicySettings:
    """Which job is next, and where it goes."""

    class_weight: float = 1000.0
    """Points for each class; a class is 50 of priority."""
    age_weight: float = 1000.0
    """Points for each `age_unit` of waiting."""
    age_unit: timedelta = timedelta(hours=24)
    age_cap: float | None = None
    """At most so many `age_unit`s count; None: all, so that no job is overtaken for ever."""
    duration_weight: float = 1000.0
    """Points taken off for each `age_unit` a job is planned to run, at most `duration_cap` of them: of two jobs
    that have waited alike the shorter goes first."""
    duration_cap: float = 3.0
    fair_weight: float = 500.0
    """Points times the fair-share factor, which is 1 for a tenant that used nothing."""
    half_life: timedelta = timedelta(days=7)
    """Of used GPU-seconds."""
    limit_low: timedelta = timedelta(hours=72)
    limit_normal: timedelta = timedelta(hours=24)
    limit_high: timedelta = timedelta(hours=4)
    """How long a job without a limit of its own is taken to run, by its class; it is not ended by this."""
    max_time: timedelta | None = None
    """For planning alone: no job is taken to run longer, whatever its limit. None: `scheduler.max_time`."""
    predict: bool = True
    """Plan with what the tenant's last two runs of the same name or image took, where that is less than the limit."""
    patience: timedelta = timedelta(minutes=5)
    """How long a job that asks for 2 to 4 GPUs waits for 4 before it takes fewer."""
    prefer: tuple[str, ...] = ()
    """UUIDs or indices of the GPUs given out first."""
    left_free: tuple[str, ...] = ()
    """UUIDs or indices of GPUs given only to jobs that name them."""
    forecast_jobs: int = 50
    """Of so many jobs the start is forecast at every look."""
    standing_priority: int | None = None
    """While a job of at least this priority waits for GPUs, no job below it is given any."""
    reservation_grace: timedelta = timedelta(minutes=15)
    """A reservation in which no job it is kept for has run so long after its start, and none waits, is given up."""
    share: tuple[str, ...] = ()
    """UUIDs or indices of the GPUs that jobs which ask for it may share, or "all"; MIG instances by UUID."""
    share_jobs: int = 2
    """At most so many jobs on one of them."""
    preemption: bool = False
    """Whether a job submitted with `--preemptible` is stopped, and requeued, when a waiting one of a higher class needs
    its GPUs. Classes: priority 0 to 25 is low, 26 to 74 normal, 75 to 100 high."""
    preemption_grace: timedelta = timedelta(seconds=60)
    """Between the polite signal and SIGKILL for a job that is preempted."""
    preemption_min_run: timedelta = timedelta(minutes=10)
    """How long an attempt runs at least before it is preempted."""
    preemptions_per_job: int = 3
    """A job preempted so often is preempted no more."""
    preemptions_per_hour: int = 20
    """At most so many jobs are preempted within an hour."""
    tenants: tuple[TenantSettings, ...] = ()
    reservations: tuple[Window, ...] = ()
    allow: AllowSettings = AllowSettings()
    """In the file a table: `[policy.allow]`, with a key for each option, and `mounts`."""
    operators: tuple[str, ...] = ()
    """Users, and groups after an @, who may use every option in a shared queue, as root and its owner may."""


QUEUE_COLUMNS = (
    "id",
    "state",
    "priority",
    "name",
    "tenant",
    "gpus",
    "time",
    "limit",
    "age",
    "start",
    "why",
    "eta",
    "left",
    "where",
    "user",
    "image",
    "attempts",
    "exit",
    "submitted",
    "started",
    "ended",
    "score",
)
"""What the console's queue can show."""


@dataclass(frozen=True)
class ConsoleSettings:
    """How the console behaves."""

    what_if: str = "always"
    """Before a wish that changes whose turn it is: `always` shows how starts would shift, and Enter commits; `off`
    commits at once."""
    read_only: bool = False
    """Whether the console only looks on: it schedules never, and sends no wish."""
    toast: str = "all"
    bell: str = "none"
    desktop: str = "none"
    """What is told for a moment on the screen, by the terminal's bell, and as a notification of the desktop, which not
    every terminal can show: `none`; `failed` jobs, sick GPUs and other trouble; `all` for good ends too."""
    notify_for: str = "mine"
    """Of whose jobs: `mine`, that is submitted by me or charged to me, or `all`."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys by the name of the command, in place of the ones it has: docs/keys.md lists the names."""
    theme: str = "auto"
    """`auto`, `gputui-light`, `gputui-contrast`, … or one of Textual's; `auto` is `gputui`. A terminal of sixteen
    colours gets `gputui-16` in place of any but such a theme."""
    ascii: str = "auto"
    """`always` or `never` draw with ASCII alone; `auto` where the locale is not UTF-8 and on the kernel's console."""
    slow: bool = False
    """For thin lines: fewer frames, pictures every few seconds, no graphs."""
    columns: tuple[str, ...] = ()
    """Columns of the queue, in their order, for who has not chosen any in the console; empty: the usual ones."""


@dataclass(frozen=True)
class HookSettings:
    """Whom the scheduler tells of what happened. Nothing waits for it: a hook that hangs is ended, and tried again."""

    on_job_end: tuple[str, ...] = ()
    """A command, run when a job has ended for good; what happened is JSON on its standard input."""
    on_notice: tuple[str, ...] = ()
    """A command, run when a GPU is sick or well again, and when the disk fills."""
    webhook: str | None = None
    """An http or https address, which gets the same JSON by POST."""
    webhook_events: tuple[str, ...] = EVENTS
    mail_to: tuple[str, ...] = ()
    """Addresses, written to through the host's sendmail."""
    mail_events: tuple[str, ...] = ("job_failed", "gpu_sick", "disk_low")
    sendmail: str = "/usr/sbin/sendmail"
    timeout: timedelta = timedelta(seconds=30)
    """After so long a hook is ended, with its children."""
    tries: int = 5
    """So often at most, with pauses from 5 seconds to 20 minutes between."""
    max_age: timedelta = timedelta(hours=6)
    """What happened longer ago is told no more: nobody wants yesterday's mails after a restart."""


@dataclass(frozen=True)
class Settings:
    """Everything a site may set."""

    scheduler: SchedulerSettings = SchedulerSettings()
    store: StoreSettings = StoreSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    gpus: GpuSettings = GpuSettings()
    policy: PolicySettings = PolicySettings()
    console: ConsoleSettings = ConsoleSettings()
    hooks: HookSettings = HookSettings()
