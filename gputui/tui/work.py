"""Long work under way on another thread: how far it is, and whether it is still wanted."""

from __future__ import annotations

import time
from collections.abc import Callable

from textual.message import Message

from gputui.domain.errors import GputuiError


class GivenUpError(GputuiError):
    """It was given up before it was done, and nothing of it is."""


class Work:
    """Counted by the thread that does it, looked at and given up by another."""

    def __init__(self, words: str, unit: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.words = words
        """What is done."""
        self.unit = unit
        """What is counted."""
        self.done = 0
        self.total: int | None = None
        """None: nobody knows."""
        self.is_over = False
        self.is_given_up = False
        self._clock = clock
        self._begun_at: float | None = None

    def begin(self) -> None:
        """It is its turn."""
        self._begun_at = self._clock()

    @property
    def took(self) -> float:
        """Seconds since it began; 0 before that."""
        return 0.0 if self._begun_at is None else self._clock() - self._begun_at

    def step(self, done: int, total: int | None = None) -> None:
        """So much is done; raises GivenUpError where no more is wanted."""
        self.done, self.total = done, total
        if self.is_given_up:
            raise GivenUpError("given up: nothing of it was done")

    def give_up(self) -> None:
        """Have it end at its next step. What is past its last one is done all the same."""
        self.is_given_up = True

    def end(self) -> None:
        """It is done, or failed."""
        self.is_over = True


class WorkBegun(Message):
    """What may take long is under way: the app shows how far it is."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work
