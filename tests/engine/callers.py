"""Callers of actions, as the process that owns a queue makes them."""

from __future__ import annotations

from gputui.domain.access import Actor, Caller, Resolve, Role
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.permissions import UserPermissions, account_number
from gputui.ports import Clock, JobStore
from tests.factories import FakeClock


def caller_of(actor: Actor, permissions: UserPermissions) -> Caller:
    """Return an account as a caller: an operator by the settings, or where there are no other users; else a user."""
    is_operator = permissions.is_operator(actor.uid) or not permissions.settings.access.users
    return Caller(actor.uid, actor.uid, (), actor.user, Role.OPERATOR if is_operator else Role.USER)


def actions_of(
    caller: Caller,
    store: JobStore,
    permissions: UserPermissions,
    *,
    clock: Clock | None = None,
    resolve: Resolve = account_number,
) -> Actions:
    """Return the actions of a caller, by the settings of the permissions."""
    scheduler, policy = permissions.settings.scheduler, permissions.settings.policy
    clock = clock or FakeClock()
    return Actions(store, clock, caller.actor, scheduler, policy, permissions, caller=caller, resolve=resolve)
