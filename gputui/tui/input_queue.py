"""Serialises input: the next key or click is dispatched only after the previous one's handlers have finished.

Textual 8.2 sends each key to the widget that has the focus when it arrives, and handles it some messages later. Keys
that arrive together, as over a slow line, therefore all go to the first one's target: of a pasted `/host` the `h` would
hold a job. So a message is sent after each key along its path, up to here, and then another, which follows what the
key's handlers sent on that path, such as the end of a line that is typed. If the key opened a screen, one is sent
through that screen. Only then the next key is dispatched.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from msgspec import Struct, field
from textual import events
from textual.app import App
from textual.errors import NoWidget
from textual.message import Message
from textual.message_pump import MessagePump
from textual.screen import Screen
from textual.widgets import Input

from gputui.engine import loop

LONGEST = 1.0
"""Seconds for which keys wait for one before them. They are counted in looks, so time in which this process got no CPU
does not count, nor does the time until a screen that the key opened is there."""
FRAME = 0.01
"""Seconds in which the effect of a key is drawn."""
_OPEN_A_LINE = frozenset({"filter", "search", "search_help"})
"""Actions that open a line in which text does no harm."""
_LOOK = 0.05
"""Seconds between two checks whether the target of a key still exists; a pending message is lost with it."""


class KeyAfterEscape(events.Key):
    """Key that came with an Escape right before it: pressed with Alt, or after Escape on a slow line."""

    def __init__(self, together: events.Key, alone: events.Key) -> None:
        super().__init__(together.key, together.character)
        self.alone = alone
        """The key as it is without the Escape."""

    @property
    def is_apart(self) -> bool:
        """Return whether Textual tells it from the key alone: Alt and a letter, but not Alt and Enter."""
        return self.key != self.alone.key


MOST_TYPED = 3
"""Most characters that count as typed if one read from the terminal brings them, repeats of a key as one.

A person types one in 30 ms or more; a line that stood still delivers a held key, or some keys, at once."""
_SAME_PASTE = 0.03
"""Seconds after a part of pasted text in which further text belongs to it; Enter alone is a key, as of a program that
types into the terminal."""


class UnmarkedPaste(events.Paste):
    """Text that came at once without marks of a paste around it."""

    def __init__(self, keys: Sequence[events.Key]) -> None:
        super().__init__("".join(key.character or "" for key in keys))
        self.keys = keys


UnmarkedPaste.handler_name = events.Paste.handler_name  # widgets handle it as they do any pasted text


class Pastes:
    """Finds text that a terminal pasted without marks around it, as one without bracketed paste does.

    As keys it would run commands: the `x` of a pasted `export PATH` opens a shell in the job.
    """

    _until = float("-inf")

    def read(self, messages: Iterable[Message], now: float) -> Iterator[Message]:
        """Yield the messages of one read at that monotonic time; keys that are pasted text as one Paste."""
        for is_text, found in groupby(messages, _is_text):
            together = list(found)
            keys = [each for each in together if isinstance(each, events.Key)] if is_text else []
            changes = len(list(groupby(key.key for key in keys if key.is_printable)))
            if changes > MOST_TYPED or (changes and now < self._until):
                self._until = now + _SAME_PASTE
                yield UnmarkedPaste(keys)
            else:
                yield from together


def _is_text(message: Message) -> bool:
    if not isinstance(message, events.Key) or isinstance(message, KeyAfterEscape):
        return False
    return message.is_printable or message.key == "tab" or message.key in _NEW_LINE


_NEW_LINE = frozenset({"enter", "ctrl+j"})
_TOGETHER, _MOST_READ = 0.001, 65536
"""Seconds in which no person types a second key; maximum bytes of pasted text that are read together."""


def read_together(fileno: int, selector: selectors.BaseSelector) -> bytes:
    """Return what has arrived; text with what follows it at once, as some terminals paste key by key."""
    data = part = os.read(fileno, 4096)
    while part and b"\x1b" not in part and len(data) < _MOST_READ:
        if not any(key.fileobj == fileno for key, _ in selector.select(_TOGETHER)):
            break
        part = os.read(fileno, 4096)
        data += part
    return data


KeyAfterEscape.handler_name = events.Key.handler_name  # widgets handle it as they do any key


@dataclass(eq=False)
class KeyDone(Message, bubble=True):
    """Message that follows a key: everything before it on the path has been handled."""

    turn: int
    screen: Screen[object]
    path: MessagePump
    is_last: bool
    """True if it also follows what the key's handlers sent."""


def read_at(app: App[Any]) -> float:
    """Return the time at which the key or click that is being handled was read from the terminal."""
    queue = getattr(app, "input_queue", None)
    found = queue.read_at if isinstance(queue, InputQueue) else None
    return time.monotonic() if found is None else found


class InputQueue(Struct, eq=False):
    """Keys, pasted text and clicks of one app, dispatched one at a time."""

    app: App[Any]
    dispatch: Callable[[events.Event], Awaitable[None]]
    delay: float = FRAME
    """Seconds after which the second message follows a key, if no other key waits for it."""
    is_busy: bool = False
    read_at: float | None = None
    """Time at which the key or click in hand was read; None: there is none. Textual's copies have other times."""
    _waiting: deque[events.InputEvent | events.Paste] = field(default_factory=deque)
    _turn: int = 0
    _send_last: Callable[[], None] | None = None
    """Sends the second message of the present key; None while that is not due."""

    async def handle(self, event: events.Event) -> None:
        if not isinstance(event, events.InputEvent | events.Paste) or event.is_forwarded:
            await self.dispatch(event)
            return
        loop.SWEEPER.touch(time.monotonic())
        self._waiting.append(event)
        if not self.is_busy:
            await self._take_turn()
        elif self._send_last is not None:
            self._send_last()

    async def _take_turn(self) -> None:
        self.is_busy = True
        while self._waiting and self.app.screen_stack:
            event = self._parted(self._waiting.popleft())
            self.read_at = event.time
            captured = self.app.mouse_captured
            if captured is not None and (not captured.is_attached or captured.screen is not self.app.screen):
                # a screen that was opened since covers the widget with the mouse, and would get no click
                self.app.capture_mouse(None)
            screen, path = self.app.screen, self._path_of(event)
            await self.dispatch(event)
            if path is not None:
                self._turn += 1
                self._send_after(path, screen, self._turn)
                return
        self.is_busy = False

    def _parted(self, event: events.InputEvent | events.Paste) -> events.InputEvent | events.Paste:
        """Return the event; Escape for a key that came with it, which is next then.

        Only text fields have keys with Alt, as to move by words, and the user's settings.
        """
        if isinstance(event, UnmarkedPaste):
            return self._typed(event)
        if not isinstance(event, KeyAfterEscape):
            return event
        has_alt = isinstance(self.app.focused, Input) or (
            event.key.startswith("alt+") and event.key in self.app.screen.active_bindings
        )
        if has_alt and event.is_apart:
            return event
        self._waiting.appendleft(event.alone)
        return events.Key("escape", "\x1b")

    def _typed(self, event: UnmarkedPaste) -> events.InputEvent | events.Paste:
        """Return the first key of what may be typed into a field, and put back the rest; otherwise the pasted text.

        A program that types, or a slow line, also sends a text together with the key before it that opens the field,
        or with the Enter after it. Text of several lines is pasted.
        """
        first, *rest = event.keys
        if isinstance(self.app.focused, Input):
            if any(key.key in _NEW_LINE for key in event.keys[:-1]):
                return event
            self._waiting.extendleft(reversed(rest))
            return first
        opened = self.app.screen.active_bindings.get(first.key)
        if opened is None or not opened.enabled or opened.binding.action not in _OPEN_A_LINE or not rest:
            return event
        self._waiting.appendleft(UnmarkedPaste(rest))
        return first

    def _path_of(self, event: events.Event) -> MessagePump | None:
        """Return the widget that handles it, if that must be waited for; None for pointer movement and the wheel."""
        if not isinstance(event, events.MouseEvent):
            return self.app.focused or self.app.screen
        if not isinstance(event, events.MouseUp):
            return None
        try:
            return self.app.get_widget_at(event.x, event.y)[0]
        except NoWidget:
            return None

    def _send_after(self, path: MessagePump, screen: Screen[object], turn: int, *, is_last: bool = False) -> None:
        path.post_message(KeyDone(turn, screen, path, is_last=is_last))
        self._look_after(path, turn, round(LONGEST / _LOOK))

    def _look_after(self, path: MessagePump, turn: int, looks: int) -> None:
        """End the turn if what the key went to is gone, or takes longer than this many looks."""
        if turn != self._turn:
            return
        opens = isinstance(path, Screen) and path.is_attached and not path.is_mounted
        if opens or (path.is_attached and path.is_running and looks > 0):
            left = looks if opens else looks - 1
            asyncio.get_running_loop().call_later(_LOOK, self._look_after, path, turn, left)
        else:
            self._end_turn(turn)

    def key_done(self, message: KeyDone) -> None:
        """Dispatch the next key, once callbacks of this one are done, and a screen that it opened is shown."""
        if message.turn != self._turn or not self.app.screen_stack:  # the latter at the end
            return
        if self.app.screen is not message.screen:
            self._turn += 1
            self._send_after(self.app.screen, self.app.screen, self._turn, is_last=True)
        elif message.is_last:
            self._end_turn(message.turn)
        elif self._waiting or not self.delay:
            self._send_second(message)
        else:
            self._send_last = partial(self._send_second, message)
            asyncio.get_running_loop().call_later(self.delay, self._send_last)

    def _send_second(self, first: KeyDone) -> None:
        if first.turn == self._turn:
            self._turn, self._send_last = self._turn + 1, None
            self._send_after(first.path, first.screen, self._turn, is_last=True)

    def _end_turn(self, turn: int) -> None:
        if turn == self._turn:
            self._turn, self._send_last = self._turn + 1, None
            self.read_at = None
            self.app.call_later(self._take_turn)
