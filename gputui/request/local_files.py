"""Files that words of a command name: they are read with the rights of whoever typed the words.

The process that owns a queue runs commands for others, and may be root: it reads none of their files, and does not even
look where their links lead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gputui.domain.errors import ParseLocallyError

_IS_ELSEWHERE: ContextVar[bool] = ContextVar("is_elsewhere", default=False)


@contextmanager
def elsewhere() -> Iterator[None]:
    """Let this thread read words of a user whose files are not for it."""
    token = _IS_ELSEWHERE.set(True)
    try:
        yield
    finally:
        _IS_ELSEWHERE.reset(token)


def is_elsewhere() -> bool:
    """Return whether the user's files are not for this thread."""
    return _IS_ELSEWHERE.get()


def check_here(what: str = "the command reads files") -> None:
    """Raise ParseLocallyError if the user of the words has to read them himself."""
    if _IS_ELSEWHERE.get():
        raise ParseLocallyError(what)
