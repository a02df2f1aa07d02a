"""Changes of the operator's controls: drained GPUs and the pause of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from gputui.domain.errors import NotFoundError
from gputui.domain.gpu import Drain
from gputui.domain.snapshot import Controls
from gputui.engine.actions.context import ActionContext
from gputui.engine.actions.undo import DrainChange, PauseChange


def change_drains(context: ActionContext, verb: str, uuids: Iterable[str], drain: Drain | None) -> None:
    """Drain these GPUs; with None, resume them."""
    now = context.now()
    with context.store.transaction() as transaction:
        controls = transaction.controls()
        drains, resumed = dict(controls.drains), dict(controls.resumed)
        for uuid in dict.fromkeys(uuids):
            was, before = _drain_words(drains, uuid), drains.pop(uuid, None)
            if drain is not None:
                drains[uuid] = drain
            else:
                resumed[uuid] = now
            context.audit(transaction, verb, uuid, was, _drain_words(drains, uuid))
            context.report(DrainChange(verb, uuid, before, drain))
        transaction.set_controls(replace(controls, drains=drains, resumed=resumed))


def change_pause(context: ActionContext, verb: str, change: Callable[[Controls], Controls]) -> None:
    """Pause the scheduler or end its pause."""
    with context.store.transaction() as transaction:
        before = transaction.controls()
        after = change(before)
        transaction.set_controls(after)
        context.audit(transaction, verb, "scheduler", _pause_words(before), _pause_words(after))
        context.report(PauseChange(verb, before, after))


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


def _drain_words(drains: Mapping[str, Drain], uuid: str) -> str:
    return f"drained: {drains[uuid].reason}" if uuid in drains else "in use"


def _pause_words(controls: Controls) -> str:
    return f"paused: {controls.pause_reason}" if controls.paused else "dispatching"
