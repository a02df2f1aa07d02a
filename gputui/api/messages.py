"""Bodies of requests and answers. Unknown fields of requests are refused; answers may get new ones."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Raw, Struct

from gputui.domain.action import Action
from gputui.domain.cluster import GPUTUI
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import PolicySettings, SchedulerSettings, Window

API = "1.0"
"""Version of the routes and their bodies: the major one is in the path."""
OLDEST = "1.0"
"""The oldest version that an owner serves, and a client asks."""
OWN = "application/vnd.gputui+json"
"""Type that our own clients accept: jobs, entries and readings as they are stored, in place of the keys of `--json`."""


class OwnerView(Struct, frozen=True, omit_defaults=True):
    """Process that owns the queue."""

    pid: int
    kind: str
    """console or serve."""
    user: str
    since: datetime | None = None
    silent_for: float = 0.0
    """Seconds without a tick; 0: it ticks."""


class CallerView(Struct, frozen=True, omit_defaults=True):
    """The caller, as the owner knows him."""

    uid: int
    user: str
    role: str
    """viewer, user or operator."""
    groups: tuple[int, ...] = ()
    job: JobId | None = None
    """Job in which the caller runs."""


class AgentLimits(Struct, frozen=True):
    """Limits for programs that ask for a user by `gputui mcp`."""

    priority: int = 50
    """Highest priority."""
    gpus: int | None = None
    """Most GPUs that the jobs of one user may take at once which such programs submitted; None: no limit."""


class AboutView(Struct, frozen=True, omit_defaults=True):
    """The queue, its owner, and who asks."""

    gputui: str
    api: str
    oldest: str
    host: str
    store: str
    owner: OwnerView
    caller: CallerView
    home: str = ""
    """Home directory of the caller, in which paths of his jobs begin that name no other; empty: unknown."""
    lacking: Mapping[str, str] = {}
    """Capabilities that the queue lacks, each with its sentence."""
    engine: str = GPUTUI
    """Name of what schedules, as people write it."""
    lacking_options: Mapping[str, str] = {}
    """Options of jobs that the engine lacks, each with its sentence."""
    scheduler: SchedulerSettings = SchedulerSettings()
    policy: PolicySettings = PolicySettings()
    agents: AgentLimits = AgentLimits()


class StreamHello(Struct, frozen=True):
    """The first message of a stream of events."""

    stream: str
    """Identifier of the stream, for `PUT /v1/focus`."""
    about: AboutView


class NewJobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to submit: all or none."""

    jobs: tuple[Submission, ...]


class NewIds(Struct, frozen=True, omit_defaults=True):
    """Answer to new jobs; 200 in place of 201 if the key was known already."""

    ids: tuple[JobId, ...]
    expected: tuple[datetime | None, ...] = ()
    """Expected start of each job, with `dry_run`."""


class ChangeNumber(Struct, frozen=True):
    """A change that can be undone, by its number, as long as this owner lives."""

    number: int
    subject: str
    done: str
    """Sentence about the restored state."""


class Acted(Struct, frozen=True, omit_defaults=True):
    """Answer to an action."""

    ids: tuple[JobId, ...] = ()
    """Jobs that it changed, in the order in which it names them."""
    changes: tuple[ChangeNumber, ...] = ()
    jobs: tuple[Raw, ...] = ()
    """Jobs as they would be, with `dry_run`."""
    window: Window | None = None
    """The reservation that it made."""
    sentence: str = ""


class UndoRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes to undo, by their numbers."""

    numbers: tuple[int, ...]


class Undone(Struct, frozen=True):
    """Reason for each change why it was not undone; empty if it was."""

    why: tuple[str, ...]


class Forecast(Struct, frozen=True, forbid_unknown_fields=True):
    """Actions whose effect on starts is asked for."""

    actions: tuple[Action, ...]


class StartMove(Struct, frozen=True):
    """Expected start of a job before and after a change; None: not known, or never."""

    id: JobId
    before: datetime | None
    after: datetime | None
    is_stopped: bool = False
    """True if the job runs, is stopped and has to start again."""


class PlaceMove(Struct, frozen=True):
    """Place of a waiting job in the queue, from 1, before and after a change."""

    id: JobId
    before: int
    after: int


class Forecasted(Struct, frozen=True, omit_defaults=True):
    """Answer to a forecast."""

    starts: tuple[StartMove, ...] = ()
    """Jobs that would start earlier or later, in the order after the change."""
    places: tuple[PlaceMove, ...] = ()
    is_cut: bool = False
    """True if the time was not enough for all jobs."""


class Focus(Struct, frozen=True, forbid_unknown_fields=True):
    """GPU whose PCIe and NVLink throughput a subscriber of events wants to see."""

    stream: str
    """Identifier from the `hello` of its events."""
    gpu: str | None = None


class Problem(Struct, frozen=True, omit_defaults=True):
    """An error, as RFC 9457 has it."""

    type: str
    """`urn:gputui:` and the error's name, such as `urn:gputui:not-found`."""
    title: str
    """The error in one sentence."""
    status: int
    detail: str = ""
    """Advice on how to mend it."""
    instance: str = ""
    """Place of the error: an option, a file, a field."""
    kind: str = ""
    """Class of the error in gputui, for its own clients."""
    exit_code: int = 1
    rule: str = ""
    """Name of the rule that refuses it, with status 403."""
    errors: tuple[Problem, ...] = ()
    """All errors, if there are several."""


JsonObject = Mapping[str, Any]
