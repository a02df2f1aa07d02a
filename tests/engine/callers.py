"""Callers of actions, as the process that owns a queue makes them."""

from __future__ import annotations

from gputui.domain.access import Caller, Role
from gputui.domain.audit import Actor
from gputui.engine.actions.permissions import UserPermissions


def caller_of(actor: Actor, permissions: UserPermissions) -> Caller:
    """Return an account as a caller: an operator by the settings, or where there are no other users; else a user."""
    is_operator = permissions.is_operator(actor.uid) or not permissions.settings.access.users
    return Caller(actor.uid, actor.uid, (), actor.user, Role.OPERATOR if is_operator else Role.USER)
