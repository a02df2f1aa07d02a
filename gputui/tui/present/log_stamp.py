"""The time a line was written, as the runtime noted it in front of the line (RFC 3339, UTC)."""

from __future__ import annotations

import re
from datetime import datetime

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z ")
STAMP_WIDTH = len("10:02:04.123 ")


def without_stamp(raw: bytes) -> bytes:
    """What the job wrote."""
    match = _STAMP.match(raw)
    return raw[match.end() :] if match else raw


def stamp_words(raw: bytes) -> str:
    """The local time of day, to the millisecond; as many blanks where none is noted."""
    match = _STAMP.match(raw)
    if match is None:
        return " " * STAMP_WIDTH
    thousandths = (match[2] or b"").ljust(3, b"0")[:3].decode("ascii")
    try:
        local = datetime.fromisoformat(f"{match[1].decode('ascii')}+00:00").astimezone()
    except (ValueError, OverflowError):  # the thirteenth month
        return " " * STAMP_WIDTH
    return f"{local:%H:%M:%S}.{thousandths} "
