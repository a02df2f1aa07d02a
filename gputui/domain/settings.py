"""Settings of a site, with their defaults. Read from the settings file by `gputui.config`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct, field

EVENTS = (
    "job_completed",
    "job_failed",
    "job_cancelled",
    "gpu_sick",
    "gpu_well",
    "gpus_idle",
    "disk_low",
    "weekly_report",
)
"""Events that hooks can be notified of."""


class SchedulerSettings(Struct, frozen=True):
    """Behaviour of the scheduler."""

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
    """Number of fast failures in a row from which a job's cause mentions them, once its retries are used up; 0: never.
    """
    fast_failing_jobs: int = 5
    """Number of different jobs of an image or a tenant that fail fast in a row before its other jobs wait; 0: never."""
    max_time: timedelta | None = None
    """The longest time limit that may be submitted. Unless `policy.max_time` says otherwise, nothing is planned to run
    longer either."""
    limit_all: bool = False
    """True if a job submitted without a time limit gets `max_time` as its own."""
    cpu_jobs: int = 8
    """Maximum number of running jobs without GPUs."""
    host_jobs: bool = True
    """True if host processes may be submitted."""
    hand_over: str = "auto"
    """Action when the console that schedules exits: `auto` hands over to a background scheduler on hang-up and asks on
    quit, `always` never asks, `never` stops dispatching."""
    disk_floor: int = 1024**3
    """Bytes: with less left for the queue and the logs, a warning is shown and told; 0: never."""
    idle_gpus_after: timedelta = timedelta(minutes=30)
    """Time for which a job leaves a GPU at utilisation 0 with the same memory in use until that is told; 0: never."""
    idle_gpus_end: timedelta | None = None
    """A job that leaves all its GPUs idle is ended so long after that was told. None: never."""
    ignore_processes: tuple[str, ...] = ("Xorg", "gnome-shell", "nvidia-persistenced")
    """Commands whose presence on a GPU does not make it busy."""


class StoreSettings(Struct, frozen=True):
    """Storage of the queue."""

    history_after: timedelta = timedelta(days=7)
    """Finished jobs older than this move to the history files."""
    keep_finished: int = 2000
    """Maximum number of finished jobs in the queue file."""
    group: str | None = None
    """A group that may share the state directory; None: its owner alone."""
    lock_timeout: timedelta = timedelta(seconds=60)
    """Longest time that a command waits for `queue.json.lock` before it gives up."""


class RuntimeSettings(Struct, frozen=True):
    """Execution of jobs."""

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
    """True if containers run as the user who submitted them (`--user UID:GID`, without new privileges)."""


class GpuSettings(Struct, frozen=True):
    """Reading of GPUs."""

    sample_interval: timedelta = timedelta(seconds=1)
    process_interval: timedelta = timedelta(seconds=2)
    slow_interval: timedelta = timedelta(seconds=15)
    hang_after: timedelta = timedelta(seconds=10)
    """A sweep that has not come for so long is given up, with its process."""


class TenantSettings(Struct, frozen=True):
    """Share and caps of a tenant. What it leaves unused is lent to others."""

    name: str
    weight: float = 1.0
    """Weight: the tenant's share is its weight over the sum of all weights."""
    gpus: int | None = None
    running: int | None = None
    pending: int | None = None
    """Maximum number of GPUs held, jobs running, and jobs waiting; None: no cap."""
    max_priority: int | None = None
    """Highest priority that its jobs may be given; None: 50 in a shared queue for all but operators, else 100."""
    users: tuple[str, ...] = ()
    """Users, and groups after an @, who may submit for it in a shared queue, beside operators; empty: anybody."""


class Window(Struct, frozen=True):
    """GPUs kept for somebody from `start` to `end`."""

    name: str
    start: datetime
    end: datetime
    count: int = 0
    """Number of GPUs, whichever they are; or else the named ones."""
    gpus: tuple[str, ...] = ()
    """UUIDs or indices of the reserved GPUs."""
    tenant: str | None = None
    priority: int | None = None
    """Kept for this tenant's jobs, and for all jobs of at least this priority; with neither it is kept for nobody."""

    @property
    def key(self) -> str:
        """Key that identifies it: another window of that name has another start."""
        return f"{self.name}@{self.start.isoformat()}"

    @property
    def for_nobody(self) -> bool:
        """Return whether no job may run in it at all."""
        return self.tenant is None and self.priority is None

    def admits(self, tenant: str, priority: int) -> bool:
        """Return whether it is reserved for such jobs."""
        return (self.tenant is not None and tenant == self.tenant) or (
            self.priority is not None and priority >= self.priority
        )


class AllowSettings(Struct, frozen=True):
    """Options of `docker run` that jobs may use."""

    options: Mapping[str, bool] = field(default_factory=dict)
    """Options by their names in a job file: false forbids one to all, true allows it to all. In a shared queue, options
    that are not named here may be for operators alone."""
    mounts: tuple[str, ...] | None = None
    """Directories of the host that may be mounted, with all below them; None: all, but none in a shared queue."""


class PolicySettings(Struct, frozen=True):
    """Scheduling policy: the order of jobs and their GPUs."""

    promote_after: timedelta = timedelta(days=10)
    """Eligible wait after which a job goes first in its class: low (priority 0 to 25), normal (26 to 74), high (75 to
    100). 0: never."""
    age_unit: timedelta = timedelta(hours=36)
    """Eligible wait that is worth a point of score to a job of one GPU, beside the expansion factor. Jobs of two, four
    and eight GPUs or more age 1.2, 1.4 and 1.6 times as fast."""
    newcomer_credit: timedelta = timedelta(days=10)
    """Wait credited to jobs of a tenant that has used nothing lately, less twelve times the job's planned duration. It
    shrinks with the part of its share that the tenant has used, and is gone once that is the whole. 0: never."""
    half_life: timedelta = timedelta(days=7)
    """Half-life of used GPU-seconds."""
    max_time: timedelta | None = None
    """Longest planned runtime, for planning only; a job without a limit is planned to run so long. None:
    `scheduler.max_time`, else 72 hours for jobs without a limit, or the longest limit stated if that is more."""
    predict: bool = True
    """True if a running job without a limit is expected to take as long as its tenant's last two runs of that name or
    image did. The order of the queue never goes by that."""
    patience: timedelta = timedelta(0)
    """Time for which a job that asks for 2 to 4 GPUs waits for 4 before it accepts fewer; 0: it takes as many as are
    free."""
    prefer: tuple[str, ...] = ()
    """UUIDs or indices of the GPUs given out first."""
    left_free: tuple[str, ...] = ()
    """UUIDs or indices of GPUs given only to jobs that name them."""
    forecast_jobs: int = 50
    """Number of starts that each plan forecasts."""
    standing_priority: int | None = None
    """Priority of the standing rule: while a job of at least this priority waits for GPUs, no job below it gets any."""
    reservation_grace: timedelta = timedelta(minutes=15)
    """A reservation in which no job it is kept for has run so long after its start, and none waits, is given up."""
    share: tuple[str, ...] = ()
    """UUIDs or indices of the GPUs that jobs which ask for it may share, or "all"; MIG instances by UUID."""
    share_jobs: int = 2
    """Maximum number of jobs on a shared GPU."""
    preemption: bool = False
    """True if a job submitted with `--preemptible` is stopped, and requeued, when a waiting one of a higher class needs
    its GPUs. Classes: priority 0 to 25 is low, 26 to 74 normal, 75 to 100 high."""
    preemption_grace: timedelta = timedelta(seconds=60)
    """Between the polite signal and SIGKILL for a job that is preempted."""
    preemption_min_run: timedelta = timedelta(minutes=10)
    """Shortest runtime of an attempt before it may be preempted."""
    preemptions_per_job: int = 3
    """A job preempted so often is preempted no more."""
    preemptions_per_hour: int = 20
    """Maximum number of preemptions within an hour."""
    tenants: tuple[TenantSettings, ...] = ()
    reservations: tuple[Window, ...] = ()
    allow: AllowSettings = AllowSettings()
    """Options that members may use: in the file a table `[policy.allow]`, with a key for each option, and `mounts`."""
    extend: str = "owner"
    """Users who may give a running job more time: `owner`, its submitter as far as `scheduler.max_time` and operators
    beyond it; or `operator`, operators alone."""
    operators: tuple[str, ...] = ()
    """Users, and groups after an @, who may use every option in a shared queue, as root and its owner may."""


QUEUE_COLUMNS = (
    "id",
    "state",
    "priority",
    "name",
    "tenant",
    "gpus",
    "progress",
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
    "command",
    "attempts",
    "exit",
    "submitted",
    "started",
    "ended",
    "score",
)
"""Columns that the console's queue can show."""


class ConsoleSettings(Struct, frozen=True):
    """Behaviour of the console."""

    what_if: str = "always"
    """Preview of a verb that changes the order: `always` shows which jobs it would delay, and Enter commits; `off`
    commits immediately."""
    read_only: bool = False
    """True if the console is read-only: it never schedules and changes nothing."""
    toast: str = "all"
    bell: str = "none"
    desktop: str = "none"
    """Notifications by a toast, the terminal's bell and the desktop (where the terminal supports it): `none`; `failed`
    for failed jobs, sick GPUs and other trouble; `all` for good ends too."""
    notify_for: str = "mine"
    """Jobs to notify about: `mine`, submitted by or charged to this user, or `all`."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys by the name of the command, in place of the ones it has: docs/keys.md lists the names."""
    theme: str = "auto"
    """`auto`, `gputui-light`, `gputui-contrast`, … or one of Textual's; `auto` is `gputui`. A terminal of sixteen
    colours gets `gputui-16` in place of any but such a theme."""
    ascii: str = "auto"
    """`always` or `never` draw with ASCII alone; `auto` where the locale is not UTF-8 and on the kernel's console."""
    slow: bool = False
    """Mode for slow connections: fewer frames, updates every few seconds, no graphs."""
    columns: tuple[str, ...] = ()
    """Columns of the queue, in their order, for who has not chosen any in the console; empty: the usual ones."""
    log_place: str = "auto"
    """Place of the log for who has not chosen one in the console: `below` the queue or `beside` it (from 160 columns);
    `auto` is beside from 250 columns."""
    fold_ended_after: timedelta = timedelta(minutes=5)
    """Time for which an ended job keeps a row of its own in the queue, before it joins those in the folded row."""
    gpu_colours: str = "judgement"
    """Colours of GPUs: `judgement` (busy is green, an idle job amber) or `intensity` (more load is redder)."""
    idle_below: int = 10
    """Utilisation in percent below which the GPU of a running job counts as idle; 0: never."""
    idle_after: timedelta = timedelta(minutes=5)
    """Time for which such a GPU has to be idle until it is shown as an alarm."""
    memory_high: int = 90
    memory_full: int = 97
    """Percentages of GPU memory from which it is amber and red."""
    temperature_high: int = 80
    temperature_limit: int = 88
    """Degrees Celsius from which the temperature is amber and red."""
    power_high: int = 97
    """Percentage of the power limit from which power is amber; it is red when the GPU is slowed down for it."""
    load_moderate: int = 10
    load_heavy: int = 75
    """Percentages of utilisation and power that are yellow and red in the colours by intensity."""
    memory_moderate: int = 10
    memory_heavy: int = 80
    """Percentages of memory that are yellow and red in the colours by intensity."""


class HookSettings(Struct, frozen=True):
    """Receivers of the scheduler's events. Nothing waits for a hook: one that hangs is stopped and tried again."""

    on_job_end: tuple[str, ...] = ()
    """A command, run when a job has ended for good; what happened is JSON on its standard input."""
    on_notice: tuple[str, ...] = ()
    """A command, run when a GPU is sick or well again, and when the disk fills."""
    webhook: str | None = None
    """An http or https address, which gets the same JSON by POST."""
    webhook_events: tuple[str, ...] = EVENTS
    mail_to: tuple[str, ...] = ()
    """Addresses, written to through the host's sendmail."""
    mail_events: tuple[str, ...] = ("job_failed", "gpu_sick", "disk_low", "weekly_report")
    sendmail: str = "/usr/sbin/sendmail"
    timeout: timedelta = timedelta(seconds=30)
    """Time after which a hook is ended, with its children."""
    tries: int = 5
    """Maximum number of tries, with pauses from 5 seconds to 20 minutes between them."""
    max_age: timedelta = timedelta(hours=6)
    """Age from which an event is no longer sent: nobody wants yesterday's mails after a restart."""


class MetricsSettings(Struct, frozen=True):
    """Metrics for Prometheus, served by the process that schedules."""

    enabled: bool = False
    """True if metrics are served."""
    listen: str = "127.0.0.1:9877"
    """Address and port; a port alone means the loopback address. IPv6 addresses stand in brackets."""
    certificate: str | None = None
    key: str | None = None
    """Files with a certificate chain and its key, in PEM: with both, the port speaks TLS alone."""
    client_ca: str | None = None
    """File with certificates in PEM: clients must show a certificate that one of these signed."""
    users: str | None = None
    """File of those who may scrape, as `htpasswd -B` writes it: a line `NAME:HASH` each, with bcrypt hashes."""
    tenants: int = 50
    """Number of tenants with series of their own; the others are counted together as `other`."""
    dcgm: bool = False
    """True if GPU readings are also served under the names of NVIDIA's dcgm-exporter, for dashboards made for it."""
    hpc_job_mapping_dir: str | None = None
    """Directory for files that name the jobs on each GPU: dcgm-exporter reads it by an option of the same name."""


class ReportSettings(Struct, frozen=True):
    """Rates of `gputui report`, and the report that is sent every week."""

    gpu_hour: float | None = None
    """Price of an hour of a GPU; None: it has none."""
    kwh: float | None = None
    """Price of a kilowatt-hour; None: it has none."""
    currency: str = ""
    """Currency of the prices, as shown: `EUR`."""
    weekly: str = ""
    """Weekday and local time, such as `Mon 08:00`, at which the report of the last seven days goes to mail, webhook and
    `on_notice` as the event `weekly_report`; empty: never."""


class Settings(Struct, frozen=True):
    """Everything a site may set."""

    scheduler: SchedulerSettings = SchedulerSettings()
    store: StoreSettings = StoreSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    gpus: GpuSettings = GpuSettings()
    policy: PolicySettings = PolicySettings()
    console: ConsoleSettings = ConsoleSettings()
    hooks: HookSettings = HookSettings()
    metrics: MetricsSettings = MetricsSettings()
    report: ReportSettings = ReportSettings()
