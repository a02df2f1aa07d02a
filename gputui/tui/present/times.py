"""Moments and shifts of them, as an operator reads them: in local time."""

from __future__ import annotations

from datetime import datetime, timedelta

from gputui.domain.units import format_duration


def clock(at: datetime, now: datetime) -> str:
    """`now`, `14:32:10` today, `Tue 14:32` within six days, else `03-24 14:32`."""
    if at <= now:
        return "now"
    here, today = at.astimezone(), now.astimezone().date()
    if here.date() == today:
        return f"{here:%H:%M:%S}"
    return f"{here:%a %H:%M}" if (here.date() - today).days < 7 else f"{here:%m-%d %H:%M}"


def distance(before: datetime, after: datetime) -> str:
    """`38m10s earlier`, `4h00m later`."""
    shift = after - before
    return f"{format_duration(abs(shift))} {'later' if shift > timedelta(0) else 'earlier'}"
