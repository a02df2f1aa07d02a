"""What this console wished last, so that it can be taken back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from gputui.domain.errors import GputuiError
from gputui.domain.text import plain
from gputui.engine.actions import Actions
from gputui.engine.undo import DrainChange, JobChange, WishedChange

KEPT = 20
"""So many wishes back, no further: what was long ago is better changed by hand."""
MOST = 20_000
"""So many jobs changed by them all: each is kept as it was."""
_TOLD = 4


class Undo:
    """Carries wishes out, and takes the last ones back. For one thread."""

    def __init__(self, actions: Actions, indices: Callable[[], Mapping[str, str]]) -> None:
        self._actions = actions
        self._indices = indices
        """What the screen calls each GPU, by UUID."""
        self._noted: list[WishedChange] = []
        self._past: deque[list[WishedChange]] = deque(maxlen=KEPT)
        actions.on_change = self._note

    def _note(self, change: WishedChange) -> None:
        self._noted.append(change)

    def carry_out(self, call: Callable[[Actions], str]) -> str:
        """What was done, in words; one that fails was not done, and is nothing to take back."""
        self._noted = []
        done = call(self._actions)
        noted, self._noted = self._noted, []
        if noted:
            self._past.append(noted)
            while len(self._past) > 1 and sum(map(len, self._past)) > MOST:
                self._past.popleft()
        return done

    def last(self, actions: Actions) -> str:
        """Take the last wish back that is not taken back yet; what was undone, in words."""
        if not self._past:
            raise GputuiError("nothing was wished here that could be undone", where="undo")
        answers = actions.undo(self._past[-1])  # where it is given up, it can be asked for again
        self._past.pop()
        told = [(self._name(change), change, refusal) for change, refusal in answers]
        undone = [f"{name} {change.done}" for name, change, refusal in told if not refusal]
        refused = [f"{name} {refusal}" for name, _, refusal in told if refusal]
        if not undone:
            raise GputuiError(f"{_listed(refused)}: not undone", where="undo")
        return f"undone: {_listed(undone)}" + (f"; not undone: {_listed(refused)}" if refused else "")

    def _name(self, change: WishedChange) -> str:
        if isinstance(change, JobChange):
            return f"job {change.before.id}"
        if isinstance(change, DrainChange):
            return f"GPU {self._indices().get(change.uuid, change.uuid[:12])}"
        return "the scheduler"


def _listed(words: list[str]) -> str:
    more = len(words) - _TOLD
    return plain(", ".join(words[:_TOLD]) + (f" and {more} more" if more > 0 else ""), 300)
