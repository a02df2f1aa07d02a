"""Changes that an operator is about to make: their description, effect on the plan, cost, and action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Protocol, Self, TypeAlias

from gputui.domain.action import (
    Action,
    DrainGpus,
    Edit,
    EditJobs,
    PlaceJobs,
    ReserveGpus,
    ResumeGpus,
    SetPriority,
    Unreserve,
    differs,
)
from gputui.domain.arrays import count
from gputui.domain.gpu import Gpu, GpuView
from gputui.domain.job import Job, Placing
from gputui.domain.job_spec import MAX_PRIORITY, JobId, server_of, shown_id
from gputui.domain.policy import reservations, whatif
from gputui.domain.policy.queue_order import Move
from gputui.domain.policy.reservations import overlap_warnings
from gputui.domain.policy.whatif import SnapshotChange
from gputui.domain.runs import spans_of
from gputui.domain.settings import Window
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import format_duration, listed, plain, plural
from gputui.domain.verbs import BY_NAME, JOB_VERB, STEP, Verb
from gputui.engine.actions.actions import beneficiary
from gputui.tui.actions import ActionRequested
from gputui.tui.present.cells import clock
from gputui.tui.present.gpu_rows import Labels
from gputui.tui.present.job import job_title
from gputui.tui.widgets.queue_folding import Marks

_SOON = timedelta(seconds=30)
"""Reservations that begin within this time begin now, since the snapshot is slightly older than the input."""
_NAMED = 6
"""Maximum number of jobs that are named in one line."""
ORDER = ("raise", "lower", "top", "move")
"""Verbs that replace each other while they are proposed."""


class BaseProposal(Protocol):
    """A proposal that no further key changes, and that causes no irreversible loss."""

    subject: str = ""
    """Name of its subject if that is not a job."""
    asks_reason: bool = False

    @property
    def job_ids(self) -> tuple[JobId, ...]:
        return ()

    def action(self, reason: str = "") -> Action | None:
        """Return the action that writes it; None if nothing would change."""
        raise NotImplementedError

    def words(self, snapshot: Snapshot) -> str:
        raise NotImplementedError

    def doubt(self, snapshot: Snapshot) -> str:
        """Return why it no longer makes sense, or would be refused; empty while it does."""
        raise NotImplementedError

    def change(self, now: datetime) -> SnapshotChange:
        """Return the change of the snapshot for the forecast."""
        action = self.action()
        return whatif.change_of(action, now) if action is not None else lambda snapshot: snapshot

    def further(self, verb: str, snapshot: Snapshot) -> Self:
        return self

    def cost(self, snapshot: Snapshot, now: datetime) -> str:
        return ""

    def fate(self) -> str:
        """Return the word for a job that has no start after the change."""
        return "no forecast"

    def request(self, reason: str = "", server: str = "") -> ActionRequested | None:
        action = self.action(reason)
        return None if action is None else ActionRequested(action, self.subject, server)


@dataclass(frozen=True)
class JobProposal(BaseProposal):
    """A verb about jobs, identified by their ids, whatever happens to their rows."""

    job_id: JobId
    verb: str
    """Name in `JOB_VERB`; `raise` and `lower` differ only in the sign of `delta`."""
    delta: int = 0
    others: tuple[JobId, ...] = ()
    note: str = ""
    places: tuple[Placing, ...] = ()

    @property
    def job_ids(self) -> tuple[JobId, ...]:
        return (self.job_id, *self.others)

    @property
    def is_order(self) -> bool:
        return self.verb in ORDER

    @property
    def _verb(self) -> Verb[Job]:
        return JOB_VERB[self.verb]

    def action(self, reason: str = "") -> Action | None:
        if self._verb.wish is SetPriority:
            return SetPriority(self.job_ids, self.delta, relative=True) if self.delta else None
        if self._verb.wish is PlaceJobs:
            return PlaceJobs(self.places) if self.places else None
        return self._verb.on(self.job_ids)

    def further(self, verb: str, snapshot: Snapshot) -> JobProposal:
        """Return the proposal after one more key: priorities add up, other verbs replace each other."""
        if verb not in ORDER or self.verb not in ORDER:
            return self
        if self.verb == "move":
            return replace(self, verb="raise", note="", places=()).further(verb, snapshot)
        if verb == "top":
            return replace(self, verb=verb, delta=0)
        step = STEP if verb == "raise" else -STEP
        if self.others:
            delta = min(MAX_PRIORITY, max(-MAX_PRIORITY, self.delta + step))
            return replace(self, verb="lower" if delta < 0 else "raise", delta=delta)
        job = snapshot.job(self.job_id)
        priority = job.priority if job else 0
        delta = min(MAX_PRIORITY, max(0, priority + self.delta + step)) - priority if job else self.delta + step
        return replace(self, verb="lower" if delta < 0 else "raise", delta=delta)

    def dragged(self, move: Move) -> JobProposal:
        """Return the proposal with the places that the move found; unchanged if it found none."""
        if move.places is None:
            return self
        more = f" and {plural(move.passes - 1, 'more job')}" if move.passes > 1 else ""
        way = f"{'up' if move.step < 0 else 'down'} past job {shown_id(move.past or 0)}{more}"
        return replace(self, verb="move", delta=0, note=way if move.passes else "", places=move.places)

    def words(self, snapshot: Snapshot) -> str:
        if self.others:
            entries = [job for job in self._jobs(snapshot) if job.runs][:_NAMED]  # `99 jobs (7_[0-98])`
            named = [job.shown_id for job in entries] or [shown_id(job_id) for job_id in self.job_ids[:_NAMED]]
            left = len(self.job_ids) - (count(entries) or len(named))
            which = f"{len(self.job_ids)} jobs ({listed([*named, f'{left} more'] if left > 0 else named)})"
            move = self.note or "they stay where they are"
            stays = self.verb in {"raise", "lower"} and not self.delta
            words = self._verb.proposal_many.format(delta=abs(self.delta), move=move)
            return f"{which}: {'priority stays' if stays else words}"
        job, move = snapshot.job(self.job_id), self.note or "stays where it is"
        title, priority = f"job #{shown_id(self.job_id)}", f"{self.delta:+}"
        if job is not None:
            title, after = f"job {job_title(job)}", job.prioritised(self.delta, relative=True).priority
            priority = f"{job.priority} -> {after} ({self.delta:+})" if self.delta else f"stays {job.priority}"
            beside = self.places[0].placed.priority if self.places else job.priority
            move += f", priority {job.priority} -> {beside}" if beside != job.priority else ""
        return self._verb.proposal.format(title=title, priority=priority, move=move)

    def cost(self, snapshot: Snapshot, now: datetime) -> str:
        if not self._verb.ends_work:
            return ""
        if self.others:
            return _cost_of_many(self._jobs(snapshot), self.verb, now)
        job = snapshot.job(self.job_id)
        if job is None or job.state.is_terminal:
            return ""
        if job.state is JobState.PENDING:
            return "It is taken out of the queue, and will not be started." if self.verb == "cancel" else ""
        ran = format_duration(now - job.started_at) if job.started_at else "0s"
        gpus = f" on {plural(len(job.gpus), 'GPU')}" if job.gpus else ""
        kept = "its output stays" if self.verb == "cancel" else "it starts again from the beginning"
        return f"It is stopped: {ran} of work{gpus} is lost; {kept}."

    def doubt(self, snapshot: Snapshot) -> str:
        if self.others:
            able = count(job for job in self._jobs(snapshot) if self._verb.may(job))
            asked = len(self.job_ids)
            return "" if able == asked else f"This can still be done to {able} of these {asked} jobs only."
        job = snapshot.job(self.job_id)
        if job is None:
            return f"Job {shown_id(self.job_id)} is no longer in the queue."
        if self.verb in {"raise", "lower"} and job.state.is_active:
            return "It runs already: its priority counts only if it is preempted or run again."
        if self.verb in {"raise", "lower"}:
            return f"It is {job.state} now." if job.state.is_terminal else ""
        return "" if self._verb.may(job) else f"It is {job.state}{' and held' if job.held else ''} now."

    def _jobs(self, snapshot: Snapshot) -> list[Job]:
        return [part for job in snapshot.jobs if (part := self._marks.part(job)) is not None]

    @cached_property
    def _marks(self) -> Marks:
        return Marks(spans_of(self.job_ids))

    def fate(self) -> str:
        return self._verb.fate


def propose(jobs: Sequence[Job], verb: str, snapshot: Snapshot) -> JobProposal:
    first, *others = (job_id for job in jobs for job_id in job.ids)
    if verb in {"raise", "lower"}:
        return JobProposal(first, "raise", others=tuple(others)).further(verb, snapshot)
    return JobProposal(first, verb, others=tuple(others))


def _cost_of_many(jobs: Sequence[Job], verb: str, now: datetime) -> str:
    running = [job for job in jobs if job.state.is_active]
    waiting = count(job for job in jobs if job.state is JobState.PENDING) if verb == "cancel" else 0
    sentences = [f"{plural(waiting, 'waiting job')} will not be started."] if waiting else []
    if running:
        ran = sum((now - job.started_at for job in running if job.started_at), timedelta(0))
        gpus = sum(len(job.gpus) for job in running)
        what = f"{plural(len(running), 'running job')}, {format_duration(ran)} of work on {plural(gpus, 'GPU')}, lost"
        sentences.insert(0, f"{what}.")
    return " ".join(sentences)


@dataclass(frozen=True)
class GpuProposal(BaseProposal):
    uuid: str
    index: str
    verb: str
    """Name of the verb: `drain` or `resume`."""

    @property
    def subject(self) -> str:  # type: ignore[override]
        return f"GPU {self.index}"

    @property
    def asks_reason(self) -> bool:  # type: ignore[override]
        return BY_NAME[self.verb].asks_reason

    def action(self, reason: str = "") -> Action:
        return DrainGpus((self.uuid,), reason) if self.verb == "drain" else ResumeGpus((self.uuid,))

    def _view(self, snapshot: Snapshot) -> GpuView | None:
        return next((view for view in snapshot.gpus if view.gpu.uuid == self.uuid), None)

    def words(self, snapshot: Snapshot) -> str:
        view = self._view(snapshot)
        note = ""
        if view is not None and self.verb == "drain" and view.job_id is not None:
            ids = view.job_ids or (view.job_id,)
            named = ", ".join(map(shown_id, ids))
            note = f"; job {named} keeps running" if len(ids) == 1 else f"; jobs {named} keep running"
        elif view is not None and self.verb != "drain" and view.drain and view.drain.reason:
            note = f" (drained: {plain(view.drain.reason, 80)})"
        return BY_NAME[self.verb].proposal.format(title=self.index, note=note)

    def doubt(self, snapshot: Snapshot) -> str:
        view = self._view(snapshot)
        if view is None:
            return f"GPU {self.index} no longer exists."
        if BY_NAME[self.verb].may((view, snapshot.controls)):
            return ""
        return "It is drained already." if self.verb == "drain" else "It is no longer drained."


@dataclass(frozen=True)
class WindowProposal(BaseProposal):
    window: Window
    gpus: tuple[Gpu, ...] = ()
    """GPUs that exist, for a new reservation."""
    is_new: bool = True

    def action(self, reason: str = "") -> Action:
        return ReserveGpus(self.window, self.gpus) if self.is_new else Unreserve(self.window.name)

    def words(self, snapshot: Snapshot) -> str:
        window = describe_window(self.window, snapshot)
        return f"Reserve {window}" if self.is_new else f"Release reservation {self.window.name}: {window}"

    def doubt(self, snapshot: Snapshot) -> str:
        if self.is_new:
            return "; ".join(overlap_warnings(self.window, snapshot, Labels.of(snapshot).by_uuid))
        is_there = any(view.window.key == self.window.key for view in snapshot.windows)
        return f"There is no reservation {self.window.name} any more." if not is_there else ""

    def change(self, now: datetime) -> SnapshotChange:
        make = reservations.with_reservation if self.is_new else reservations.without_reservation
        return make(self.window)


def describe_window(window: Window, snapshot: Snapshot) -> str:
    """Return `4 GPUs from 14:00 for 8h00m, for alice`."""
    now = snapshot.taken_at
    gpus = Labels.of(snapshot).of_all(window.gpus) if window.gpus else plural(window.count, "GPU")
    start = "now" if window.start - now < _SOON else clock(window.start, now)
    lasting = format_duration(window.end - max(window.start, now))
    return plain(f"{gpus} from {start} for {lasting}, for {beneficiary(window)}", 200)


@dataclass(frozen=True)
class EditProposal(BaseProposal):
    job: Job
    """The job as the form showed it."""
    edit: Edit
    told: str
    tell: Callable[[Exception | None], object] = field(compare=False, default=lambda error: None)
    """Called with None once it is written, or with the error."""

    @property
    def job_ids(self) -> tuple[JobId, ...]:
        return (self.job.id,)

    def action(self, reason: str = "") -> Action:
        return EditJobs((self.job.id,), self.edit, self.job)

    def words(self, snapshot: Snapshot) -> str:
        return f"job {job_title(self.job)}: {self.told}"

    def doubt(self, snapshot: Snapshot) -> str:
        return edit_refusal(self.job, snapshot)

    def fate(self) -> str:
        return "held" if self.edit.held else "no forecast"

    def request(self, reason: str = "", server: str = "") -> ActionRequested:
        return ActionRequested(self.action(reason), f"job {self.job.shown_id}", server, self.tell)


def edit_refusal(seen: Job, snapshot: Snapshot) -> str:
    """Return why a job, as it was shown, can no longer be edited; empty while it can."""
    now = snapshot.job(seen.id)
    if now is None:
        return f"Job {seen.shown_id} is no longer in the queue."
    if now.state is not seen.state:
        changeable = "only its time limit and its comment can be changed"
        may = changeable if now.state.is_active else "it can no longer be edited"
        return f"Job {seen.shown_id} is {now.state} now: {may}."
    if now.cancel_requested:
        return f"Job {seen.shown_id} is being cancelled."
    return f"Job {seen.shown_id} was changed meanwhile: edit it as it is now." if differs(seen, now) else ""


def servers_of(proposal: Proposal, snapshot: Snapshot) -> set[str]:
    if isinstance(proposal, GpuProposal):
        return {snapshot.server_of_gpu(proposal.uuid)}
    if isinstance(proposal, WindowProposal):
        return {proposal.window.name.partition(":")[0] if snapshot.servers else ""}
    return {server_of(job_id) for job_id in proposal.job_ids}


Proposal: TypeAlias = JobProposal | GpuProposal | WindowProposal | EditProposal
