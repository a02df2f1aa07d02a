"""Settings of a site, with their defaults. Read from the settings file by `gputui.config`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, time, timedelta, tzinfo
from typing import Any

from msgspec import Struct, field

from gputui.domain.errors import InputError

EVENTS = (
    *("job_completed", "job_failed", "job_cancelled"),
    *("gpu_sick", "gpu_well", "gpus_idle"),
    *("node_down", "node_up", "queue_stuck"),
    *("disk_low", "weekly_report"),
)
"""Events that hooks can be notified of."""


class SchedulerSettings(Struct, frozen=True):
    """Behaviour of the scheduler."""

    tick_interval: timedelta = timedelta(seconds=2)
    """Longest pause between two ticks; events wake it at once."""
    reconcile_interval: timedelta = timedelta(seconds=30)
    stop_grace: timedelta = timedelta(seconds=10)
    """Time between the stop signal and SIGKILL."""
    stale_after: timedelta = timedelta(seconds=5)
    """Age from which a reading is not used: its GPU is UNKNOWN."""
    memory_floor: int = 1024**3
    """Bytes: a GPU with more memory in use, by any process, is not free."""
    backoff_cap: timedelta = timedelta(minutes=10)
    infrastructure_retries: int = 20
    """Maximum number of uncharged retries before a job is held, so that a broken host does not loop for ever."""
    fast_failure: timedelta = timedelta(seconds=10)
    """Time after its start within which a failing attempt is a fast failure."""
    fast_failures: int = 3
    """Number of fast failures in a row from which a job's cause mentions them, once its retries are used up; 0: never.
    """
    fast_failing_jobs: int = 5
    """Number of a user's jobs of an image or a tenant that fail fast in a row before the others wait; 0: never."""
    max_time: timedelta | None = None
    """The longest time limit that may be submitted.

    Unless `policy.max_time` says otherwise, it also limits planned runtimes.
    """
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
    """Bytes of free space for the queue and the logs below which a warning is shown and sent; 0: never."""
    idle_gpus_after: timedelta = timedelta(minutes=30)
    """Time at utilisation 0 with the same memory in use after which a GPU is reported as idle; 0: never."""
    idle_gpus_end: timedelta | None = None
    """Time after that report at which a job that leaves all its GPUs idle is ended. None: never."""
    ignore_processes: tuple[str, ...] = (
        *("Xorg", "Xwayland", "gnome-shell", "nvidia-persistenced"),
        *("nvidia-cuda-mps-server", "nvidia-cuda-mps-control"),
    )
    """Names of programs, or whole command lines, whose presence on a GPU does not make it busy."""
    need_process_lists: bool = True
    """True if a GPU whose driver has no list of processes, as under WSL 2, is never free.

    False: it is judged by its memory and by containers alone, so a process that uses little memory is not seen.
    """


class StoreSettings(Struct, frozen=True):
    """Storage of the queue."""

    history_after: timedelta = timedelta(days=7)
    """Finished jobs older than this move to the history files."""
    keep_finished: int = 2000
    """Maximum number of finished jobs in the queue file."""
    group: str | None = None
    """Group that shared the state directory; None: none did. `gputui install --users --convert` ends that."""
    lock_timeout: timedelta = timedelta(seconds=60)
    """Longest time that a command waits for `queue.json.lock` before it gives up."""
    logs_max_age: timedelta | None = None
    logs_max_size: int | None = None
    """Age and total bytes above which the scheduler removes saved logs of ended jobs, oldest first; None: no limit."""
    telemetry_max_age: timedelta | None = None
    telemetry_max_size: int | None = None
    """The same for the readings over time of ended attempts; summaries of attempts stay with their jobs."""
    history_max_age: timedelta | None = None
    history_max_size: int | None = None
    """The same for finished jobs in the history files."""
    audit_max_age: timedelta | None = None
    audit_max_size: int | None = None
    """The same for the audit log."""


class RuntimeSettings(Struct, frozen=True):
    """Execution of jobs."""

    docker_host: str | None = None
    """`unix://…`, `tcp://…` or `ssh://…`; None: DOCKER_HOST, else the current docker context."""
    docker_timeout: timedelta = timedelta(seconds=60)
    pull_stall: timedelta = timedelta(minutes=15)
    """Time without progress after which a pull of an image is stopped, and retried like any other failed pull."""
    log_max_size: int = 64 * 1024**2
    log_max_files: int = 3
    """The engine's own rotation of a container's output."""
    pids_limit: int | None = None
    run_as_submitter: bool | None = None
    """True if containers run as the user who submitted them, without capabilities; None: those of plain users."""
    as_guest: bool = False
    """True if jobs get GPUs of another machine's engine although a gputui there gives them out too."""
    probe_image: str = "python:3-slim"
    """Image with Python 3.8 or newer in which GPUs of another machine's engine are read if ssh does not do."""


class GpuSettings(Struct, frozen=True):
    """Reading of GPUs."""

    sample_interval: timedelta = timedelta(seconds=1)
    process_interval: timedelta = timedelta(seconds=2)
    slow_interval: timedelta = timedelta(seconds=15)
    hang_after: timedelta = timedelta(seconds=10)
    """Time without a completed sweep after which the probe process is replaced."""


class TenantSettings(Struct, frozen=True):
    """Share and caps of a tenant. Other tenants may use its unused share."""

    name: str
    weight: float = 1.0
    """Weight: the tenant's share is its weight over the sum of all weights."""
    gpus: int | None = None
    running: int | None = None
    pending: int | None = None
    """Maximum number of GPUs held, jobs running, and jobs waiting; None: no cap."""
    max_priority: int | None = None
    """Highest priority of its jobs; None: 50 for all but operators where there are other users, else 100."""
    users: tuple[str, ...] = ()
    """Users, and groups after an @, who may submit for it, besides operators; empty: anybody."""


class Window(Struct, frozen=True):
    """GPUs reserved from `start` to `end`."""

    name: str
    start: datetime
    end: datetime
    count: int = 0
    """Number of GPUs, or 0 for the named ones."""
    gpus: tuple[str, ...] = ()
    """UUIDs or indices of the reserved GPUs."""
    tenant: str | None = None
    priority: int | None = None
    """Reserved for this tenant's jobs, and for all jobs of at least this priority; with neither it is for no jobs."""

    @property
    def key(self) -> str:
        """Key that identifies the window: windows of one name differ in their start."""
        return f"{self.name}@{self.start.isoformat()}"

    @property
    def for_nobody(self) -> bool:
        return self.tenant is None and self.priority is None

    def admits(self, tenant: str, priority: int) -> bool:
        """Return whether it is reserved for such jobs."""
        return (self.tenant is not None and tenant == self.tenant) or (
            self.priority is not None and priority >= self.priority
        )


class AllowSettings(Struct, frozen=True):
    """Options of `docker run` that jobs may use."""

    options: Mapping[str, bool] = field(default_factory=dict)
    """Options by their names in a job file.

    `false` forbids one to all, `true` allows one to plain users that admission refuses otherwise.
    """
    mounts: tuple[str, ...] | None = None
    """Host directories that may be mounted, including subdirectories; None: all. For plain users see `[admission]`."""
    named_volumes: tuple[str, ...] | None = None
    """Volumes of the engine that may be mounted by name; None: all by operators, and by plain users their own."""


class AccessSettings(Struct, frozen=True):
    """Users of the queue, besides its operators."""

    users: tuple[str, ...] = ()
    """Users who may submit jobs and act on their own: names, `@group` for a group's members, or `*` for everybody."""
    show_commands: bool = True
    """True if all see the commands of all jobs; else only its submitter and operators see that of a job."""
    show_logs: bool = False
    """True if all users may read the logs of all jobs."""
    socket: str | None = None
    """Unix socket of the service; None: `api.sock` in the state directory, and `/run/gputui/api.sock`."""
    agent_priority: int = 50
    """Highest priority that programs may give which ask for a user by `gputui mcp`."""
    agent_gpus: int | None = None
    """Most GPUs that the jobs of one user may take at once which such programs submitted; None: no limit."""


class AdmissionSettings(Struct, frozen=True):
    """Limits of the jobs of users who are not operators; see `policy.admission`."""

    host_jobs: bool = True
    """True if they may run host jobs, each as its submitter."""
    images: tuple[str, ...] = ()
    """Patterns of images that they may run, as `docker.io/library/*` or `ghcr.io/lab/*@sha256:*`; empty: any."""
    root_images: tuple[str, ...] = ()
    """Patterns of images that run as the user they name, often root: without host directories, and in their own box."""
    mounts: tuple[str, ...] = ()
    """Host directories that they may mount, as far as each may open them: `/data`, `/scratch/{user}`."""
    networks: tuple[str, ...] = ()
    """Networks of the engine that they may join besides `bridge` and `none`."""
    waiting: int = 2000
    """Most waiting jobs of one user; elements of an array that are alike count as one. A queue of many is slow for all.
    """
    recurring: int = 100
    """Most recurring jobs of one user."""
    pids: int = 16384
    """Maximum number of processes and threads of a container."""
    memory: int | None = None
    cpus: float | None = None
    shm_size: int | None = None
    """Most memory, processors and /dev/shm of a job; a container that asks for none gets that much. None: no limit."""


class PolicySettings(Struct, frozen=True):
    """Scheduling policy: the order of jobs and their GPUs."""

    promote_after: timedelta = timedelta(days=12)
    """Eligible wait after which a job goes first in its class: low (priority 0 to 25), normal (26 to 74), high (75 to
    100). 0: never."""
    age_unit: timedelta = timedelta(hours=36)
    """Eligible wait that is worth one point of score, besides the expansion factor."""
    newcomer_credit: timedelta = timedelta(days=10)
    """Wait credited to jobs of a tenant that has used nothing recently, less twelve times the job's planned duration.

    It shrinks as the tenant uses up its share, down to nothing at its full share. 0: never.
    """
    half_life: timedelta = timedelta(days=7)
    """Half-life of used GPU-seconds."""
    max_time: timedelta | None = None
    """Longest planned runtime, for planning only, which is also planned for jobs without a limit.

    None: `scheduler.max_time`, else 72 hours for jobs without a limit, or the longest limit of any job if that is more.
    """
    predict: bool = True
    """True if a running job without a limit is expected to take as long as previous runs.

    These are the last two runs of its tenant with that name or image. This never affects the order of the queue.
    """
    patience: timedelta = timedelta(0)
    """Time for which a job that asks for 2 to 4 GPUs waits for 4 before it accepts fewer; 0: it takes as many as are
    free."""
    prefer: tuple[str, ...] = ()
    """UUIDs or indices of the GPUs that are assigned first."""
    left_free: tuple[str, ...] = ()
    """UUIDs or indices of GPUs given only to jobs that name them."""
    forecast_jobs: int = 50
    """Number of starts that each plan forecasts."""
    standing_priority: int | None = None
    """Priority of the standing rule: while a job of at least this priority waits for GPUs, no job below it gets any."""
    reservation_grace: timedelta = timedelta(minutes=15)
    """Time after its start at which a reservation is released if none of its jobs has run in it and none waits."""
    share: tuple[str, ...] = ()
    """UUIDs or indices of the GPUs that jobs with `--share` may share, or "all"; MIG instances by UUID."""
    share_jobs: int = 2
    """Maximum number of jobs on a shared GPU."""
    preemption: bool = False
    """True if a job submitted with `--preemptible` is stopped, and requeued, when a waiting one of a higher class needs
    its GPUs. Classes: priority 0 to 25 is low, 26 to 74 normal, 75 to 100 high."""
    preemption_grace: timedelta = timedelta(seconds=60)
    """Time between the stop signal and SIGKILL for a job that is preempted."""
    preemption_min_run: timedelta = timedelta(minutes=10)
    """Shortest runtime of an attempt before it may be preempted."""
    preemptions_per_job: int = 3
    """Number of preemptions after which a job is no longer preempted."""
    preemptions_per_hour: int = 20
    """Maximum number of preemptions within an hour."""
    tenants: tuple[TenantSettings, ...] = ()
    reservations: tuple[Window, ...] = ()
    allow: AllowSettings = AllowSettings()
    """Options that jobs may use: in the file a table `[policy.allow]`, with a key for each option, `mounts` and
    `named_volumes`."""
    extend: str = "owner"
    """Users who may give a running job more time.

    `owner`, its submitter up to `scheduler.max_time` and operators beyond it; or `operator`, only operators.
    """
    operators: tuple[str, ...] = ()
    """Users, and groups after an @, who are operators, like root and the owner of the state directory."""


class ConsoleSettings(Struct, frozen=True):
    """Behaviour of the console."""

    what_if: str = "always"
    """Preview of a verb that changes the order: `always` shows which jobs it would delay, and Enter commits; `off`
    commits immediately."""
    read_only: bool = False
    """True if the console is read-only: it never schedules and changes nothing."""
    toast: str = "failed"
    bell: str = "none"
    desktop: str = "none"
    """Notifications by a message on the screen, the terminal's bell and the desktop (where the terminal supports it).

    `none`; `failed` for failed jobs, sick GPUs and other problems; `all` also for completed jobs.
    """
    notify_for: str = "mine"
    """Jobs to notify about: `mine`, submitted by or charged to this user, or `all`."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys by the name of the command, replacing its default keys; docs/keys.md lists the names."""
    theme: str = "auto"
    """`auto`, `gputui-light`, `gputui-contrast`, … or one of Textual's.

    `auto` is `gputui`. A terminal with sixteen colours gets `gputui-16` unless the theme is made for it.
    """
    ascii: str = "auto"
    """`always` or `never` draw with ASCII only; `auto` where the locale is not UTF-8 and on the kernel's console."""
    slow: bool = False
    """Mode for slow connections: fewer frames, updates every few seconds, no graphs."""
    columns: tuple[str, ...] = ()
    """Columns of the queue, in order, for users who have not chosen any in the console; empty: the default ones."""
    log_place: str = "auto"
    """Place of the log for users who have not chosen one in the console.

    `below` the queue or `beside` it (from 160 columns); `auto` is beside from 250 columns.
    """
    gpu_colours: str = "judgement"
    """Colours of GPUs: `judgement` (busy is green, an idle job amber) or `intensity` (more load is redder)."""
    idle_below: int = 10
    """Utilisation in percent below which a GPU counts as idle that a running job or a foreign process holds; 0: never.

    The scheduler judges by its own settings, so that all consoles and commands tell the same.
    """
    idle_after: timedelta = timedelta(minutes=5)
    """Time after which such an idle GPU is shown as an alarm."""
    memory_high: int = 90
    """Percentage of GPU memory from which it is shown amber."""
    temperature_high: int = 80
    """Degrees Celsius from which the temperature is shown amber; it is red only while heat slows the GPU."""
    load_moderate: int = 10
    load_heavy: int = 75
    """Percentages of utilisation and power that are shown yellow and red in the colours by intensity."""
    memory_moderate: int = 10
    memory_heavy: int = 80
    """Percentages of memory that are shown yellow and red in the colours by intensity."""


class HookSettings(Struct, frozen=True):
    """Receivers of the scheduler's events. Nothing waits for a hook: one that hangs is stopped and retried."""

    on_job_end: tuple[str, ...] = ()
    """A command, run when a job has ended and will not be retried; it gets the event as JSON on its standard input."""
    on_notice: tuple[str, ...] = ()
    """A command, run when a GPU becomes sick or recovers, and when the disk is nearly full; in a cluster also when a
    node goes down or returns, and when the queue is stuck."""
    webhook: str | None = None
    """An http or https address, which gets the same JSON by POST."""
    webhook_events: tuple[str, ...] = EVENTS
    mail_to: tuple[str, ...] = ()
    """Mail addresses, sent to through the host's sendmail."""
    mail_events: tuple[str, ...] = ("job_failed", "gpu_sick", "node_down", "queue_stuck", "disk_low", "weekly_report")
    sendmail: str = "/usr/sbin/sendmail"
    timeout: timedelta = timedelta(seconds=30)
    """Time after which a hook is killed, with its children."""
    tries: int = 5
    """Maximum number of tries, with pauses from 5 seconds to 20 minutes."""
    max_age: timedelta = timedelta(hours=6)
    """Age from which an event is dropped, so that a restart does not send old events."""
    cluster_jobs: str = "own"
    """Jobs of a cluster whose ends are events: `own`, those of the user who runs gputui; `all`, those of all users."""

    @property
    def has_receivers(self) -> bool:
        return bool(self.on_job_end or self.on_notice or self.webhook or self.mail_to)


class MetricsSettings(Struct, frozen=True):
    """Metrics for Prometheus, served by the process that schedules."""

    enabled: bool = False
    """True if metrics are served."""
    listen: str = "127.0.0.1:9877"
    """Address and port; a port alone means the loopback address. IPv6 addresses are in brackets."""
    certificate: str | None = None
    key: str | None = None
    """Files with a certificate chain and its key, in PEM; with both, the port accepts only TLS."""
    client_ca: str | None = None
    """File with CA certificates in PEM; clients must present a certificate signed by one of them."""
    users: str | None = None
    """File of users who may scrape, as written by `htpasswd -B`: a line `NAME:HASH` each, with bcrypt hashes."""
    tenants: int = 50
    """Maximum number of tenants with their own series; the others are counted together as `other`."""
    dcgm: bool = False
    """True if GPU readings are also served under the names of NVIDIA's dcgm-exporter, for dashboards made for it."""
    hpc_job_mapping_dir: str | None = None
    """Directory for files that name the jobs on each GPU; dcgm-exporter reads it with its option of that name."""


class LogSettings(Struct, frozen=True):
    """The log of gputui itself."""

    format: str = "text"
    """`text`, or `json` for an object of JSON on each line. The journal gets fields of its own either way."""


class TracesSettings(Struct, frozen=True):
    """Traces of jobs for OpenTelemetry, sent by the process that schedules."""

    enabled: bool = False
    """True if the life of each job is sent to a collector when the job ends."""
    endpoint: str | None = None
    """Address that takes OTLP over HTTP; None: as OTEL_EXPORTER_OTLP_ENDPOINT says, else
    `http://localhost:4318/v1/traces`."""
    timeout: timedelta = timedelta(seconds=10)
    """Time in which a batch has to be sent; then it is dropped."""


class ClusterSettings(Struct, frozen=True):
    """The cluster in place of this machine's own queue."""

    engine: str = ""
    """`slurm`, or `slurm+ssh://[USER@]HOST[:PORT]` to run its commands on a login node; `kubernetes`, or
    `kubernetes:CONTEXT` for a context of the kubeconfig; empty: the queue of this machine. GPUTUI_CLUSTER goes first.
    """
    default_time: timedelta | None = None
    """Time limit of a job that is submitted to Slurm without one: Slurm plans with time limits.

    None: the default of its partition, else 24 hours, or the partition's longest if that is shorter.
    """
    partition: str | None = None
    account: str | None = None
    """Partition and account of submitted jobs; None: the engine's defaults."""
    container: str = "docker"
    """Route into the container on the node: `docker`, `apptainer`, or `srun` for sites with
    `srun --container-image`."""
    requeue: bool = False
    """True if the engine may run a job again after a node was lost, although the old container may still run there."""
    log_directory: str | None = None
    """Directory for the output of jobs, on a file system that login node and nodes share; `~` is the home there.

    None: `~/.local/state/gputui/cluster-logs`.
    """
    check_image: str = "ubuntu:24.04"
    """Image for `gputui cluster check`. NVIDIA's container toolkit adds nvidia-smi to any."""
    limit_containers: bool = False
    """True if a container may use no more CPUs and memory than its job was allocated."""
    cdi: bool = False
    """True if the Docker engines of the nodes take GPUs as CDI devices."""
    sbatch_options: tuple[str, ...] = ()
    """Further options of `sbatch` for submitted jobs, such as `--qos=normal`."""
    namespace: str | None = None
    """Namespace of jobs in Kubernetes; None: that of the kubeconfig's context. Exported manifests name it too."""
    priority_classes: tuple[str, ...] = ()
    """Kubernetes' PriorityClasses for the classes low, normal and high; empty: the cluster's default."""
    kueue: str | None = None
    """LocalQueue of Kueue that Kubernetes manifests name; None: no Kueue."""
    keep_ended: timedelta = timedelta(days=7)
    """Time after which Kubernetes removes a job that has ended, with its pods; gputui keeps a record and the output."""
    kubernetes: Mapping[str, Any] = field(default_factory=dict)
    """Pods in Kubernetes, and the GPUs of its nodes, as `domain/pod_template.py` declares and reads them."""
    poll_interval: timedelta = timedelta(seconds=2)
    """Shortest time between two requests for jobs or nodes by all processes of this machine together."""
    command_timeout: timedelta = timedelta(seconds=30)
    """Time after which a command of the engine is given up."""
    probe: str = "off"
    """`ssh`: a probe on each node reads its GPUs, started over ssh by consoles, `gpus` and `doctor`; `off`: none."""
    probe_command: str | None = None
    """Command that runs `gputui probe` on the node `{node}`, such as `ssh {node} /opt/gputui/bin/gputui probe`.

    None: `ssh {node} gputui probe`. With `slurm+ssh://` it runs on the login node.
    """
    probe_interval: timedelta = timedelta(seconds=2)
    """Time between two readings of a node; in clusters of more than 32 nodes it is longer."""


class ReportSettings(Struct, frozen=True):
    """Rates of `gputui report`, and the weekly report."""

    gpu_hour: float | None = None
    """Price of an hour of a GPU; None: no price."""
    kwh: float | None = None
    """Price of a kilowatt-hour; None: no price."""
    currency: str = ""
    """Currency of the prices, for display: `EUR`."""
    weekly: str = ""
    """Weekday and local time of the weekly report, such as `Mon 08:00`; empty: never.

    It is sent to mail, webhook and `on_notice` as the event `weekly_report`.
    """


class ServerSettings(Struct, frozen=True):
    """A server whose queue the console shows beside those of others."""

    name: str
    address: str = ""
    """`ssh://[user@]host[:port]`; empty: this machine."""
    command: str = "gputui"
    """Command of gputui there, as the shell there takes it, such as `/opt/gputui/bin/gputui --state /srv/queue`."""


class Settings(Struct, frozen=True):
    """All settings of a site."""

    scheduler: SchedulerSettings = SchedulerSettings()
    store: StoreSettings = StoreSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    gpus: GpuSettings = GpuSettings()
    policy: PolicySettings = PolicySettings()
    access: AccessSettings = AccessSettings()
    admission: AdmissionSettings = AdmissionSettings()
    console: ConsoleSettings = ConsoleSettings()
    cluster: ClusterSettings = ClusterSettings()
    hooks: HookSettings = HookSettings()
    metrics: MetricsSettings = MetricsSettings()
    report: ReportSettings = ReportSettings()
    log: LogSettings = LogSettings()
    traces: TracesSettings = TracesSettings()
    servers: tuple[ServerSettings, ...] = ()
    """Servers that the console shows together; empty: this machine's queue alone."""

    @property
    def idle_marked_after(self) -> timedelta:
        """Time without any use after which a GPU is marked as idle; zero: never."""
        console = self.console.idle_after if self.console.idle_below else timedelta()
        return min(filter(None, (console, self.scheduler.idle_gpus_after)), default=timedelta())


_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WEEKLY = r"([a-z]{3})[a-z]*\s+([01]?\d|2[0-3]):([0-5]\d)"


class WeeklyTime(Struct, frozen=True):
    """A weekday, from 0 for Monday, and a local time of day."""

    weekday: int
    at: time

    def last(self, now: datetime, zone: tzinfo | None = None) -> datetime:
        """Return the last such time that is not later than now; without a zone, in local time."""
        today = now.astimezone(zone).date()
        for back in range(8):
            day = today - timedelta(days=back)
            # `timestamp` puts a skipped time after the change of clocks; `astimezone` without a zone, before it
            found = datetime.fromtimestamp(datetime.combine(day, self.at, tzinfo=zone).timestamp(), now.tzinfo)
            if day.weekday() == self.weekday and found <= now:
                return found
        raise ValueError("no day of the week is missing")

    def before(self, at: datetime, zone: tzinfo | None = None) -> datetime:
        """Return the last such time before this one: a week of clock changes has an hour more or less."""
        return self.last(at - timedelta(microseconds=1), zone)


def parse_weekly(text: str, *, where: str | None = None) -> WeeklyTime:
    """Parse a time such as `Mon 08:00`; raises InputError."""
    match = re.fullmatch(_WEEKLY, text.strip(), re.IGNORECASE | re.ASCII)
    if match is None or match[1].lower() not in _DAYS:
        raise InputError("expected a weekday and a time", where=where, hint='write "Mon 08:00"')
    return WeeklyTime(_DAYS.index(match[1].lower()), time(int(match[2]), int(match[3])))


_ADDRESS = (
    r"ssh://(?:([A-Za-z0-9_.][^@:/\s]*)@)?"
    r"(\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9_.][^@:/\s\[\]]*)(?::(\d{1,5}))?/?"
)


class SshAddress(Struct, frozen=True):
    """Parts of `ssh://[user@]host[:port]`; the user's ssh configuration decides about the others."""

    host: str
    user: str = ""
    port: int | None = None

    @property
    def words(self) -> tuple[str, ...]:
        user = ("-l", self.user) if self.user else ()
        port = ("-p", str(self.port)) if self.port is not None else ()
        return (*user, *port, "--", self.host)

    @property
    def command(self) -> str:
        """The ssh command with which a user can try the address."""
        port = f"-p {self.port} " if self.port is not None else ""
        return f"ssh {port}{self.user + '@' if self.user else ''}{self.host}"


def parse_ssh_address(text: str, where: str) -> SshAddress:
    """Return the parts of an address; raises InputError. Nothing in it can become an option of ssh."""
    match = re.fullmatch(_ADDRESS, text)  # compiled here: every command loads this module
    if not match or not text.isprintable() or (match[3] and not 0 < int(match[3]) < 65536):
        raise InputError(f"{text[:60]!a} is not an ssh address", where=where, hint="write ssh://user@host:port")
    return SshAddress(match[2].strip("[]"), match[1] or "", int(match[3]) if match[3] else None)
