"""Parsing and formatting of sizes, durations and counts.

Sizes are binary, as in `docker run --memory`: `16g` is 16 GiB. Durations are `45s`, `1h30m`, `1h30`, `2d`,
`30 minutes`, `1 day and 2 hours`, or Slurm's `[days-]hours:minutes:seconds`, `minutes:seconds`. A bare number is
refused: it would be minutes to Slurm's users and seconds to others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.errors import InputError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgtp])i?)?b?", re.IGNORECASE | re.ASCII)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
UNKNOWN = "–"
"""Placeholder of a missing reading: never a 0."""
MAX_SIZE = 2**60
"""Maximum size in bytes, 1 EiB: a larger one is a typing error, and would not fit the runtime's signed 64 bits."""

_PARTS = re.compile(
    r"(?:(\d+(?:\.\d+)?)w)?(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?",
    re.IGNORECASE | re.ASCII,
)
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{1,2})(?::(\d{1,2}))?", re.ASCII)
_WORDS = re.compile(
    r"(?<=\d)\s*(?:(s)econds?|(s)ecs?|(m)inutes?|(m)ins?|(h)ours?|(h)rs?|(d)ays?|(w)eeks?|([wdhms]))\b",
    re.IGNORECASE | re.ASCII,
)
_BETWEEN = re.compile(r"(?<=[wdhms])(?:\s*,\s*|\s+and\s+|\s+)(?=\d)", re.IGNORECASE | re.ASCII)
_HOURS = re.compile(r"(\d+)h([0-5]\d)", re.ASCII | re.IGNORECASE)
_BARE = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
MAX_DURATION = timedelta(days=3650)
"""Maximum duration, ten years: a longer one is a typing error; dates stay in range."""
DURATION_HINT = "write 90s, 1h30m, 2d or 2-12:00:00"


def parse_size(text: str, *, where: str | None = None) -> int:
    """Return the bytes of `16g`, `512m`, `1.5GiB` or `1048576`."""
    match = _SIZE.fullmatch(text.strip())
    if not match or len(text) > 40:
        raise InputError(f"{quoted(text)} is not a size", where=where, hint="write 16g, 512m or 1048576")
    # whole numbers stay whole: a float would round those above 2**53
    number = int(match[1]) if match[1].isdecimal() else float(match[1])
    size = int(number * 1024 ** _POWER[(match[2] or "").lower()])
    if not 0 < size <= MAX_SIZE:
        raise InputError(f"{quoted(text)} is out of range", where=where, hint="a size is above 0 and at most 1024p")
    return size


def format_size(size: int | None) -> str:
    """Return `16G`, `1.5G`, `512M`: at most four figures."""
    if size is None:
        return "-"
    value = float(size)
    for unit in "BKMGTP":
        if abs(value) < 1023.5 or unit == "P":
            break
        value /= 1024
    digits = f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}"
    return digits if unit == "B" else digits + unit


def parse_duration(text: str, *, where: str | None = None) -> timedelta:
    """Return the duration of `90s`, `1h30m`, `2d`, `1 day 2 hours`, `2-12:00:00`, or `0`, which needs no unit."""
    number = text.strip()
    if lacks_unit(text):
        hint = f"write {number}s, {number}m or {number}h; several units as 1h30m"
        raise InputError(f"{quoted(text)} has no unit", where=where, hint=hint)
    duration = _duration(_shortened(number)) if len(text) <= 40 else None
    if duration is None:
        raise InputError(f"{quoted(text)} is not a duration", where=where, hint=DURATION_HINT)
    if not timedelta(0) <= duration <= MAX_DURATION:
        raise InputError(f"{quoted(text)} is out of range", where=where, hint="at most 3650 days")
    return duration


def lacks_unit(text: str) -> bool:
    """Return whether it is a number above 0 without a unit, which `parse_duration` refuses."""
    number = text.strip()
    return len(text) <= 40 and _BARE.fullmatch(number) is not None and float(number) > 0


def parse_time_span(text: str, *, where: str | None = None) -> timedelta:
    """Return a duration above 0."""
    duration = parse_duration(text, where=where)
    if not duration:
        raise InputError(f"{quoted(text)} is not above 0", where=where, hint=DURATION_HINT)
    return duration


def _shortened(text: str) -> str:
    """Return `1d2h` for `1 day and 2 hours`."""
    return _BETWEEN.sub("", _WORDS.sub(lambda match: str(match[match.lastindex or 0]), text))


def _duration(text: str) -> timedelta | None:
    try:
        if _BARE.fullmatch(text):
            return timedelta(0)
        if clock := _CLOCK.fullmatch(text):
            return _of_clock(clock)
        if half := _HOURS.fullmatch(text):
            return timedelta(hours=int(half[1]), minutes=int(half[2]))
        if text and (parts := _PARTS.fullmatch(text)):
            weeks, days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
            return timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        return timedelta.max
    return None


def _of_clock(match: re.Match[str]) -> timedelta:
    days, first, second, third = match.groups()
    if third is not None:
        return timedelta(days=int(days or 0), hours=int(first), minutes=int(second), seconds=int(third))
    if days is not None:  # Slurm: days-hours:minutes
        return timedelta(days=int(days), hours=int(first), minutes=int(second))
    return timedelta(minutes=int(first), seconds=int(second))


def format_duration(duration: timedelta | None) -> str:
    """Return `45s`, `12m30s`, `3h05m`, `2d04h`: two units, so that columns stay narrow."""
    if duration is None:
        return "-"
    seconds = max(0, int(duration.total_seconds()))
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d{hour:02}h"
    if hour:
        return f"{hour}h{minute:02}m"
    if minute:
        return f"{minute}m{second:02}s"
    return f"{second}s"


def format_limit(limit: timedelta) -> str:
    """Return `16m`, `2h30m` or `3d`: without units that are zero."""
    return re.sub(r"(?<=[dhm])00[hms]$", "", format_duration(limit))


def minute(at: datetime, now: datetime) -> str:
    """Return `14:32` today, `Tue 14:32` within six days, else `03-24 14:32`: at most eleven cells."""
    here, today = at.astimezone(), now.astimezone().date()
    days = abs((here.date() - today).days)
    return f"{here:%H:%M}" if not days else f"{here:%a %H:%M}" if days < 7 else f"{here:%m-%d %H:%M}"


def local_time(at: datetime, now: datetime) -> str:
    """Return `18:00` for a time of today, else `Tue 2026-03-03 18:00 CET`, in the local zone."""
    here = at.astimezone()
    return f"{here:%H:%M}" if here.date() == now.astimezone().date() else f"{here:%a %Y-%m-%d %H:%M %Z}"


def plural(count: int, noun: str) -> str:
    """Return `1 GPU`, `3 GPUs`, `2 processes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def listed(items: Iterable[object]) -> str:
    """Return `4`, `4 and 9`, `4, 9 and 12`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} and {last}" if most else last


def quoted(text: str) -> str:
    """Return the text as a short quotation without control characters; typed text may contain anything."""
    shown = text if len(text) <= 40 else text[:37] + "..."
    return ascii(shown) if not shown.isprintable() else f"'{shown}'"


def shown(text: str) -> str:
    """Return a short quotation in ASCII, without control characters."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def user_name(uid: int, nameless: str = "") -> str:
    """Return the name of the account with this uid; where there is none the number, behind the word `nameless`."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # an id without an account, as in many containers
        return f"{nameless}{uid}"
