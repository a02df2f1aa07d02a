"""Actions: every wish of a user as a value.

The same values are written into the queue, foreseen by what-if, audited, undone, and sent to other servers. `apply` is
the pure change of one job or of the operator's controls; who may do it, and within which limits, is checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct, ValidationError, field
from msgspec.structs import replace

from gputui.domain.decoding import convert
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.gpu import Drain, Gpu
from gputui.domain.job import Job, Placed, Placing
from gputui.domain.job_spec import MAX_PRIORITY, MAX_SIGNAL, ContainerOptions, GpuRequest, JobSpec, Submission
from gputui.domain.recurring import Recurrence
from gputui.domain.settings import TenantSettings, Window
from gputui.domain.snapshot import Controls, StandingRule
from gputui.domain.state import JobState
from gputui.domain.submit_action import BaseAction, Ids, SubmitJobs

_PARTS = ("gpus", "options")
"""Fields of a spec that are edited field by field."""
_SECRET = frozenset({"env"})
_RANKED = frozenset({"priority", "time_limit", "nice", "begin_at"})
_WHILE_RUNNING = frozenset({"time_limit", "comment"})
"""Fields of a spec that can be edited while the job runs."""
_FIXED = frozenset({"tenant", "warrant"})
"""Fields that cannot be edited: the tenant decides which submissions are allowed at all."""


class Edit(Struct, frozen=True):
    """The fields to change; all others keep their values."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    gpus: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    held: bool | None = None
    """New hold state; None: unchanged."""

    @classmethod
    def between(cls, before: JobSpec, after: JobSpec) -> Edit:
        changed = {name: value for name, value in _changes(before, after) if name not in (*_PARTS, *_FIXED)}
        return cls(changed, dict(_changes(before.gpus, after.gpus)), dict(_changes(before.options, after.options)))

    def typed(self) -> Edit:
        """Return the edit, decoded from JSON, with values of the fields' types and without fixed fields.

        Raises msgspec.ValidationError for a value of a wrong type.
        """
        return Edit(
            spec=_typed(self.spec, JobSpec),
            gpus=_typed(self.gpus, GpuRequest),
            options=_typed(self.options, ContainerOptions),
            held=self.held,
        )

    def __bool__(self) -> bool:
        return bool(self.spec or self.gpus or self.options) or self.held is not None

    @property
    def suits_running(self) -> bool:
        return self.spec.keys() <= _WHILE_RUNNING and not self.gpus and not self.options and self.held is None

    def apply(self, spec: JobSpec) -> JobSpec:
        gpus = replace(spec.gpus, **self.gpus)
        return replace(spec, **self.spec, gpus=gpus, options=replace(spec.options, **self.options))

    def on(self, job: Job, now: datetime) -> Job:
        """Return the edited job. A place beside another job is kept unless a changed field counts for its rank.

        A running job is warned again if its new limit is far enough away.
        """
        after = job.evolve(spec=self.apply(job.spec))
        if job.state is not JobState.PENDING:
            if after.spec.time_limit == job.spec.time_limit:
                return after
            after = after.evolve(limit_changed_at=now)
            is_ahead = after.warning_at is not None and after.warning_at > now
            is_warned = is_ahead and after.attempts[-1].warned_at is not None
            return after.with_attempt(warned_at=None) if is_warned else after
        if self.gpus or _RANKED & self.spec.keys():
            after = after.evolve(placed=None)
        if "priority" in self.spec:
            after = after.prioritised(after.spec.priority)
        if "begin_at" in self.spec:
            after = after.evolve(not_before=None)
        if self.held is None:
            return after
        if not self.held:
            return after.unheld(released_at=now)
        is_by_user = after.held and not after.hold_reason
        return after if is_by_user else after.evolve(held=True, hold_reason=None, held_at=now)

    def words(self, spec: JobSpec, held: bool = False) -> str:
        """Describe the edited fields with their values in a spec.

        Environment variables by name only, since values may be secret.
        """
        parts: list[str] = []
        for holder, names in ((spec, self.spec), (spec.gpus, self.gpus), (spec.options, self.options)):
            for name in names:
                value = getattr(holder, name)
                if name in _SECRET:
                    value = tuple(key for key, _ in value) or "none"
                parts.append(f"{name} {' '.join(map(str, value)) if isinstance(value, tuple) else value}")
        parts += [f"held {held}"] if self.held is not None else []
        return ", ".join(parts)


def _typed(values: Mapping[str, Any], kind: type[JobSpec | GpuRequest | ContainerOptions]) -> dict[str, Any]:
    if misplaced := [name for name in _PARTS if name in values]:
        raise ValidationError(f"{misplaced[0]} are not edited within the spec but beside it")
    known = convert(values, kind)
    return {name: getattr(known, name) for name in kind.__struct_fields__ if name in values and name not in _FIXED}


def check_suits_state(job: Job, *, suits_running: bool) -> None:
    """Raise GputuiError if the job is not waiting, unless the edit can be applied to a running job."""
    if job.state is not JobState.PENDING and not suits_running:
        hint = "submit another like it for the rest"
        what = f"job {job.shown_id} is {job.state}: only its time limit and its comment can be changed now"
        raise GputuiError(what, hint=hint)


def differs(before: Job, after: Job) -> bool:
    return any(getattr(before, name) != getattr(after, name) for name in ("spec", "priority", "held", "topped_at"))


def _changes(before: JobSpec | GpuRequest | ContainerOptions, after: object) -> Iterator[tuple[str, Any]]:
    for name in before.__struct_fields__:
        value = getattr(after, name)
        if value != getattr(before, name):
            yield name, value


MOST_SIGNALS = 16
"""Maximum number of signals that a job has still to get."""


class _Final(BaseAction, frozen=True):
    """An action that what-if does not show, and that cannot be undone."""

    is_final: ClassVar[bool] = True
    has_forecast: ClassVar[bool] = False


class _JobAction(BaseAction, frozen=True):
    """An action on jobs, all of them or none."""

    may: ClassVar[str] = ""
    """Words for what only submitters and operators may do, as in `suspend it`; empty: everybody may, as to the job."""
    ids: Ids

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        """Return the job after the action; raises GputuiError if its state does not allow it."""
        raise NotImplementedError


class Hold(_JobAction, frozen=True, tag="hold"):
    """Keep waiting jobs from starting."""

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        """Return the held job; one that a user holds already stays as it is."""
        if job.state is not JobState.PENDING:
            hint = "cancel or requeue it"
            raise GputuiError(f"job {job.shown_id} is {job.state}: only a waiting job can be held", hint=hint)
        refuse_cancelled(job)
        if job.held and job.hold_reason is None:
            return job
        return job.evolve(held=True, hold_reason=None, held_by=by, held_at=now)


class Release(_JobAction, frozen=True, tag="release"):
    """Release held jobs, with their image and tenant if the fast-failure guard has paused them.

    A job may use the GPUs that failed it again: who releases it has had them repaired, or wants a new try.
    """

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        free = job.evolve(avoid_gpus=())
        return free.unheld(released_at=now) if job.state is JobState.PENDING else free.unheld()


class Cancel(_JobAction, frozen=True, tag="cancel"):
    """End jobs, or take them out of the queue."""

    is_final: ClassVar[bool] = True

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        """Return the job with the request; one that has ended stays as it is."""
        if job.state.is_terminal:
            return job
        return job.evolve(cancel_requested=True, cancelled_by=by, requeue_requested=False)


class Requeue(_JobAction, frozen=True, tag="requeue"):
    """Run jobs again; running ones are stopped first."""

    is_final: ClassVar[bool] = True

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        if job.state is JobState.PENDING:
            raise GputuiError(f"job {job.shown_id} is waiting already")
        return job.evolve(requeue_requested=True, cancel_requested=False)


class Signal(_JobAction, _Final, frozen=True, tag="signal"):
    """Send running jobs a signal."""

    may: ClassVar[str] = "send it signals"
    number: int

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        if not 1 <= self.number <= MAX_SIGNAL:
            raise InputError(f"{self.number} is no signal", where="signal", hint=f"1 to {MAX_SIGNAL}")
        if job.state is not JobState.RUNNING:
            raise GputuiError(f"job {job.shown_id} is {job.state}: only a running job can be sent a signal")
        if job.suspended:
            hint = f"gputui unsuspend {job.shown_id}"
            raise GputuiError(f"job {job.shown_id} is suspended, and gets no signals", hint=hint)
        if len(job.signals) >= MOST_SIGNALS:
            hint = "a scheduler must run to send them"
            raise GputuiError(f"job {job.shown_id} has {MOST_SIGNALS} signals to get already", hint=hint)
        return job.evolve(signals=(*job.signals, self.number))


class Suspend(_JobAction, _Final, frozen=True, tag="suspend"):
    """Stop the processes of running jobs, which keep their GPUs."""

    may: ClassVar[str] = "suspend it"

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        if job.state is not JobState.RUNNING:
            hint = "gputui hold keeps a waiting job from starting" if job.state is JobState.PENDING else None
            raise GputuiError(f"job {job.shown_id} is {job.state}: only a running job can be suspended", hint=hint)
        return job.evolve(suspended=True, suspended_by=by)


class Unsuspend(_JobAction, _Final, frozen=True, tag="unsuspend"):
    """Continue suspended jobs."""

    may: ClassVar[str] = "let it continue"

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        return job.evolve(suspended=False, suspended_by="")


class SetPriority(_JobAction, frozen=True, tag="priority"):
    """Set the priority, 0 to 100, or add `value` to it."""

    value: int
    relative: bool = False

    def check(self) -> None:
        """Raise InputError for a priority that is out of range."""
        if not (self.relative or 0 <= self.value <= MAX_PRIORITY):
            raise InputError(f"{self.value} is out of range", where="priority", hint=f"0 to {MAX_PRIORITY}")

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        """Return the job with that priority; raises InputError for one that is out of range."""
        self.check()
        return _ranked(job, job.prioritised(self.value, relative=self.relative), by)


class Top(_JobAction, frozen=True, tag="top"):
    """Put waiting jobs at the head of the queue, before all that were put there earlier."""

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        return _ranked(job, job.evolve(topped_at=now, placed=None), by)


class EditJobs(_JobAction, frozen=True, tag="edit"):
    """Edit waiting jobs, or the time limit and comment of running ones."""

    edit: Edit
    seen: Job | None = None
    """The job as its editor saw it: one that has changed since then is not edited."""

    def apply(self, job: Job, now: datetime, by: str) -> Job:
        """Return the edited job, with the user recorded for a changed hold or priority."""
        after = self.edit.on(job, now)
        if job.state is JobState.PENDING:
            after = after.evolve(held_by=by) if after.held_at != job.held_at and after.held else after
            after = after.evolve(ranked_by=by) if after.priority != job.priority else after
        return after


class PlaceJobs(BaseAction, frozen=True, tag="move"):
    """Put waiting jobs beside others, with these jobs' priority and rank."""

    places: tuple[Placing, ...]

    @property
    def ids(self) -> Ids:
        return tuple(job_id for each in self.places for job_id in each.ids)


def put(job: Job, placed: Placed, by: str) -> Job:
    """Return the waiting job beside another; raises GputuiError if it is not waiting."""
    if job.state is not JobState.PENDING:
        raise GputuiError(f"job {job.shown_id} is {job.state}: only a waiting job has a place in the queue")
    refuse_cancelled(job)
    return _ranked(job, job.evolve(priority=placed.priority, topped_at=placed.topped_at, placed=placed), by)


class _ControlAction(BaseAction, frozen=True):
    """An action on drains or the pause of the scheduler."""

    def apply(self, controls: Controls, now: datetime, by: str) -> Controls:
        raise NotImplementedError


class DrainGpus(_ControlAction, frozen=True, tag="drain"):
    """Start no further job on these GPUs; in a cluster, on nodes, by name."""

    uuids: tuple[str, ...]
    reason: str = ""

    def apply(self, controls: Controls, now: datetime, by: str) -> Controls:
        """Return the controls with the drains; a renewed one comes last."""
        drain = Drain(reason=self.reason, by=by, at=now)
        others = {uuid: each for uuid, each in controls.drains.items() if uuid not in self.uuids}
        return replace(controls, drains={**others, **dict.fromkeys(self.uuids, drain)})


class ResumeGpus(_ControlAction, frozen=True, tag="resume"):
    """Start jobs on these GPUs again; Xid errors that they reported until now are cleared."""

    uuids: tuple[str, ...]

    def apply(self, controls: Controls, now: datetime, by: str) -> Controls:
        drains = {uuid: each for uuid, each in controls.drains.items() if uuid not in self.uuids}
        return replace(controls, drains=drains, resumed={**controls.resumed, **dict.fromkeys(self.uuids, now)})


class Pause(_ControlAction, frozen=True, tag="pause"):
    """Start no further job anywhere; running ones continue."""

    has_forecast: ClassVar[bool] = False
    reason: str = ""

    def apply(self, controls: Controls, now: datetime, by: str) -> Controls:
        return replace(controls, paused=True, pause_reason=self.reason, paused_by=by, paused_at=now)


class Unpause(_ControlAction, frozen=True, tag="unpause"):
    """End the pause: jobs start again."""

    has_forecast: ClassVar[bool] = False

    def apply(self, controls: Controls, now: datetime, by: str) -> Controls:
        return replace(controls, paused=False, pause_reason="", paused_by="", paused_at=None)


class ReserveGpus(BaseAction, frozen=True, tag="reserve"):
    """Reserve some of these GPUs; the reservation gets a name if it has none."""

    is_final: ClassVar[bool] = True
    window: Window
    gpus: tuple[Gpu, ...]


class Unreserve(_Final, frozen=True, tag="unreserve"):
    """Remove a reservation that was made by an action."""

    name: str


class SetStanding(_Final, frozen=True, tag="standing"):
    """Give GPUs to jobs of a priority first; None restores the rule of the settings file."""

    rule: StandingRule | None


class SetTenant(_Final, frozen=True, tag="tenant"):
    """Change a tenant's weight and caps; with `clear`, the others return to their defaults."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `TenantSettings`."""
    clear: bool = False


class RemoveTenant(_Final, frozen=True, tag="remove_tenant"):
    """Remove a tenant's values; those of the settings file, if any, apply again."""

    name: str


class AddRecurring(_Final, frozen=True, tag="add_recurring"):
    """Submit a job whenever the cron expression is due."""

    recurrence: Recurrence
    submission: Submission


class PauseRecurring(_Final, frozen=True, tag="pause_recurring"):
    """Submit no more runs of recurring jobs until they are resumed."""

    ids: Ids


class ResumeRecurring(_Final, frozen=True, tag="resume_recurring"):
    """Submit runs of recurring jobs again. Runs that were due meanwhile are not made up."""

    ids: Ids


class RemoveRecurring(_Final, frozen=True, tag="remove_recurring"):
    """Delete recurring jobs. Jobs that they have submitted stay."""

    ids: Ids


JobAction: TypeAlias = Hold | Release | Cancel | Requeue | Signal | Suspend | Unsuspend | SetPriority | Top | EditJobs
ControlAction: TypeAlias = DrainGpus | ResumeGpus | Pause | Unpause
"""Actions on controls with `apply`, whose changes can be undone."""
Action: TypeAlias = (
    JobAction
    | ControlAction
    | SubmitJobs
    | PlaceJobs
    | ReserveGpus
    | Unreserve
    | SetStanding
    | SetTenant
    | RemoveTenant
    | AddRecurring
    | PauseRecurring
    | ResumeRecurring
    | RemoveRecurring
)


def typed(action: Action) -> Action:
    """Return an action, decoded from JSON, with values of the right types; raises msgspec.ValidationError."""
    if isinstance(action, EditJobs):
        return replace(action, edit=action.edit.typed())
    if isinstance(action, SetTenant):
        known = convert({"name": action.name, **action.changes}, TenantSettings)
        names = [name for name in known.__struct_fields__ if name in action.changes and name != "name"]
        return replace(action, changes={name: getattr(known, name) for name in names})
    return action


def refuse_cancelled(job: Job) -> None:
    if job.cancel_requested:
        raise GputuiError(f"job {job.shown_id} is being cancelled")


def _ranked(before: Job, after: Job, by: str) -> Job:
    """Return the job with another priority or place, and the user who changed it; unchanged if nothing differs.

    Raises GputuiError for a job that has ended.
    """
    if before.state.is_terminal:
        what = f"job {before.shown_id} is {before.state}: it no longer has a place in the queue"
        raise GputuiError(what, hint="requeue it")
    return before if after == before else after.evolve(ranked_by=by)
