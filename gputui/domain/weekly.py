"""A time of the week, such as `Mon 08:00`: when the report of the last seven days is sent."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo

from msgspec import Struct

from gputui.domain.errors import InputError

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TEXT = re.compile(r"([a-z]{3})[a-z]*\s+([01]?\d|2[0-3]):([0-5]\d)", re.IGNORECASE | re.ASCII)


class WeeklyTime(Struct, frozen=True):
    """A weekday, from 0 for Monday, and a local time of day."""

    weekday: int
    at: time

    def last(self, now: datetime, zone: tzinfo | None = None) -> datetime:
        """Return the last such time that is not later than now; without a zone, in local time."""
        today = now.astimezone(zone).date()
        for back in range(8):
            day = today - timedelta(days=back)
            # `timestamp` puts a skipped time after the change of clocks; `astimezone` without a zone, before it
            found = datetime.fromtimestamp(datetime.combine(day, self.at, tzinfo=zone).timestamp(), now.tzinfo)
            if day.weekday() == self.weekday and found <= now:
                return found
        raise ValueError("no day of the week is missing")

    def before(self, at: datetime, zone: tzinfo | None = None) -> datetime:
        """Return the last such time before this one: a week of clock changes has an hour more or less."""
        return self.last(at - timedelta(microseconds=1), zone)


def parse_weekly(text: str, *, where: str | None = None) -> WeeklyTime:
    """Parse a time such as `Mon 08:00`; raises InputError."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or match[1].lower() not in _DAYS:
        raise InputError("expected a weekday and a time", where=where, hint='write "Mon 08:00"')
    return WeeklyTime(_DAYS.index(match[1].lower()), time(int(match[2]), int(match[3])))
