"""The terminal of a console: checks that there is one, and draws on it when stderr is redirected."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from gputui.domain.errors import GputuiError

_HINT = "gputui top prints one picture, gputui serve schedules without a screen"
_TERMINAL = "/dev/tty"


@contextmanager
def terminal(environ: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Connect file descriptor 2, on which the console draws, to the terminal; raise GputuiError without one.

    Where stderr was redirected, errors still go there: `gputui 2>errors` draws on the terminal.
    """
    check_terminal(environ)
    if environ.get("TEXTUAL_DRIVER") or os.isatty(2):
        yield
        return
    sys.stderr.flush()
    before, stream = os.dup(2), sys.stderr
    fd = _open_terminal()
    os.dup2(fd, 2)
    os.close(fd)
    with os.fdopen(before, "w", buffering=1, errors="replace", closefd=False) as errors:
        sys.stderr = errors
        try:
            yield
        finally:
            sys.stderr = stream
            os.dup2(before, 2)
            os.close(before)


def check_terminal(environ: Mapping[str, str] = os.environ) -> None:
    """Raise GputuiError without a terminal to draw on or to read keys from (file descriptor 0)."""
    if environ.get("TEXTUAL_DRIVER"):
        return  # driven by the server for browsers
    if not os.isatty(0) or not (os.isatty(2) or _has_terminal()):
        raise GputuiError("the console needs a terminal (over ssh: ssh -t)", hint=_HINT)
    if environ.get("TERM", "") == "dumb":
        raise GputuiError("this terminal cannot move its cursor (TERM=dumb)", hint=_HINT)


def _has_terminal() -> bool:
    with suppress(OSError):
        os.close(_open_terminal())
        return True
    return False


def _open_terminal() -> int:
    """Open the terminal of stdout, else the controlling terminal of this process."""
    return os.dup(1) if os.isatty(1) else os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY)
