"""Takes wishes back: each only while what it was about is still as the wish left it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gputui.domain.errors import NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.job import Job
from gputui.domain.snapshot import Controls
from gputui.domain.state import JobState
from gputui.ports import Transaction

FINAL = frozenset({"cancel", "requeue"})
"""Verbs that end something: what has ended is not taken back."""


@dataclass(frozen=True)
class JobChange:
    """What a wish made of a job."""

    verb: str
    before: Job
    after: Job

    @property
    def target(self) -> str:
        """What the audit log calls it."""
        return f"job {self.before.id}"

    @property
    def fields(self) -> dict[str, Any]:
        """What it changed, as it was."""
        names = [field.name for field in dataclasses.fields(Job)]
        pairs = ((name, getattr(self.before, name), getattr(self.after, name)) for name in names)
        return {name: before for name, before, after in pairs if before != after}

    def revert(self, transaction: Transaction) -> str:
        """Put it back; why not, if not."""
        try:
            now = transaction.get(self.before.id)
        except NotFoundError:
            return "is not there any more"
        if now.state is not self.after.state:
            return f"is {now.state} by now"
        if any(getattr(now, name) != getattr(self.after, name) for name in self.fields):
            return "has been changed since"
        transaction.put(now.evolve(**self.fields))
        return ""

    @property
    def done(self) -> str:
        """What is so again."""
        before = self.before
        words = {
            "hold": "may start again",
            "release": "is held again",
            "top": "is back at its place in the queue",
            "priority": f"has priority {before.priority} again",
        }
        again = words.get(self.verb, f"is as before the {self.verb}")
        return f"{again}, at the head of the queue" if self.verb == "priority" and before.topped_at else again


@dataclass(frozen=True)
class DrainChange:
    """What a wish made of a GPU."""

    verb: str
    uuid: str
    before: Drain | None
    after: Drain | None

    @property
    def target(self) -> str:
        """What the audit log calls it."""
        return self.uuid

    def revert(self, transaction: Transaction) -> str:
        """Put it back; why not, if not."""
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
        """What is so again."""
        return f"is drained again: {self.before.reason}".rstrip(": ") if self.before else "takes jobs again"


@dataclass(frozen=True)
class PauseChange:
    """What a wish made of the scheduler."""

    verb: str
    before: Controls
    after: Controls
    target = "scheduler"

    def revert(self, transaction: Transaction) -> str:
        """Put it back; why not, if not."""
        controls = transaction.controls()
        if _pause(controls) != _pause(self.after):
            return "has been changed since"
        paused, reason, by = _pause(self.before)
        transaction.set_controls(replace(controls, paused=paused, pause_reason=reason, paused_by=by))
        return ""

    @property
    def done(self) -> str:
        """What is so again."""
        return "is paused again" if self.before.paused else "starts jobs again"


WishedChange: TypeAlias = JobChange | DrainChange | PauseChange


def _pause(controls: Controls) -> tuple[bool, str, str]:
    return controls.paused, controls.pause_reason, controls.paused_by


def can_be_undone(change: WishedChange) -> bool:
    """Whether there is something to take back."""
    if isinstance(change, JobChange):
        return (change.verb not in FINAL and change.after.state is JobState.PENDING) or change.verb == "priority"
    return change.before != change.after
