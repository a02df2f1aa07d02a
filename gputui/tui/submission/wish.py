"""The wish that the form makes, and the answer that it waits for."""

from __future__ import annotations

from collections.abc import Callable

from textual.message import Message

from gputui.domain.job import Submission
from gputui.engine.actions import Actions


class Answered(Message, bubble=False):
    """The job is in the queue, or was refused."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error


def submit(asked: Submission, tell: Callable[[Message], object]) -> Callable[[Actions], str]:
    """What submits it, and tells the form how that went."""

    def call(actions: Actions) -> str:
        try:
            ids = actions.submit([asked])
        except Exception as error:
            tell(Answered(error))
            raise
        tell(Answered())
        return f"jobs {ids[0]} to {ids[-1]} are submitted" if len(ids) > 1 else f"job {ids[0]} is submitted"

    return call
