"""Store that is opened behind the screen: opening it would delay the first frame."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from gputui.ports import JobStore


class LateStore:
    """Opens a store when it is first used, in the thread that uses it; all else is passed on to the store."""

    def __init__(self, open_store: Callable[[], JobStore]) -> None:
        self._open_store = open_store
        self._opening = threading.Lock()
        self._store: JobStore | None = None

    @property
    def as_store(self) -> JobStore:
        """Store that opens itself when it is first used, for callers that need not know."""
        return cast("JobStore", self)

    def open(self) -> JobStore:
        """Return the opened store; it may have to wait for another thread that opens it. Raises what opening raises."""
        with self._opening:
            if self._store is None:
                self._store = self._open_store()
            return self._store

    def close(self) -> None:
        """Close the store if it was opened; a thread that is opening it is not waited for."""
        if self._store is not None:
            self._store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.open(), name)
