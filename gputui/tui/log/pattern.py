"""Search patterns for logs: regular expressions with a limit of CPU time."""

from __future__ import annotations

import re
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from msgspec import Struct

from gputui.domain.text import plain_bytes
from gputui.tui.present.log import MOST, shown_text

PATIENCE = 0.15
"""Seconds of CPU time after which a match is aborted."""
_ESCAPED = re.compile(r"\\.")


class TooSlow(Exception):  # noqa: N818 - said of a pattern
    """Raised when matching an expression takes too long."""


class Pattern(Struct, frozen=True):
    """Regular expression, case-sensitive only if it contains a capital letter."""

    text: str
    fault: str = ""
    """Reason why it is not a regular expression; it is then searched as plain text."""

    @property
    def expression(self) -> re.Pattern[str]:
        """Compiled expression."""
        return _compiled(self.text)[0]

    def is_in(self, text: str) -> bool:
        """Return whether the line matches."""
        return self.expression.search(text) is not None

    def places(self, text: str, most: int = 100) -> list[tuple[int, int]]:
        """Return the spans of its non-empty matches in the line."""
        found: list[tuple[int, int]] = []
        for match in self.expression.finditer(text):
            if match.end() > match.start():
                found.append(match.span())
            if len(found) >= most:
                break
        return found


def pattern_of(text: str) -> Pattern | None:
    """Return the pattern of a typed text; None if it is empty."""
    return Pattern(text, _compiled(text)[1]) if text else None


@lru_cache(maxsize=32)
def _compiled(text: str) -> tuple[re.Pattern[str], str]:
    has_capital = any(char.isupper() for char in _ESCAPED.sub("", text))
    flags = 0 if has_capital else re.IGNORECASE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text, flags), ""
    except (re.error, OverflowError, RecursionError) as error:
        return re.compile(re.escape(text), flags), str(error)


def text_of(raw: bytes) -> str:
    """Return the searched form of a line: as displayed, without colours."""
    raw = raw[:MOST]
    if b"\x1b" not in raw and raw.isascii():
        text = raw.decode("ascii")
        if text.isprintable():
            return text
    return shown_text(plain_bytes(raw))


@contextmanager
def impatient(seconds: float = PATIENCE) -> Iterator[None]:
    """Raise TooSlow when the body takes longer than `seconds` of CPU time.

    `re` holds the GIL and can take for ever on one line, so searches cannot run on another thread; but it handles
    signals. So they run on the main thread, like the console, where a timer aborts them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
