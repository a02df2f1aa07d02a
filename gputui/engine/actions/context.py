"""State shared by all actions of one actor: store, clock and settings, the audit, and changes that can be undone.

A change is reverted only while its target is still as the action left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.audit import Actor, AuditEntry, target_of
from gputui.domain.errors import NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.settings import PolicySettings, SchedulerSettings
from gputui.domain.snapshot import Controls
from gputui.engine.actions.permissions import PriorityCaps, UserPermissions
from gputui.ports import Clock, JobStore, Transaction

T = TypeVar("T")
_REPORT_EVERY = 100
"""Number of jobs between two reports of progress."""


class ActionContext(Struct, frozen=True):
    """Store, clock, actor and settings of a set of actions."""

    store: JobStore
    clock: Clock
    actor: Actor
    settings: SchedulerSettings
    policy: PolicySettings
    permissions: UserPermissions | None
    """The site's rules; None if everything is allowed."""
    on_progress: Callable[[int, int], None] = lambda done, total: None
    """Called now and then with the number of finished jobs and the total; an exception undoes the action."""

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return self.clock.now()

    def audit(self, transaction: Transaction, verb: str, target: str, before: str, after: str) -> None:
        """Write an entry of the audit log in the transaction."""
        transaction.audit(AuditEntry(self.now(), self.actor.uid, self.actor.user, verb, target, before, after))

    def with_progress(self, items: Iterable[T], total: int) -> Iterator[T]:
        """Yield the items, reporting the progress now and then."""
        for number, item in enumerate(items):
            if number % _REPORT_EVERY == 0:
                self.on_progress(number, total)
            yield item

    @property
    def may_operate(self) -> bool:
        """Return whether the actor is an operator; in a private queue every user is."""
        return self.permissions is None or self.permissions.may_operate(self.actor.uid)

    def caps(self, controls: Controls) -> PriorityCaps:
        """Return the highest priorities that the actor may assign."""
        return PriorityCaps(self.policy, controls, self.permissions, self.actor.uid)


class JobChange(Struct, frozen=True):
    """Change of a job by an action."""

    verb: str
    before: Job
    after: Job

    @property
    def target(self) -> str:
        """Name of the job in the audit log."""
        return target_of(self.before)

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed object, by the displayed index of each GPU."""
        del indices
        job = self.before
        return f"{job.count} jobs {job.shown_id}" if job.runs else f"job {job.id}"

    @property
    def fields(self) -> dict[str, Any]:
        """Changed fields with their previous values."""
        pairs = ((name, getattr(self.before, name), getattr(self.after, name)) for name in Job.__struct_fields__)
        return {name: before for name, before, after in pairs if before != after}

    def revert(self, transaction: Transaction, at: datetime) -> str:
        """Revert the change; return why not, or an empty string. Time on hold does not count as waiting.

        Of an array, only those elements are reverted that are still as the action left them.
        """
        try:
            parts = list(transaction.chosen(self.before.ids))
        except NotFoundError:
            return "no longer exists"
        refusals = [self._revert(transaction, now, at) for now in parts]
        return "" if "" in refusals else refusals[0]

    def _revert(self, transaction: Transaction, now: Job, at: datetime) -> str:
        if now.state is not self.after.state:
            return f"is {now.state} now"
        if any(getattr(now, name) != getattr(self.after, name) for name in self.fields):
            return "has been changed since"
        back = now.evolve(**self.fields)
        if now.held and not back.held:
            back = back.evolve(waited=now.waited, waiting_since=at)
        transaction.put(back)
        return ""

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        before = self.before
        words = {
            "hold": "may start again",
            "release": "is held again",
            "top": "is back at its place in the queue",
            "move": "is back at its place in the queue",
            "priority": f"has priority {before.priority} again",
        }
        again = words.get(self.verb, f"is as before the {self.verb}")
        return f"{again}, at the head of the queue" if self.verb == "priority" and before.topped_at else again


class DrainChange(Struct, frozen=True):
    """Drain of a GPU, or its end, by an action."""

    verb: str
    uuid: str
    before: Drain | None
    after: Drain | None

    @property
    def target(self) -> str:
        """Name of the GPU in the audit log."""
        return self.uuid

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed object, by the displayed index of each GPU."""
        return f"GPU {indices.get(self.uuid, self.uuid[:12])}"

    def revert(self, transaction: Transaction, at: datetime) -> str:
        """Revert the change; return why not, or an empty string."""
        del at
        controls = transaction.controls()
        if controls.drains.get(self.uuid) != self.after:
            return "has been changed since"
        others = {uuid: drain for uuid, drain in controls.drains.items() if uuid != self.uuid}
        drains = {**others, self.uuid: self.before} if self.before else others
        resumed = {uuid: at for uuid, at in controls.resumed.items() if uuid != self.uuid or self.verb != "resume"}
        transaction.set_controls(replace(controls, drains=drains, resumed=resumed))
        return ""

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        return f"is drained again: {self.before.reason}".rstrip(": ") if self.before else "takes jobs again"


class PauseChange(Struct, frozen=True):
    """Pause of the scheduler, or its end, by an action."""

    verb: str
    before: Controls
    after: Controls
    target = "scheduler"

    def subject(self, indices: Mapping[str, str]) -> str:
        """Return the name of the changed object, by the displayed index of each GPU."""
        del indices
        return "the scheduler"

    def revert(self, transaction: Transaction, at: datetime) -> str:
        """Revert the change; return why not, or an empty string."""
        del at
        controls = transaction.controls()
        if _pause(controls) != _pause(self.after):
            return "has been changed since"
        paused, reason, by, since = _pause(self.before)
        transaction.set_controls(replace(controls, paused=paused, pause_reason=reason, paused_by=by, paused_at=since))
        return ""

    @property
    def done(self) -> str:
        """Sentence about the restored state."""
        return "is paused again" if self.before.paused else "starts jobs again"


UndoableChange: TypeAlias = JobChange | DrainChange | PauseChange


def _pause(controls: Controls) -> tuple[bool, str, str, datetime | None]:
    return controls.paused, controls.pause_reason, controls.paused_by, controls.paused_at


def undone(context: ActionContext, changes: Iterable[UndoableChange]) -> list[tuple[UndoableChange, str]]:
    """Undo the changes, latest first; return each with the reason why it was not undone, empty if it was."""
    done = []
    with context.store.transaction() as transaction:
        latest_first = list(changes)[::-1]
        for change in context.with_progress(latest_first, len(latest_first)):
            refusal = change.revert(transaction, context.now())
            if not refusal:
                context.audit(transaction, f"undo {change.verb}", change.target, "", change.done)
            done.append((change, refusal))
    return done
