"""What workers and widgets tell the app."""

from __future__ import annotations

from collections.abc import Callable

from textual.message import Message

from gputui.domain.errors import GputuiError
from gputui.domain.snapshot import Snapshot
from gputui.engine.actions import Actions


class SnapshotTaken(Message, bubble=False):
    """There is a new picture. Of several that wait only the newest is shown."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__()
        self.snapshot = snapshot

    def can_replace(self, message: Message) -> bool:
        """A newer picture makes an older one worthless."""
        return isinstance(message, SnapshotTaken)


class WishMade(Message):
    """An operator wants something; `call` writes it down and says what was done."""

    def __init__(self, call: Callable[[Actions], str]) -> None:
        super().__init__()
        self.call = call


class WishDone(Message, bubble=False):
    """It is in the store."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class StoreWaits(Message, bubble=False):
    """A write waits for another process, which keeps the queue locked."""

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self.sentence = sentence


class WishFailed(Message, bubble=False):
    """It could not be written down, and nothing of it was."""

    def __init__(self, error: GputuiError) -> None:
        super().__init__()
        self.error = error
