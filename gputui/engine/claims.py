"""Which reservations were claimed and which nobody claimed in time, written down: it is judged once, for good."""

from __future__ import annotations

import logging

from gputui.domain.policy.standing import settled
from gputui.domain.window import WindowView
from gputui.engine.ground import Ground

log = logging.getLogger(__name__)


def settle(ground: Ground, windows: tuple[WindowView, ...]) -> None:
    """Write down what the plan found out about its windows, if anything."""
    if settled(ground.queue.controls, windows) is ground.queue.controls:
        return
    with ground.store.transaction() as transaction:
        before = transaction.controls()
        after = settled(before, windows)
        if after is not before:
            transaction.set_controls(after)
    for view in windows:
        if view.window.key in after.released.keys() - before.released.keys():
            log.info("reservation %s is released: nobody claimed it in time", view.window.name)
        elif view.window.key in after.claimed.keys() - before.claimed.keys():
            log.info("reservation %s is claimed", view.window.name)
    ground.observe()
