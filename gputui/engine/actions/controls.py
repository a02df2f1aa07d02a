"""Changes of what operators set: drains, the pause, reservations, the standing rule and tenants.

They are written into the store and audited; the settings file has its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.action import (
    ControlAction,
    Pause,
    RemoveTenant,
    ReserveGpus,
    SetStanding,
    SetTenant,
    Unpause,
    Unreserve,
)
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.policy.effective_settings import effective_policy
from gputui.domain.policy.reservations import check_conflicts, check_times
from gputui.domain.settings import PolicySettings, TenantSettings, Window
from gputui.domain.snapshot import Controls
from gputui.domain.submit_action import Done
from gputui.engine.actions.context import ActionContext, DrainChange, PauseChange, UndoableChange
from gputui.ports import Transaction


def change_controls(context: ActionContext, action: ControlAction) -> Done:
    """Drain GPUs, pause the scheduler, or end that; each GPU has an entry of its own in the audit log."""
    changes: list[UndoableChange] = []
    with context.store.transaction() as transaction:
        before = transaction.controls()
        after = action.apply(before, context.now(), context.actor.user)
        transaction.set_controls(after)
        if isinstance(action, Pause | Unpause):
            context.audit(transaction, action.verb, "scheduler", _pause_words(before), _pause_words(after))
            changes += [PauseChange(action.verb, before, after)] if before != after else []
            return Done(changes=tuple(changes))
        for uuid in dict.fromkeys(action.uuids):
            was, now = before.drains.get(uuid), after.drains.get(uuid)
            context.audit(transaction, action.verb, uuid, _drain_words(was), _drain_words(now))
            changes += [DrainChange(action.verb, uuid, was, now)] if was != now else []
    return Done(changes=tuple(changes))


def _drain_words(drain: Drain | None) -> str:
    return f"drained: {drain.reason}" if drain is not None else "in use"


def _pause_words(controls: Controls) -> str:
    return f"paused: {controls.pause_reason}" if controls.paused else "dispatching"


_REMEMBERED = timedelta(days=30)
"""Time after its end during which a reservation's name is not reused."""


def reserve(context: ActionContext, action: ReserveGpus) -> Done:
    """Reserve GPUs."""
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        named = _checked(context, action, controls)
        oldest = context.now() - _REMEMBERED
        others = (other for other in controls.reservations if other.end > oldest)
        transaction.set_controls(_unjudged(replace(controls, reservations=(*others, named)), named))
        context.audit(transaction, action.verb, f"reservation {named.name}", "", describe_window(named))
    return Done(window=named)


def foreseen(context: ActionContext, action: ReserveGpus) -> Done:
    """Return the reservation as `reserve` would store it; raises the same errors."""
    return Done(window=_checked(context, action, context.store.controls()))


def unreserve(context: ActionContext, action: Unreserve) -> Done:
    """Remove a reservation that has not ended and was added by an action."""
    name = action.name
    with context.store.transaction() as transaction:
        controls, now = transaction.controls(), context.now()
        found = [window for window in controls.reservations if window.name == name and window.end > now]
        if not found and any(window.name == name for window in context.policy.reservations):
            hint = "remove it there"
            raise GputuiError(f"reservation {name} is defined in the settings file", hint=hint)
        if not found:
            raise NotFoundError(f"there is no reservation {name}", hint="gputui reserve list shows them")
        left = tuple(window for window in controls.reservations if window not in found)
        transaction.set_controls(_unjudged(replace(controls, reservations=left), found[0]))
        context.audit(transaction, action.verb, f"reservation {name}", describe_window(found[0]), "")
    return Done()


def set_standing(context: ActionContext, action: SetStanding) -> Done:
    """Set the standing rule, which gives GPUs to jobs of a priority first; None restores the settings file's."""
    with context.store.transaction() as transaction:
        before = transaction.controls()
        after = replace(before, standing=action.rule)
        transaction.set_controls(after)
        words = (_standing_word(context.policy, controls) for controls in (before, after))
        context.audit(transaction, action.verb, "scheduler", *words)
    return Done()


def _checked(context: ActionContext, action: ReserveGpus, controls: Controls) -> Window:
    window, now = action.window, context.now()
    everyone = (*context.policy.reservations, *controls.reservations)
    check_times(window, now)
    named = window if window.name else replace(window, name=_free_name(everyone))
    open_ones = [other for other in everyone if other.end > now and other.key not in controls.released]
    if any(other.name == named.name for other in everyone if other.end > now):
        raise InputError(f"reservation {named.name} exists already", where="--name", hint="choose another name")
    check_conflicts(named, open_ones, action.gpus)
    return named


def _standing_word(policy: PolicySettings, controls: Controls) -> str:
    priority = effective_policy(policy, controls).standing_priority
    return "no standing rule" if priority is None else f"GPUs go to jobs of priority {priority} and above first"


def describe_window(window: Window) -> str:
    """Return the window as `4 GPUs from 2026-12-01T09:00:00+00:00 to … for bob`."""
    what = f"GPUs {', '.join(window.gpus)}" if window.gpus else f"{window.count} GPUs"
    return f"{what} from {window.start.isoformat()} to {window.end.isoformat()} for {beneficiary(window)}"


def beneficiary(window: Window) -> str:
    """Return the beneficiary: `bob`, `priority 80 and above`, `bob, and priority 80 and above`, `nobody`."""
    words = [window.tenant] if window.tenant is not None else []
    words += [f"priority {window.priority} and above"] if window.priority is not None else []
    return ", and ".join(words) or "nobody"


def _unjudged(controls: Controls, window: Window) -> Controls:
    """Return the controls without claim and release of an earlier window with that name and start."""
    claimed = {key: at for key, at in controls.claimed.items() if key != window.key}
    released = {key: at for key, at in controls.released.items() if key != window.key}
    return replace(controls, claimed=claimed, released=released)


def _free_name(windows: Iterable[Window]) -> str:
    """Return the next free name: `r1`, `r2`."""
    numbers = (re.fullmatch(r"r(\d{1,9})", window.name, re.ASCII) for window in windows)
    return f"r{max((int(match[1]) for match in numbers if match), default=0) + 1}"


def set_tenant(context: ActionContext, action: SetTenant) -> Done:
    """Change a tenant's weight and caps."""
    name = action.name
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        known = {tenant.name: tenant for tenant in effective_policy(context.policy, controls).tenants}
        before = known.get(name)
        after = replace(TenantSettings(name) if action.clear or before is None else before, **action.changes)
        _check_may(context, before, after)
        _put(transaction, controls, name, (after,))
        context.audit(transaction, "tenant", f"tenant {name}", _in_words(before), _in_words(after))
    return Done()


def remove_tenant(context: ActionContext, action: RemoveTenant) -> Done:
    """Remove a tenant's values."""
    name = action.name
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        before = next((tenant for tenant in controls.tenants if tenant.name == name), None)
        of_file = next((tenant for tenant in context.policy.tenants if tenant.name == name), None)
        if before is None and of_file is not None:
            raise GputuiError(f"tenant {name} is defined in the settings file", hint="change it there, or tenant set")
        if before is None:
            raise NotFoundError(f"nothing is set for a tenant {name}", hint="gputui tenant list shows them")
        _check_may(context, before, of_file)
        _put(transaction, controls, name, ())
        context.audit(transaction, "tenant", f"tenant {name}", _in_words(before), _in_words(of_file))
    return Done()


def _check_may(context: ActionContext, before: TenantSettings | None, after: TenantSettings | None) -> None:
    """Raise GputuiError if a member of a shared queue would change a highest priority, or the users."""
    if _guarded(before) != _guarded(after) and not context.may_operate:
        hint = "ask root, the owner of the state directory, or a user named by policy.operators"
        raise GputuiError("only an operator may change the highest priority or the users of a tenant", hint=hint)


def _put(transaction: Transaction, controls: Controls, name: str, row: tuple[TenantSettings, ...]) -> None:
    others = tuple(tenant for tenant in controls.tenants if tenant.name != name)
    transaction.set_controls(replace(controls, tenants=(*others, *row)))


def _guarded(tenant: TenantSettings | None) -> tuple[int | None, tuple[str, ...]]:
    """Return the fields that only operators may change."""
    return (tenant.max_priority, tenant.users) if tenant else (None, ())


def _in_words(tenant: TenantSettings | None) -> str:
    if tenant is None:
        return ""
    caps = {"GPUs": tenant.gpus, "running": tenant.running, "pending": tenant.pending}
    told = [f"at most {cap} {word}" for word, cap in caps.items() if cap is not None]
    told += [f"at most priority {tenant.max_priority}"] if tenant.max_priority is not None else []
    told += [f"for {', '.join(tenant.users)} alone"] if tenant.users else []
    return ", ".join((f"weight {tenant.weight:g}", *told))
