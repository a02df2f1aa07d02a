"""State shared by all actions of one actor: store, clock and settings, and the audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TypeVar

from msgspec import Struct

from gputui.domain.audit import Actor, AuditEntry
from gputui.domain.settings import PolicySettings, SchedulerSettings
from gputui.domain.snapshot import Controls
from gputui.engine.actions.limits import PriorityCaps
from gputui.engine.actions.permissions import UserPermissions
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
