"""Services and settings that every screen receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field
from textual.screen import Screen

from gputui.domain.attempt import Attempt
from gputui.domain.cluster import Capability
from gputui.domain.conditions import ConditionTracker
from gputui.domain.container import ProcessRow, Shell
from gputui.domain.errors import GputuiError
from gputui.domain.gpu import GpuState
from gputui.domain.gpu_history import GpuHistory, TakenStep
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import ServerView, Snapshot
from gputui.domain.telemetry_series import Measured
from gputui.engine.actions.foreign_use import ForeignUse
from gputui.ports import Clock
from gputui.tui.log.follower import LogOpener, Pinned
from gputui.tui.pace import Pace, pace_of
from gputui.tui.preferences import Preferences
from gputui.tui.present.gpu_rows import GpuLook, GpuPicture, LookChoice, gpu_picture


class JobAccess(Protocol):
    """Shells and processes of running jobs. Methods block, may be called from any thread, and raise GputuiError."""

    def shell(self, job: Job) -> Shell:
        """Return the command that opens a shell beside the job."""
        ...

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Return the present processes of the job."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class NoJobAccess:
    """Stand-in for a console without access to running jobs."""

    def shell(self, job: Job) -> Shell:
        """Raise GputuiError: running jobs cannot be reached from here."""
        raise GputuiError(f"job {job.shown_id} cannot be reached from here")

    def processes(self, job: Job) -> tuple[ProcessRow, ...]:
        """Raise GputuiError: running jobs cannot be reached from here."""
        raise GputuiError(f"job {job.shown_id} cannot be reached from here")

    def close(self) -> None:
        """Do nothing: no connection was opened."""


def _none() -> Sequence[str]:
    return ()


class FormSources(Struct, frozen=True):
    """Suggestions for the job form: images, and the directory of templates."""

    images: Callable[[], Sequence[str]] = _none
    """Returns the engine's images; empty if it does not answer. Blocks, so it is called on a thread."""
    templates: Path | None = None
    """Directory of templates; None: there are none, and none can be saved."""


class Pages(Struct, frozen=True):
    """Creates the screens about one job, which any screen with a job can open."""

    detail: Callable[[Services, Snapshot, JobId, Callable[[JobId], None]], Screen[None]]
    """Returns the page of the job; its last argument follows the job's log."""
    processes: Callable[[Services, Snapshot, JobId], Screen[None]]
    """Returns the screen of the job's processes."""


class Hint(Struct):
    """Line for newcomers, until the first key or click."""

    text: str = ""


class Services(Struct, frozen=True, dict=True):
    """Services of one console. Changes are not made here: screens post them as messages."""

    logs: LogOpener
    settings: Settings
    clock: Clock
    pages: Pages
    host: str = ""
    user: str = ""
    """Tenant of jobs submitted here."""
    preferences: Preferences = field(default_factory=Preferences)
    """Preferences of this user."""
    forms: FormSources = field(default_factory=FormSources)
    """Suggestions for the job form."""
    job_access: JobAccess = field(default_factory=NoJobAccess)
    """Access to running jobs."""
    foreign: ForeignUse | None = None
    """Foreign processes and containers, with the rights of this process; None: not available here."""
    pinned: Pinned = field(default_factory=Pinned)
    """Pinned logs."""
    want_pcie: Callable[[str | None], None] = lambda uuid: None
    """Requests PCIe throughput of this GPU only. Never blocks; has no effect if another process reads the GPUs."""
    hint: Hint = field(default_factory=Hint)
    """Line for newcomers."""
    conditions: ConditionTracker = field(default_factory=ConditionTracker)
    """Tracker of present conditions."""
    gpu_history: GpuHistory = field(default_factory=GpuHistory)
    """Past readings of each GPU."""
    gpu_past: Callable[[], Iterable[TakenStep]] = lambda: ()
    """Returns readings from before the console was opened. May block."""
    measured: Callable[[Job], Mapping[int, Measured]] = lambda job: {}
    """Returns the telemetry of each attempt of a job, by number. May block."""
    unread: Callable[[Job, Attempt], str] = lambda job, attempt: ""
    """Returns why nothing is known of an attempt's use of its GPUs; empty: that is not worth a line."""
    lacking: Mapping[Capability, str] = field(default_factory=dict)
    """Sentence for each capability that the cluster lacks; empty: the queue of this machine has all."""
    cluster_name: Callable[[], str] | None = None
    """Returns the name of the cluster, which it tells with its first answer; None: no cluster."""
    expected_start: Callable[[Submission], datetime | None] | None = None
    """Returns when a cluster would start a job, None if it cannot tell. May block. None: forecasts are made here."""
    directory: str = ""
    """Directory in which relative paths of new jobs begin; empty: this process's."""
    of_server: Callable[[Services, ServerView], Services] = lambda services, server: services
    """Returns the services for one server of a console over several: its settings, user and images."""
    past: Callable[[datetime | None], Iterable[Job]] = lambda since: ()
    """Returns finished jobs that left the queue file since that time. May block."""

    @property
    def place(self) -> str:
        """Name of the machine or cluster whose queue is shown."""
        return self.cluster_name() if self.cluster_name else self.host

    @cached_property
    def gpu_look(self) -> LookChoice:
        """The user's choice of graph span and meaning of colours."""
        return LookChoice(self.settings.console, self.preferences)

    @property
    def pace(self) -> Pace:
        """Limits on how often the screen is drawn."""
        return pace_of(self.settings.console)

    def scoped(self, snapshot: Snapshot, name: str) -> tuple[Services, Snapshot]:
        """Return the services and the snapshot of one server; nobody plans across several."""
        server = snapshot.server(name) if name else None
        if server is None:
            return self, snapshot
        return self.of_server(self, server), server.snapshot

    def gpu_picture(self, snapshot: Snapshot, jobs: Mapping[JobId, Job], now: datetime) -> GpuPicture:
        """Return every GPU of a snapshot with its jobs and its past, in the user's chosen look."""
        return self.pace.drawn(gpu_picture(snapshot, jobs, self.gpu_history, now, self.gpu_look_for(snapshot)))

    def gpu_look_for(self, snapshot: Snapshot) -> GpuLook:
        """Return the user's chosen look; while no GPU is in use, live graphs show up to an hour instead."""
        look = self.gpu_look.current
        if any(view.job_ids or view.job_id is not None or view.state in _IN_USE for view in snapshot.gpus):
            return look
        return look.with_longest_span(self.gpu_history.recorded)

    @property
    def is_read_only(self) -> bool:
        """Return whether the console is read-only."""
        return self.settings.console.read_only


_IN_USE = frozenset({GpuState.ALLOCATED, GpuState.FOREIGN})
"""States of GPUs of which the last minute matters; where there are none, graphs show up to the last hour."""


class ShowsSnapshot(Protocol):
    """Screen that shows snapshots."""

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the snapshot, at the present time."""
        ...
