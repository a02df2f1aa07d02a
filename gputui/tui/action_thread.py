"""Writes wishes into the store on a thread of its own: the disk may block, the screen may not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from textual.message import Message

from gputui.domain.errors import GputuiError
from gputui.engine.actions import Actions
from gputui.tui.messages import WishDone, WishFailed
from gputui.tui.undo import Undo
from gputui.tui.work import Work


class ActionThread:
    """Carries out wishes one after the other, in the order in which they were made. Never blocks its caller."""

    def __init__(
        self, actions: Actions, tell: Callable[[Message], object], indices: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._actions = actions
        self._undo = Undo(actions, indices)
        self._tell = tell
        self._wishes: queue.SimpleQueue[tuple[Work, Callable[[Actions], str]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[Actions], str]) -> Work:
        """Carry this out as soon as can be; how far it is."""
        work = Work("Writing it down:", "jobs")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gputui-wishes", daemon=True)
            self._thread.start()
        self._wishes.put((work, call))
        return work

    def undo(self) -> Work:
        """Take the last wish back, once those before it are carried out."""
        return self.add(self._undo.last)

    def finish(self, timeout: float) -> bool:
        """Carry out what was asked for, and let the thread end; whether it was done in time."""
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._wishes.put(None)
        thread.join(timeout)
        return not thread.is_alive()

    def _run(self) -> None:
        while (asked := self._wishes.get()) is not None:
            work, call = asked
            self._actions.on_progress = work.step
            work.begin()
            told = self._carry_out(call)
            work.end()
            self._tell(told)
            del asked, call, told  # or the jobs it was about would be kept until the next one

    def _carry_out(self, call: Callable[[Actions], str]) -> Message:
        try:
            return WishDone(self._undo.carry_out(call))
        except GputuiError as error:
            return WishFailed(error)
        except Exception as error:  # noqa: BLE001 - a border: whatever went wrong is told, and the next wish is heard
            return WishFailed(GputuiError(f"{type(error).__name__}: {error}", where="gputui"))
