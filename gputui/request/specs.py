"""Model of a GPU, elements of an array, times, changes of priority: compound values of `submit` and `priority`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta

from gputui.domain.errors import InputError
from gputui.domain.units import parse_duration
from gputui.request import numbers
from gputui.request.texts import one_line, quoted

MAX_ARRAY = 100_000
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)


def gpu_model(text: str, where: str) -> str:
    """Part of a model's name."""
    return one_line(text, where, 80)


@dataclass(frozen=True)
class Array:
    """Elements of a job array."""

    indices: tuple[int, ...]
    limit: int | None = None
    """At most so many run at once."""


_PART = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?", re.ASCII)


def array(text: str, where: str) -> Array:
    """The elements of `0-9`, `1,3,5-9`, `0-20:5`, each with `%2` for at most two at once (Slurm's notation)."""
    listed, percent, limit = text.strip().partition("%")
    indices: dict[int, None] = {}
    for part in listed.split(","):
        indices.update(dict.fromkeys(_indices(part.strip(), where)))
        if len(indices) > MAX_ARRAY:
            raise InputError("has too many elements", where=where, hint=f"at most {MAX_ARRAY}")
    at_once = numbers.whole(1, MAX_ARRAY)(limit, where) if percent else None
    return Array(tuple(indices), at_once)


def _indices(part: str, where: str) -> range:
    match = _PART.fullmatch(part)
    if not match:
        raise InputError(f"{quoted(part)} is not an array", where=where, hint="write 0-9, 1,3,5-9 or 0-9%2")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or not step:
        raise InputError(f"{quoted(part)} is not a range", where=where, hint="write the smaller first")
    chosen = range(first, last + 1, step)
    if len(chosen) > MAX_ARRAY:
        raise InputError("has too many elements", where=where, hint=f"at most {MAX_ARRAY}")
    return chosen


def begin(text: str, where: str, now: datetime, after: datetime | None = None) -> datetime:
    """The time meant by `+1h`, `18:00` or an ISO time; one without a zone is local. Aware, in UTC.

    A time of day is the next one, from `after` on where that is given.
    """
    text = text.strip()
    if text.startswith("+"):
        return now + parse_duration(text[1:], where=where)
    if match := _TIME_OF_DAY.fullmatch(text):
        return _next(time(int(match[1]), int(match[2])), after or now)
    try:
        at = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:
        hint = "write +1h30m, 18:00 or 2026-03-02T18:00"
        raise InputError(f"{quoted(text)} is not a time", where=where, hint=hint) from error
    if not now - timedelta(days=3650) <= at <= now + timedelta(days=3650):
        raise InputError(f"{quoted(text)} is more than ten years away", where=where)
    return at


def _next(at: time, after: datetime) -> datetime:
    """The first such time of the local day that is later."""
    day = after.astimezone().date()
    found = (datetime.combine(day + timedelta(days=ahead), at).astimezone(UTC) for ahead in (0, 1, 2))
    return next(each for each in found if each > after)


@dataclass(frozen=True)
class PriorityChange:
    """What `gputui priority` is asked for."""

    value: int = 0
    relative: bool = False
    top: bool = False


def priority_change(text: str, where: str) -> PriorityChange:
    """The change meant by `70`, `+10`, `-10` or `top`."""
    if text == "top":
        return PriorityChange(top=True)
    if text[:1] in {"+", "-"}:
        return PriorityChange(numbers.whole(-100, 100)(text, where), relative=True)
    return PriorityChange(numbers.priority(text, where))
