"""Calls to the driver that never returned: skipped for a while, so that each costs its own value alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import Struct

_ESSENTIAL = frozenset({"", "nvmlInit", "nvmlDeviceGetCount"})
"""Calls without which nothing can be read: when one of them hangs, the driver does."""
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 3600.0
"""Seconds until a call is tried again, doubled each time that it hangs again."""
_WHOLE = 3
"""Number of hung calls to one GPU from which no call to it is made."""
_UNANSWERED = "the driver does not answer"


def is_unanswered(note: str) -> bool:
    """Return whether a note is about a call that is skipped."""
    return note.startswith(_UNANSWERED)


class _Entry(Struct):
    pause: float
    retry_at: float


class HungCalls:
    """Hung calls by name: `FUNCTION LABEL` for one GPU, `FUNCTION` for all, `* LABEL` for all calls to one GPU."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, call: str, now: float) -> bool:
        """Add a call that hung; return whether readings are possible without it."""
        function, _, label = call.partition(" ")
        if function in _ESSENTIAL:
            self._entries.clear()
            return False
        self._skip(call if label else function, now)
        beside = [key for key in self._entries if key.partition(" ")[0] == function and key != function]
        if len(beside) > 1:  # it is not the one GPU
            self._merge(beside, function, now)
        on_gpu = [key for key in self._entries if label and key.partition(" ")[2] == label]
        if len(on_gpu) >= _WHOLE:
            self._merge(on_gpu, f"* {label}", now)
        return True

    def retry_at(self, now: float) -> float:
        """Return when the next of the skipped calls is to be tried again."""
        return min((entry.retry_at for entry in self._entries.values() if now < entry.retry_at), default=math.inf)

    def skipped(self, now: float) -> list[str]:
        """Return the calls that are not to be made; forgets those that were tried again without hanging."""
        kept = {key: entry for key, entry in self._entries.items() if now < entry.retry_at + _LONGEST_PAUSE}
        self._entries = kept
        return [key for key, entry in kept.items() if now < entry.retry_at]

    def notes(self, now: float) -> Iterator[str]:
        """Yield a sentence for each call that is skipped."""
        for key in self.skipped(now):
            function, _, label = key.partition(" ")
            where = f" for GPU {label}" if label else ""
            what = "any call" if function == "*" else function
            yield f"the driver does not answer {what}{where}: what that reads is unknown"

    def _skip(self, key: str, now: float) -> None:
        before = self._entries.get(key)
        pause = min(_LONGEST_PAUSE, 2 * before.pause) if before else _FIRST_PAUSE
        self._entries[key] = _Entry(pause, now + pause)

    def _merge(self, keys: list[str], key: str, now: float) -> None:
        for each in keys:
            del self._entries[each]
        self._skip(key, now)
