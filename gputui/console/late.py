"""Parts of a console that are made when they are first used: to import and open them would delay the first frame."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class Late(Generic[T]):
    """Makes a part when it is first used, in the thread that uses it; all else is passed on to the part."""

    def __init__(self, make: Callable[[], T]) -> None:
        self.__dict__.update(_make=make, _making=threading.Lock(), _made=None)

    @property
    def as_made(self) -> T:
        """The part, which makes itself when it is first used, for callers that need not know."""
        return cast("T", self)

    def open(self) -> T:
        """Return the part; it may have to wait for another thread that makes it. Raises what making it raises."""
        with self._making:
            if self._made is None:
                self.__dict__["_made"] = self._make()
            return cast("T", self._made)

    def close(self) -> None:
        """Close the part if it was made; a thread that is making it is not waited for."""
        if self._made is not None:
            self._made.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.open(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.open(), name, value)
