"""What an operator is about to wish, before it is written down: its words, what it would change, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from gputui.domain.job import MAX_PRIORITY, Job, JobId
from gputui.domain.policy import whatif
from gputui.domain.policy.reorder import Move
from gputui.domain.policy.whatif import Change
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import format_duration, plural
from gputui.engine.actions import Actions
from gputui.tui import wishes
from gputui.tui.edit_proposal import EditProposal
from gputui.tui.present.detail import job_title
from gputui.tui.queue import bulk
from gputui.tui.window_proposals import WindowProposal
from gputui.tui.wishes import STEP, WISHES

Call: TypeAlias = Callable[[Actions], str]
ORDER = ("raise", "lower", "top")
"""Wishes that take each other's place while they are only thought of."""


@dataclass(frozen=True)
class JobProposal:
    """A wish about jobs, named by their ids: whatever becomes of the rows, it is about those jobs."""

    job_id: JobId
    verb: str
    """As in WISHES; `raise` and `lower` are told apart by `delta` alone."""
    delta: int = 0
    """How much more priority."""
    others: tuple[JobId, ...] = ()
    """More jobs that it is about."""
    note: str = ""
    """What it is for."""

    @property
    def job_ids(self) -> tuple[JobId, ...]:
        """Those it is about."""
        return (self.job_id, *self.others)

    @property
    def is_order(self) -> bool:
        """Whether more keys may change it further."""
        return self.verb in ORDER

    def further(self, verb: str, snapshot: Snapshot) -> JobProposal:
        """The proposal after one more key: priorities add up, the others stand for themselves."""
        if verb not in ORDER or self.verb not in ORDER:
            return self
        if self.note:
            return replace(self, note="").further(verb, snapshot)
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
        """The proposal of so much priority as moves it there."""
        return replace(self, verb="lower" if move.delta < 0 else "raise", delta=move.delta, note=purpose(move))

    def words(self, snapshot: Snapshot) -> str:
        """The change, in words."""
        if self.others:
            return bulk.words(self.job_ids, self.verb, self.delta) + self.note
        job = snapshot.job(self.job_id)
        title = f"job {job_title(job)}" if job else f"job #{self.job_id}"
        if self.verb in {"raise", "lower"}:
            return f"{title}: priority {self._priorities(job)}{self.note}"
        return _WORDS[self.verb].format(title=title)

    def _priorities(self, job: Job | None) -> str:
        if job is None:
            return f"{self.delta:+}"
        after = job.prioritised(self.delta, relative=True).priority
        return f"{job.priority} -> {after} ({self.delta:+})" if self.delta else f"stays {job.priority}"

    def cost(self, snapshot: Snapshot, now: datetime) -> str:
        """What is lost for good; empty when nothing is."""
        if self.others:
            return bulk.cost(self._jobs(snapshot), self.verb, now)
        job = snapshot.job(self.job_id)
        if job is None or self.verb not in {"cancel", "requeue"} or job.state.is_terminal:
            return ""
        if job.state is JobState.PENDING:
            return "It is taken out of the queue, and will not be started." if self.verb == "cancel" else ""
        ran = format_duration(now - job.started_at) if job.started_at else "0s"
        gpus = f" on {plural(len(job.gpus), 'GPU')}" if job.gpus else ""
        kept = "its output stays" if self.verb == "cancel" else "it begins anew"
        return f"It is stopped: {ran} of work{gpus} is lost; {kept}."

    def doubt(self, snapshot: Snapshot) -> str:
        """Why it makes no sense any more; empty while it does."""
        if self.others:
            return bulk.doubt(self._jobs(snapshot), len(self.job_ids), self.verb)
        job = snapshot.job(self.job_id)
        if job is None:
            return f"Job {self.job_id} is not in the queue any more."
        if self.verb in {"raise", "lower"}:
            return f"It is {job.state} by now." if job.state.is_terminal else ""
        return "" if WISHES[self.verb].may(job) else f"It is {job.state}{' and held' if job.held else ''} by now."

    def _jobs(self, snapshot: Snapshot) -> list[Job]:
        wanted = frozenset(self.job_ids)
        return [job for job in snapshot.jobs if job.id in wanted]

    def change(self, now: datetime) -> Change:
        """What the plan is asked."""
        ids = self.job_ids
        changes: dict[str, Callable[[], Change]] = {
            "top": lambda: whatif.topped(ids, now),
            "hold": lambda: whatif.held(ids),
            "release": lambda: whatif.released(ids, now),
            "cancel": lambda: whatif.cancelled(ids),
            "requeue": lambda: whatif.requeued(ids, now),
        }
        make = changes.get(self.verb, lambda: whatif.prioritised(ids, self.delta, relative=True))
        return make()

    def fate(self) -> str:
        """What becomes of its own start when it has none afterwards."""
        return {"hold": "held", "cancel": "cancelled"}.get(self.verb, "not foreseen")

    def call(self, reason: str = "") -> Call | None:
        """What writes it down; None when nothing is to be changed."""
        del reason
        if self.verb not in {"raise", "lower"}:
            return WISHES[self.verb].call(*self.job_ids)
        return wishes.add_priority(self.job_ids, self.delta) if self.delta else None


def purpose(move: Move) -> str:
    """`, which takes it past job 106`, and past how many; empty where it is in its place again."""
    if not move.passes:
        return ""
    more = f" and {plural(move.passes - 1, 'more job')}" if move.passes > 1 else ""
    return f", which takes it past job {move.past}{more}"


@dataclass(frozen=True)
class GpuProposal:
    """A wish about one GPU, named by its UUID."""

    uuid: str
    index: str
    verb: str
    """`drain` or `resume`."""

    job_ids: tuple[JobId, ...] = ()

    @property
    def asks_reason(self) -> bool:
        """Whether a reason goes with it."""
        return self.verb == "drain"

    def further(self, verb: str, snapshot: Snapshot) -> GpuProposal:
        """No key adds to it."""
        del verb, snapshot
        return self

    def words(self, snapshot: Snapshot) -> str:
        """The change, in words."""
        view = next((view for view in snapshot.gpus if view.gpu.uuid == self.uuid), None)
        if self.verb == "drain":
            on_it = (view.job_ids or (view.job_id,)) if view and view.job_id is not None else ()
            names = ", ".join(str(job_id) for job_id in on_it)
            goes_on = f", job {names} runs on there" if len(on_it) == 1 else f", jobs {names} run on there"
            return f"GPU {self.index}: drain it, no further job starts there{goes_on if on_it else ''}"
        why = f" (drained: {plain(view.drain.reason, 80)})" if view and view.drain and view.drain.reason else ""
        return f"GPU {self.index}: resume it, jobs may start there again{why}"

    def cost(self, snapshot: Snapshot, now: datetime) -> str:
        """Nothing is lost for good."""
        del snapshot, now
        return ""

    def doubt(self, snapshot: Snapshot) -> str:
        """Why it makes no sense any more."""
        view = next((view for view in snapshot.gpus if view.gpu.uuid == self.uuid), None)
        if view is None:
            return f"GPU {self.index} is not there any more."
        is_drained = view.drain is not None or self.uuid in snapshot.controls.drains
        if self.verb == "drain" and is_drained:
            return "It is drained already."
        if self.verb == "resume" and not is_drained and not view.is_stopped_by_xid:
            return "It is not drained any more."
        return ""

    def change(self, now: datetime) -> Change:
        """What the plan is asked."""
        return whatif.drained([self.uuid], now) if self.verb == "drain" else whatif.resumed([self.uuid])

    def fate(self) -> str:
        """What becomes of a start that there is none of afterwards."""
        return "not foreseen"

    def call(self, reason: str = "") -> Call:
        """What writes it down."""
        if self.verb == "drain":
            return wishes.drain(self.uuid, self.index, reason)
        return wishes.resume(self.uuid, self.index)


Proposal: TypeAlias = JobProposal | GpuProposal | WindowProposal | EditProposal

_WORDS = {
    "top": "{title}: to the head of the queue",
    "hold": "{title}: hold it, it does not start until released",
    "release": "{title}: release it, it may start",
    "cancel": "{title}: cancel it",
    "requeue": "{title}: run it again",
}


def of_key(jobs: Sequence[Job], verb: str, snapshot: Snapshot) -> JobProposal:
    """What that key proposes for these jobs."""
    others = tuple(job.id for job in jobs[1:])
    if verb in {"raise", "lower"}:
        return JobProposal(jobs[0].id, "raise", others=others).further(verb, snapshot)
    return JobProposal(jobs[0].id, verb, others=others)
