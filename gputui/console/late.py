"""Parts of a console that are made when they are first used: to import and open them would delay the first frame."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Late(Generic[T]):
    """Makes a part when it is first used, in the thread that uses it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making = threading.Lock()
        self._made: T | None = None

    @property
    def as_made(self) -> T:
        """The part, which makes itself when it is first used, for callers that need not know."""
        return cast("T", _StandIn(self))

    def open(self) -> T:
        """Return the part; it may have to wait for another thread that makes it. Raises what making it raises."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def close(self) -> None:
        """Close the part if it was made; a thread that is making it is not waited for."""
        made: Any = self._made
        if made is not None:
            made.close()


class _StandIn:
    """Passes everything on. Only `close` is its own: closing a part that was never used does not make it."""

    def __init__(self, late: Late[Any]) -> None:
        self.close, self._late = late.close, late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._late.open(), name)
