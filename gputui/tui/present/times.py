"""Times and shifts of times as text, in local time."""

from __future__ import annotations

from datetime import datetime, timedelta

from gputui.domain.units import format_duration, minute


def clock(at: datetime, now: datetime) -> str:
    """Return `now` for a past time, else the result of `second`."""
    return "now" if at <= now else second(at, now)


def second(at: datetime, now: datetime) -> str:
    """Return `14:32:10` today, `Tue 14:32` within six days, else `03-24 14:32`."""
    here = at.astimezone()
    return f"{here:%H:%M:%S}" if here.date() == now.astimezone().date() else minute(at, now)


def in_full(at: datetime) -> str:
    """Return `2026-03-02 14:32:10`, in local time."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def distance(before: datetime, after: datetime) -> str:
    """Return `38m10s earlier` or `4h00m later`."""
    shift = after - before
    return f"{format_duration(abs(shift))} {'later' if shift > timedelta(0) else 'earlier'}"
