"""One key or click after the other: the next is heard once all that the one before asked for is done.

Textual 8.2 hands each key to whoever has the focus when it comes, and carries it out some messages later. Keys that
come together, as they do over a slow line, therefore all go to where the first one went: of `/host` typed in one go the
`h` would hold a job. So a message is sent after each key on the way that the key takes, up to here, and through the
screen that it opened, if it opened one; and only then comes the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TypeVar

from textual import events
from textual.app import App
from textual.errors import NoWidget
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen

from gputui.engine import garbage

T = TypeVar("T")
LONGEST = 1.0
"""Seconds for which keys wait at most for one before them."""
_LOOK = 0.05
"""Seconds between two looks whether what a key went to is still there: a message goes with it."""


class KeyDone(Message, bubble=True):
    """What came before it on its way is done."""

    def __init__(self, turn: int, screen: Screen[object]) -> None:
        super().__init__()
        self.turn = turn
        self.screen = screen
        """The one in front when it was sent."""


class InTurnApp(App[T]):
    """Takes keys in turn, what is pasted, and what the mouse does."""

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.InputEvent | events.Paste] = deque()
        self._turn = 0
        self.has_turn = False
        """A key or click is under way."""

    async def on_event(self, event: events.Event) -> None:
        """Keys and the mouse wait for their turn; all else goes on as ever."""
        if not isinstance(event, events.InputEvent | events.Paste) or event.is_forwarded:
            await super().on_event(event)
            return
        garbage.SWEEPER.touch(time.monotonic())
        self._typed.append(event)
        if not self.has_turn:
            await self._take_turn()

    async def _take_turn(self) -> None:
        self.has_turn = True
        while self._typed and self.screen_stack:
            event = self._typed.popleft()
            screen, path = self.screen, self._path_of(event)
            await super().on_event(event)
            if path is not None:
                self._turn += 1
                self._send_after(path, screen, self._turn)
                return
        self.has_turn = False

    def _path_of(self, event: events.Event) -> MessagePump | None:
        """Where it is carried out, if that has to be waited for: the pointer and the wheel only change what is seen."""
        if not isinstance(event, events.MouseEvent):
            return self.focused or self.screen
        if not isinstance(event, events.MouseUp):
            return None
        try:
            return self.get_widget_at(event.x, event.y)[0]
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

    def on_key_done(self, message: KeyDone) -> None:
        """What the key called for later comes before the next key, and so does a screen that it opened."""
        if message.turn != self._turn or not self.screen_stack:  # the latter at the end
            return
        if self.screen is not message.screen:
            self._turn += 1
            self._send_after(self.screen, self.screen, self._turn)
        else:
            self._end_turn(message.turn)

    def _end_turn(self, turn: int) -> None:
        if turn == self._turn:
            self._turn += 1
            self.call_later(self._take_turn)
