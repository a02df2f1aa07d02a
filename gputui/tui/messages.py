"""Messages from workers and widgets to the app."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from textual.message import Message

from gputui.domain.action import Action
from gputui.domain.errors import GputuiError


@dataclass(eq=False)
class ActionRequested(Message):
    """Message that an operator requests an action.

    `subject` names what it is about if that is not a job. `server` is that of a new job, a reservation or a pause in a
    console over several. `answer` is called with None once the action is written, or with the error, in the thread that
    carries it out.
    """

    action: Action
    subject: str = ""
    server: str = ""
    answer: Callable[[Exception | None], object] = lambda error: None


@dataclass(eq=False)
class ActionDone(Message, bubble=False):
    """Message that an action has been written to the store."""

    text: str


@dataclass(eq=False)
class StoreWaits(Message, bubble=False):
    """Message that a write waits for another process that keeps the queue locked."""

    sentence: str


@dataclass(eq=False)
class ActionFailed(Message, bubble=False):
    """Message that an action failed and nothing was written."""

    error: GputuiError


class ExitChoice(Enum):
    """Answer with which the console was closed."""

    HAND_OVER = "hand over"
    """The console scheduled: a background scheduler takes over."""
    STOP = "stop"
    """The console scheduled: no further job starts; running jobs continue."""
    PLAIN = "plain"
    """The console did not schedule."""
