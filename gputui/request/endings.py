"""How a job may end: the signal that announces its time limit, and after which failures it is tried again."""

from __future__ import annotations

import re
import signal
from datetime import timedelta

from gputui.domain.errors import InputError
from gputui.domain.job import LimitWarning
from gputui.domain.policy.retry import RETRY_WORDS
from gputui.domain.units import parse_duration
from gputui.request import numbers
from gputui.request.texts import quoted

_UNCATCHABLE = {signal.SIGKILL, signal.SIGSTOP}
_number = numbers.whole(1, 64)
_exit_code = numbers.whole(1, 255)


def warning(text: str, where: str) -> LimitWarning:
    """The warning meant by `TERM@60`, `SIGUSR1@2m` or `10@30s`."""
    name, at, before = text.strip().partition("@")
    if not at:
        raise InputError(f"{quoted(text)} does not say when", where=where, hint="write TERM@60 or USR1@2m")
    wait = parse_duration(before, where=where)
    if wait < timedelta(seconds=1):
        raise InputError("is no warning", where=where, hint="at least 1 second before the limit")
    return LimitWarning(_signal(name.strip(), where), wait)


def _signal(name: str, where: str) -> int:
    if re.fullmatch(r"\d+", name, re.ASCII):
        number = _number(name, where)
    else:
        known = signal.Signals.__members__.get("SIG" + name.upper().removeprefix("SIG"))
        if known is None:
            raise InputError(f"{quoted(name)} is not a signal", where=where, hint="write TERM, USR1 or a number")
        number = int(known)
    if number in _UNCATCHABLE:
        raise InputError(f"{quoted(name)} ends a job, and warns of nothing", where=where, hint="TERM, INT or USR1")
    return number


def retry_on(text: str, where: str) -> tuple[str, ...]:
    """The exit codes and words of `1,75,OOM`, each once."""
    wanted: dict[str, None] = {}
    for part in text.split(","):
        word = part.strip().upper().replace("-", "_")
        if re.fullmatch(r"\d+", word, re.ASCII):
            word = str(_exit_code(word, where))
        elif word not in RETRY_WORDS:
            hint = "exit codes, and " + ", ".join(RETRY_WORDS)
            raise InputError(f"{quoted(part)} is nothing to retry on", where=where, hint=hint)
        wanted[word] = None
    return tuple(wanted)
