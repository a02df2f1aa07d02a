"""Actions that keep their changes, to be undone."""

from __future__ import annotations

from typing import Any

from msgspec import field

from gputui.domain.action import Action
from gputui.domain.submit_action import Done
from gputui.engine.actions.actions import Actions
from gputui.engine.actions.context import UndoableChange


class HeardActions(Actions):
    """Actions with the changes of all of them."""

    heard: list[UndoableChange] = field(default_factory=list)

    def act(self, action: Action, **options: Any) -> Done:
        done = super().act(action, **options)
        self.heard.extend(done.changes)
        return done
