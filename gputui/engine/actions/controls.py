"""Changes of the operator's controls: drained GPUs and the pause of the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.domain.action import ControlAction, Pause, Unpause
from gputui.domain.errors import NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.snapshot import Controls
from gputui.domain.submit_action import Done
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.undo import DrainChange, PauseChange, UndoableChange


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


def find_gpu(uuids: Sequence[str], name: str) -> str:
    """Return the UUID for an index, a UUID or its unambiguous beginning; raises NotFoundError.

    `uuids` are in the order of their indices.
    """
    if name.isascii() and name.isdigit() and int(name) < len(uuids):
        return uuids[int(name)]
    matches = [uuid for uuid in uuids if uuid == name or (len(name) >= 6 and uuid.startswith(name))]
    if len(matches) != 1:
        raise NotFoundError(f"no GPU {name!r}" if not matches else f"{name!r} begins the UUID of several GPUs")
    return matches[0]


def _drain_words(drain: Drain | None) -> str:
    return f"drained: {drain.reason}" if drain is not None else "in use"


def _pause_words(controls: Controls) -> str:
    return f"paused: {controls.pause_reason}" if controls.paused else "dispatching"
