"""Output of an attempt as one answer, whole or a range of its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from gputui.api.http import Response
from gputui.api.problems import HttpError

MOST_BYTES = 8 * 1024**2
"""Bytes of output in one answer."""
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})", re.ASCII)
_TYPE = "application/octet-stream"
_BYTES = (("Accept-Ranges", "bytes"),)


@runtime_checkable
class LogFile(Protocol):
    """Output in a file, which may be large, and have lines of any length."""

    size: int

    def part(self, first: int, count: int) -> bytes:
        """Return at most so many bytes from there on."""
        ...


def log_answer(lines: Iterable[bytes], wanted: str | None) -> Response:
    """Return the lines, or the range of their bytes that the header `Range` names; raises HttpError.

    A range that is too long is shortened. Other forms of ranges are ignored, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(wanted.strip()) if wanted else None
    if match is None:
        return Response(body=_whole(lines), content_type=_TYPE, headers=_BYTES)
    first = int(match[1])
    last = min(int(match[2]) if match[2] else first + MOST_BYTES - 1, first + MOST_BYTES - 1)
    if last < first:
        return Response(body=_whole(lines), content_type=_TYPE, headers=_BYTES)
    data, size = _from_file(lines, first, last) if isinstance(lines, LogFile) else _from_lines(lines, first, last)
    if not data:
        raise HttpError(416, f"there are {size} bytes", headers=(("Content-Range", f"bytes */{size}"),))
    headers = (("Content-Range", f"bytes {first}-{first + len(data) - 1}/*"), *_BYTES)
    return Response(206, data, _TYPE, headers)


def _from_file(log: LogFile, first: int, last: int) -> tuple[bytes, int]:
    return log.part(first, last + 1 - first), log.size


def _from_lines(lines: Iterable[bytes], first: int, last: int) -> tuple[bytes, int]:
    """Return the bytes, and how many were looked at."""
    data, size = bytearray(), 0
    for line in lines:
        begin, size = size, size + len(line) + 1
        if size > first:
            data += (line + b"\n")[max(0, first - begin) : last + 1 - begin]
        if size > last:
            break
    return bytes(data), size


def _whole(lines: Iterable[bytes]) -> bytes:
    data = bytearray()
    for line in lines:
        data += line + b"\n"
        if len(data) > MOST_BYTES:
            hint = "?tail=1000 for its end, Range: bytes=0- for a part, or ?follow=true"
            raise HttpError(413, f"it has more than {MOST_BYTES} bytes", hint=hint)
    return bytes(data)
