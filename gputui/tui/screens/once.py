"""A screen that is closed once: a second key or message that would close it may be on its way when the first has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from textual.await_complete import AwaitComplete

if TYPE_CHECKING:
    from textual.screen import Screen as Base
else:
    Base = Generic  # styles are inherited from the first base that is a widget: it is to be none

T = TypeVar("T")


class ClosedOnce(Base[T]):
    """What comes too late closes neither it nor, in its place, the screen below."""

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close it, if it is the one in front."""
        return super().dismiss(result) if self.is_active else AwaitComplete.nothing()  # type: ignore[no-untyped-call]
