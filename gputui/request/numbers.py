"""Numbers, sizes and durations of options, checked for their range, and their conversion back to text."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

from gputui.domain.errors import InputError
from gputui.domain.job_spec import MAX_PRIORITY
from gputui.domain.units import parse_duration, parse_size, parse_time_span, quoted

MAX_ID = 2**53
"""The largest whole number that every JSON parser keeps exactly."""
_UNITS = (("t", 1024**4), ("g", 1024**3), ("m", 1024**2), ("k", 1024))
_PARTS = (("d", 86_400), ("h", 3_600), ("m", 60))


def whole(low: int, high: int) -> Callable[[str, str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def read(text: str, where: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
            raise InputError(f"{quoted(text)} is not a whole number", where=where, hint=f"{low} to {high}")
        if not low <= int(text) <= high:
            raise InputError(f"{text} is out of range", where=where, hint=f"{low} to {high}")
        return int(text)

    return read


priority = whole(0, MAX_PRIORITY)
nice = whole(-10_000, 10_000)
retries = whole(0, 1000)
cpu_shares = whole(2, 262_144)
job_id = whole(1, MAX_ID)
tail = whole(0, 10**9)
attempt = whole(1, 10**6)


def cpus(text: str, where: str) -> float:
    """Return a number of processors; fractions are allowed."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?|\.\d{1,9}", text, re.ASCII):
        raise InputError(f"{quoted(text)} is not a number of CPUs", where=where, hint="write 2 or 1.5")
    if not 0.01 <= float(text) <= 8192:
        raise InputError(f"{text} is out of range", where=where, hint="0.01 to 8192")
    return float(text)


def cpus_text(number: float) -> str:
    """Return the text of a number of processors."""
    return f"{number:.9f}".rstrip("0").rstrip(".")


def size(text: str, where: str) -> int:
    """A size in bytes."""
    return parse_size(text, where=where)


def memory(text: str, where: str) -> int:
    """Return a memory limit; engines refuse less than 6 MiB."""
    value = parse_size(text, where=where)
    if value < 6 * 1024**2:
        raise InputError(f"{quoted(text)} is too little to start a container", where=where, hint="at least 6m")
    return value


def duration(text: str, where: str) -> timedelta:
    """A duration, 0 too."""
    return parse_duration(text, where=where)


def time_span(text: str, where: str) -> timedelta:
    """A duration above 0."""
    return parse_time_span(text, where=where)


def job_ids(text: str, where: str) -> tuple[int, ...]:
    """Return the ids of `7`, `7,9` or `7-9`, each once, in the order given."""
    ids: dict[int, None] = {}
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isascii() and low.isdigit()):
            raise InputError(f"{quoted(text)} is not a job id", where=where, hint="write 7, 7,9 or 7-9")
        first = job_id(low, where)
        last = job_id(high, where) if dash else first
        if not first <= last < first + 100_000 or len(ids) > 100_000:
            raise InputError(f"{quoted(part)} is not a range of job ids", where=where)
        ids.update(dict.fromkeys(range(first, last + 1)))
    return tuple(ids)


def size_text(size: int | None) -> str:
    """Return the exact size, in the largest unit that divides it."""
    if size is None:
        return ""
    letter, unit = next(((letter, unit) for letter, unit in _UNITS if size and size % unit == 0), ("", 1))
    return f"{size // unit}{letter}"


def duration_text(length: timedelta | None) -> str:
    """Return the duration, exact to the microsecond."""
    if length is None:
        return ""
    seconds, shown = length.total_seconds(), ""
    if not seconds.is_integer():
        return f"{seconds:.6f}".rstrip("0") + "s"
    left = int(seconds)
    for letter, unit in _PARTS:
        count, left = divmod(left, unit)
        shown += f"{count}{letter}" if count else ""
    return shown + (f"{left}s" if left or not shown else "")
