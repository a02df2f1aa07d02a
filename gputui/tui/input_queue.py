"""Serialises input: the next key or click is dispatched only after the previous one's handlers have finished.

Textual 8.2 hands each key to whoever has the focus when it comes, and carries it out some messages later. Keys that
come together, as they do over a slow line, therefore all go to where the first one went: of `/host` typed in one go the
`h` would hold a job. So a message is sent after each key on the way that the key takes, up to here, and through the
screen that it opened, if it opened one; and only then comes the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from textual import events
from textual.app import App
from textual.errors import NoWidget
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen

from gputui.engine.process import memory_tuning

LONGEST = 1.0
"""Seconds for which keys wait at most for one before them."""
_LOOK = 0.05
"""Seconds between two looks whether what a key went to is still there: a message goes with it."""


class KeyDone(Message, bubble=True):
    """A message that follows a key: all that came before it on the way is done."""

    def __init__(self, turn: int, screen: Screen[object]) -> None:
        super().__init__()
        self.turn = turn
        self.screen = screen
        """The one in front when it was sent."""


class InputQueue:
    """Keys, pasted text and clicks of one app, dispatched one at a time."""

    def __init__(self, app: App[Any], dispatch: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app = app
        self._dispatch = dispatch
        self._waiting: deque[events.InputEvent | events.Paste] = deque()
        self._turn = 0
        self.is_busy = False
        """True if a key or click is under way."""

    async def handle(self, event: events.Event) -> None:
        """Dispatch an event: keys and the mouse in turn, all else at once."""
        if not isinstance(event, events.InputEvent | events.Paste) or event.is_forwarded:
            await self._dispatch(event)
            return
        memory_tuning.SWEEPER.touch(time.monotonic())
        self._waiting.append(event)
        if not self.is_busy:
            await self._take_turn()

    async def _take_turn(self) -> None:
        self.is_busy = True
        while self._waiting and self._app.screen_stack:
            event = self._waiting.popleft()
            screen, path = self._app.screen, self._path_of(event)
            await self._dispatch(event)
            if path is not None:
                self._turn += 1
                self._send_after(path, screen, self._turn)
                return
        self.is_busy = False

    def _path_of(self, event: events.Event) -> MessagePump | None:
        """Return the widget that handles it, if that has to be waited for; None for the pointer and the wheel."""
        if not isinstance(event, events.MouseEvent):
            return self._app.focused or self._app.screen
        if not isinstance(event, events.MouseUp):
            return None
        try:
            return self._app.get_widget_at(event.x, event.y)[0]
        except NoWidget:
            return None

    def _send_after(self, path: MessagePump, screen: Screen[object], turn: int) -> None:
        path.post_message(KeyDone(turn, screen))
        self._look_after(path, turn, time.monotonic() + LONGEST)

    def _look_after(self, path: MessagePump, turn: int, until: float) -> None:
        if turn != self._turn:
            return
        if path.is_attached and path.is_running and time.monotonic() < until:
            asyncio.get_running_loop().call_later(_LOOK, self._look_after, path, turn, until)
        else:
            self._end_turn(turn)

    def key_done(self, message: KeyDone) -> None:
        """Take the next key, once also what the key called for later is done, and a screen that it opened is there."""
        if message.turn != self._turn or not self._app.screen_stack:  # the latter at the end
            return
        if self._app.screen is not message.screen:
            self._turn += 1
            self._send_after(self._app.screen, self._app.screen, self._turn)
        else:
            self._end_turn(message.turn)

    def _end_turn(self, turn: int) -> None:
        if turn == self._turn:
            self._turn += 1
            self._app.call_later(self._take_turn)
