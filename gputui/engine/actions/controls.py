"""Changes of what operators set: drains, the pause, reservations, the standing rule and tenants.

They are written into the store and audited; the settings file has its own.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from msgspec.structs import replace

from gputui.domain.action import (
    ControlAction,
    Done,
    DrainGpus,
    Pause,
    RemoveTenant,
    ReserveGpus,
    ResumeGpus,
    SetStanding,
    SetTenant,
    Unpause,
    Unreserve,
)
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.policy.reservations import check_conflicts, check_times
from gputui.domain.settings import PolicySettings, TenantSettings, Window
from gputui.domain.snapshot import Controls, effective_policy
from gputui.engine.actions.context import ActionContext, DrainChange, PauseChange, UndoableChange
from gputui.ports import Transaction

_REMEMBERED = timedelta(days=30)
"""Time after its end during which a reservation's name is not reused."""
_PolicyAction: TypeAlias = ReserveGpus | Unreserve | SetStanding | SetTenant | RemoveTenant


def change_controls(context: ActionContext, action: ControlAction | _PolicyAction) -> Done:
    """Drain GPUs, pause the scheduler, reserve GPUs, or change a rule or a tenant; or end that."""
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        match action:
            case ReserveGpus() | Unreserve():
                return _change_reservations(context, transaction, controls, action)
            case SetTenant() | RemoveTenant():
                _change_tenant(context, transaction, controls, action)
                return Done()
            case SetStanding():
                after = replace(controls, standing=action.rule)
                words = (_standing_word(context.policy, each) for each in (controls, after))
            case _:
                if isinstance(action, DrainGpus):
                    _check_known(context, action, controls)
                after = action.apply(controls, context.clock.now(), context.actor.user)
                words = ("paused: " + each.pause_reason if each.paused else "dispatching" for each in (controls, after))
        transaction.set_controls(after)
        if isinstance(action, DrainGpus | ResumeGpus):  # each GPU has an entry of its own in the audit log
            changes: list[UndoableChange] = []
            for uuid in dict.fromkeys(action.uuids):
                was, now = controls.drains.get(uuid), after.drains.get(uuid)
                context.audit(transaction, action.verb, uuid, _drain_words(was), _drain_words(now))
                changes += [DrainChange(action.verb, uuid, was, now)] if was != now else []
            return Done(changes=tuple(changes))
        context.audit(transaction, action.verb, "scheduler", *words)
        can_be_undone = isinstance(action, Pause | Unpause) and controls != after
    return Done(changes=(PauseChange(action.verb, controls, after),) if can_be_undone else ())


def _check_known(context: ActionContext, action: DrainGpus, controls: Controls) -> None:
    """Raise NotFoundError for a GPU that the scheduler does not list, unless it is drained already."""
    known = {gpu.uuid for gpu in context.known_gpus()}
    for uuid in action.uuids:
        if known and uuid not in known and uuid not in controls.drains:
            raise NotFoundError(f"no GPU {uuid!r}", hint="gputui gpus lists them")


def _drain_words(drain: Drain | None) -> str:
    return f"drained: {drain.reason}" if drain is not None else "in use"


def _standing_word(policy: PolicySettings, controls: Controls) -> str:
    priority = effective_policy(policy, controls).standing_priority
    return "no standing rule" if priority is None else f"GPUs go to jobs of priority {priority} and above first"


def foreseen(context: ActionContext, action: ReserveGpus) -> Done:
    """Return the reservation as the action would store it; raises the same errors."""
    return Done(window=_checked(context, action, context.store.controls()))


def _change_reservations(
    context: ActionContext, transaction: Transaction, controls: Controls, action: ReserveGpus | Unreserve
) -> Done:
    """Reserve GPUs, or remove a reservation that has not ended and was added by an action."""
    now = context.clock.now()
    if isinstance(action, ReserveGpus):
        window = _checked(context, action, controls)
        others = tuple(other for other in controls.reservations if other.end > now - _REMEMBERED)
        left, was, then = (*others, window), "", describe_window(window)
    else:
        name = action.name
        found = [each for each in controls.reservations if each.name == name and each.end > now]
        if not found and any(each.name == name for each in context.policy.reservations):
            raise GputuiError(f"reservation {name} is defined in the settings file", hint="remove it there")
        if not found:
            raise NotFoundError(f"there is no reservation {name}", hint="gputui reserve list shows them")
        window = found[0]
        left = tuple(each for each in controls.reservations if each not in found)
        was, then = describe_window(window), ""
    # without claim and release of an earlier window with that name and start
    claimed = {key: at for key, at in controls.claimed.items() if key != window.key}
    released = {key: at for key, at in controls.released.items() if key != window.key}
    transaction.set_controls(replace(controls, reservations=left, claimed=claimed, released=released))
    context.audit(transaction, action.verb, f"reservation {window.name}", was, then)
    return Done(window=window) if isinstance(action, ReserveGpus) else Done()


def _checked(context: ActionContext, action: ReserveGpus, controls: Controls) -> Window:
    """Return the window with a name, `r1` or `r2` and so on if it has none; raises GputuiError if it cannot be."""
    window, now = action.window, context.clock.now()
    everyone = (*context.policy.reservations, *controls.reservations)
    check_times(window, now)
    numbers = (re.fullmatch(r"r(\d{1,9})", each.name, re.ASCII) for each in everyone)
    free = f"r{max((int(match[1]) for match in numbers if match), default=0) + 1}"
    named = window if window.name else replace(window, name=free)
    open_ones = [other for other in everyone if other.end > now and other.key not in controls.released]
    if any(other.name == named.name for other in everyone if other.end > now):
        raise InputError(f"reservation {named.name} exists already", where="--name", hint="choose another name")
    check_conflicts(named, open_ones, action.gpus)
    return named


def describe_window(window: Window) -> str:
    """Return the window as `4 GPUs from 2026-12-01T09:00:00+00:00 to … for bob`."""
    what = f"GPUs {', '.join(window.gpus)}" if window.gpus else f"{window.count} GPUs"
    return f"{what} from {window.start.isoformat()} to {window.end.isoformat()} for {beneficiary(window)}"


def beneficiary(window: Window) -> str:
    """Return the beneficiary: `bob`, `priority 80 and above`, `bob, and priority 80 and above`, `nobody`."""
    words = [window.tenant] if window.tenant is not None else []
    words += [f"priority {window.priority} and above"] if window.priority is not None else []
    return ", and ".join(words) or "nobody"


def _change_tenant(
    context: ActionContext, transaction: Transaction, controls: Controls, action: SetTenant | RemoveTenant
) -> None:
    """Change a tenant's weight and caps, or remove its values, so that those of the settings file apply again."""
    name = action.name
    after: TenantSettings | None
    set_here, of_file = (
        next((each for each in tenants if each.name == name), None)
        for tenants in (controls.tenants, context.policy.tenants)
    )
    before = set_here
    if isinstance(action, SetTenant):
        before = set_here or of_file
        after = replace(TenantSettings(name) if action.clear or before is None else before, **action.changes)
        row = [after]
    elif set_here is not None:
        after, row = of_file, []
    elif of_file is not None:
        raise GputuiError(f"tenant {name} is defined in the settings file", hint="change it there, or tenant set")
    else:
        raise NotFoundError(f"nothing is set for a tenant {name}", hint="gputui tenant list shows them")
    others = tuple(tenant for tenant in controls.tenants if tenant.name != name)
    transaction.set_controls(replace(controls, tenants=(*others, *row)))
    context.audit(transaction, "tenant", f"tenant {name}", _in_words(before), _in_words(after))


def _in_words(tenant: TenantSettings | None) -> str:
    if tenant is None:
        return ""
    caps = {"GPUs": tenant.gpus, "running": tenant.running, "pending": tenant.pending}
    told = [f"at most {cap} {word}" for word, cap in caps.items() if cap is not None]
    told += [f"at most priority {tenant.max_priority}"] if tenant.max_priority is not None else []
    told += [f"for {', '.join(tenant.users)} alone"] if tenant.users else []
    return ", ".join((f"weight {tenant.weight:g}", *told))
