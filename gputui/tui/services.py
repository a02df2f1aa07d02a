"""Services and settings that every screen receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace
from textual.screen import Screen

from gputui.domain.cluster import Capability
from gputui.domain.conditions import ConditionTracker
from gputui.domain.errors import CapabilityError
from gputui.domain.gpu_history import GpuHistory, TakenStep
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.submit_action import Done, SubmitJobs
from gputui.engine.actions.foreign_use import ForeignUse
from gputui.ports import Clock
from gputui.ports.backend import About, Backend
from gputui.tui.preferences import Preferences
from gputui.tui.present.gpu_rows import GpuPictures
from gputui.tui.progress import SLOW, USUAL, Pace
from gputui.tui.widgets.log_follower import Pinned

_READ_ONLY_HINT = "start it without --read-only, and without the setting console.read_only, to change anything"


class Pages(Struct, frozen=True):
    """Creates the screens about one job, which any screen with a job can open."""

    detail: Callable[[Services, Snapshot, JobId, Callable[[JobId], None]], Screen[None]]
    """Returns the page of the job; its last argument follows the job's log."""
    processes: Callable[[Services, Snapshot, JobId], Screen[None]]


class Hint(Struct):
    """Line for newcomers, until the first key or click."""

    text: str = ""


class Services(Struct, frozen=True, dict=True):
    """Services of one console. Changes are not made here: screens post them as messages."""

    backend: Backend
    settings: Settings
    clock: Clock
    pages: Pages
    server: str = ""
    """Server that a screen is about, in a console over several; empty: all."""
    preferences: Preferences = field(default_factory=Preferences)
    templates: Path | None = None
    """Directory of templates of jobs; None: there are none, and none can be saved."""
    foreign: ForeignUse | None = None
    """Foreign processes and containers, with the rights of this process; None: not available here."""
    pinned: Pinned = field(default_factory=Pinned)
    want_pcie: Callable[[str | None], None] = lambda uuid: None
    """Requests PCIe throughput of this GPU only. Never blocks; has no effect if another process reads the GPUs."""
    hint: Hint = field(default_factory=Hint)
    conditions: ConditionTracker = field(default_factory=ConditionTracker)
    gpu_history: GpuHistory = field(default_factory=GpuHistory)
    gpu_past: Callable[[], Iterable[TakenStep]] = lambda: ()
    """Returns readings from before the console was opened. May block."""

    @property
    def about(self) -> About:
        return self.backend.about(self.server)

    def own(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs that the user may change and enter, as far as the queue has told: all, for operators."""
        uid = self.backend.about().own_uid
        return jobs if uid is None else [job for job in jobs if job.submitted_uid == uid]

    def may_act_for(self, submitter: int | None) -> bool:
        uid = self.backend.about().own_uid
        return uid is None or submitter == uid

    @property
    def lacking(self) -> Mapping[Capability, str]:
        """Sentence for each capability that the queue lacks now: a cluster tells the user's rights later."""
        return self.about.caps.lacking

    @property
    def shows_what_if(self) -> bool:
        return self.settings.console.what_if != "off" and Capability.WHAT_IF not in self.lacking

    @property
    def pace(self) -> Pace:
        return SLOW if self.settings.console.slow else USUAL

    @property
    def foresee(self) -> Callable[[Submission], Done] | None:
        """Asks an engine when a job would start and what it decides; may block. None: forecasts are made here."""
        if Capability.WHAT_IF not in self.lacking:
            return None

        def foreseen(submission: Submission) -> Done:
            if why := self.lacking.get(Capability.TEST_ONLY):
                raise CapabilityError(why)
            return self.backend.foresee(SubmitJobs((submission,)))

        return foreseen

    def scoped(self, snapshot: Snapshot, name: str) -> tuple[Services, Snapshot]:
        """Return the services and the snapshot of one server; nobody plans across several."""
        server = snapshot.server(name) if name else None
        if server is None:
            return self, snapshot
        own = server.settings
        settings = replace(self.settings, scheduler=own.scheduler, policy=own.policy, servers=())
        return replace(self, server=name, settings=settings), server.snapshot

    @cached_property
    def gpus(self) -> GpuPictures:
        return GpuPictures(self.settings.console, self.preferences, self.gpu_history, has_graphs=self.pace.has_graphs)

    @property
    def only_looks(self) -> str:
        """Advice to a user who wants to change something in a read-only console; empty in others."""
        return _READ_ONLY_HINT if self.settings.console.read_only else self.backend.about().only_looks

    @property
    def is_read_only(self) -> bool:
        return bool(self.only_looks)
