"""Messages from workers and widgets to the app."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from textual.message import Message

from gputui.domain.errors import GputuiError
from gputui.domain.snapshot import Snapshot
from gputui.ports.actions import Act


class SnapshotTaken(Message, bubble=False):
    """Message that there is a new snapshot. Of several pending ones only the newest is shown."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """Return whether the other message is a snapshot too, which the newer one replaces."""
        return isinstance(message, SnapshotTaken)


class ActionRequested(Message):
    """Message that an operator requests an action; `call` has it carried out and returns the message to show."""

    def __init__(self, call: Callable[[Act], str]) -> None:
        super().__init__()
        self.call = call


class ActionDone(Message, bubble=False):
    """Message that an action has been written to the store."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class StoreWaits(Message, bubble=False):
    """Message that a write waits for another process that keeps the queue locked."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence


class ActionFailed(Message, bubble=False):
    """Message that an action failed and nothing was written."""

    def __init__(self, error: GputuiError) -> None:
        super().__init__()
        self.error = error


class ExitChoice(Enum):
    """Answer with which the console was closed."""

    HAND_OVER = "hand over"
    """The console scheduled: a background scheduler takes over."""
    STOP = "stop"
    """The console scheduled: no further job starts; running jobs continue."""
    PLAIN = "plain"
    """The console did not schedule."""
