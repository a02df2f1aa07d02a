"""What a site may set, with the defaults. Read from the settings file by `gputui.config`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


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
    """So many fast failures of a job in a row, and it is held instead of tried again; 0: never."""
    fast_failing_jobs: int = 5
    """So many different jobs of an image or a tenant that fail fast in a row, and its other jobs wait; 0: never."""
    max_time: timedelta | None = None
    """The longest time limit that may be submitted."""
    limit_all: bool = False
    """Whether a job submitted without a time limit gets `max_time` as its own."""
    cpu_jobs: int = 8
    """At most so many jobs without GPUs run at once."""
    host_jobs: bool = True
    """Whether host processes may be submitted."""
    hand_over: str = "auto"
    """When the console that schedules goes: `auto` hands over to a background scheduler on hang-up and
    asks on quit, `always` never asks, `never` stops dispatching."""
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


@dataclass(frozen=True)
class RuntimeSettings:
    """How jobs are run."""

    docker_host: str | None = None
    """`unix://…`, `tcp://…` or `ssh://…`; None: DOCKER_HOST, else the current docker context."""
    docker_timeout: timedelta = timedelta(seconds=60)
    log_max_size: int = 64 * 1024**2
    log_max_files: int = 3
    """The engine's own rotation of a container's output."""
    pids_limit: int | None = None


@dataclass(frozen=True)
class GpuSettings:
    """How GPUs are read."""

    sample_interval: timedelta = timedelta(seconds=1)
    process_interval: timedelta = timedelta(seconds=2)
    slow_interval: timedelta = timedelta(seconds=15)
    hang_after: timedelta = timedelta(seconds=10)
    """A sweep that has not come for so long is given up, with its process."""


@dataclass(frozen=True)
class Settings:
    """Everything a site may set."""

    scheduler: SchedulerSettings = SchedulerSettings()
    store: StoreSettings = StoreSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    gpus: GpuSettings = GpuSettings()
