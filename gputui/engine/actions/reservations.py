"""Actions on reservations and the standing rule: written into the store and audited; the settings file has its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.action import ReserveGpus, SetStanding, Unreserve
from gputui.domain.errors import GputuiError, InputError, NotFoundError
from gputui.domain.policy.effective_settings import effective_policy
from gputui.domain.policy.reservations import check_conflicts, check_times
from gputui.domain.settings import PolicySettings, Window
from gputui.domain.snapshot import Controls
from gputui.domain.submit_action import Done
from gputui.engine.actions.context import ActionContext

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
