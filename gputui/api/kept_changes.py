"""Changes that may be undone, as long as this owner lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from itertools import count

from gputui.api.messages import ChangeNumber
from gputui.domain.access import Caller
from gputui.domain.errors import NotFoundError
from gputui.ports.actions import ActionChange

MOST_CHANGES = 20_000
"""Maximum number of changes that can be undone."""


class KeptChanges:
    """Changes that can be undone by their numbers, as long as this owner lives."""

    def __init__(self) -> None:
        self._changes: dict[int, tuple[int, ActionChange]] = {}
        """Changes with the uid of whoever made them."""
        self._numbers = count(time.time_ns() // 10**9 * 10**6)
        """Numbers that no owner before has given: one of those would undo something else."""
        self._lock = threading.Lock()

    def keep(self, caller: Caller, changes: Iterable[ActionChange], indices: Mapping[str, str]) -> list[ChangeNumber]:
        """Give each change a number; `indices` has the displayed index of each GPU, by UUID."""
        with self._lock:
            noted = {next(self._numbers): change for change in tuple(changes)[-MOST_CHANGES:]}
            self._changes |= {number: (caller.uid, change) for number, change in noted.items()}
            while len(self._changes) > MOST_CHANGES:
                del self._changes[next(iter(self._changes))]
        return [ChangeNumber(number, change.subject(indices), change.done) for number, change in noted.items()]

    def of(self, caller: Caller, numbers: Iterable[int]) -> list[ActionChange]:
        """Return the caller's changes with these numbers; raises NotFoundError, also for those of others."""
        with self._lock:
            found = [self._changes.get(number) for number in numbers]
        changes = [each[1] for each in found if each is not None and each[0] == caller.uid]
        if len(changes) < len(found):
            what = f"{len(found) - len(changes)} of these changes were made before this owner began, or too long ago"
            raise NotFoundError(what)
        return changes
