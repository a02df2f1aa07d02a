"""The journal: one line a transaction, `crc32 next_id json`, appended and synced before it is acknowledged."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gputui.domain.errors import InputError

Document = dict[str, Any]
Changes = dict[str, dict[str, Document | None]]
"""By table, then by id; None: removed."""

_MAX_SALVAGE = 1_000_000
_ENCODER = msgspec.json.Encoder()


@dataclass
class Entry:
    """What one transaction did."""

    changes: Changes = field(default_factory=dict)
    audit: list[Document] = field(default_factory=list)
    next_id: int = 1


@dataclass(frozen=True)
class Line:
    """A whole line, and where it stands."""

    start: int
    entry: Entry | None
    """None: the line is damaged."""
    salvaged_id: int | None = None
    """The next id a damaged line seems to have had, so that its ids are not given out again."""


def encode_line(entry: Entry) -> bytes:
    """The line of a transaction."""
    try:
        body = _ENCODER.encode({"t": entry.changes, "a": entry.audit})
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"cannot be stored: {error}", hint="text must be valid UTF-8, numbers at most 64 bits"
        ) from None
    rest = b"%d %s" % (entry.next_id, body)
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def decode_lines(data: bytes, start: int) -> Iterator[Line]:
    """The whole lines of `data`, which stands at `start` in the journal. A torn tail is no line."""
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        yield _decoded(data[position:end], start + position)
        position = end + 1


def _decoded(text: bytes, start: int) -> Line:
    crc, _, rest = text.partition(b" ")
    number, _, body = rest.partition(b" ")
    try:
        if len(crc) != 8 or int(crc, 16) != zlib.crc32(rest):
            return Line(start, None, int(number) if number.isdigit() and len(number) < 12 else None)
        content = msgspec.json.decode(body)
        return Line(start, Entry(content["t"], content["a"], int(number)))
    except (ValueError, KeyError, TypeError):
        return Line(start, None)


def is_plausible(salvaged: int, known: int) -> bool:
    """Whether the next id of a damaged line may be what was written, given the one known before."""
    return known < salvaged <= known + _MAX_SALVAGE


class UndoError(OSError):
    """A write failed, and what it had written could not be taken back: it may be read later."""


def append(fd: int, line: bytes) -> int:
    """Append the line and sync it; the new length. On failure the file is as before, or UndoError is raised."""
    start = os.lseek(fd, 0, os.SEEK_END)
    try:
        write_all(fd, line)
        os.fdatasync(fd)
    except BaseException as error:
        # also on KeyboardInterrupt: what was not acknowledged must not be seen later
        _take_back(fd, start, error)
        raise
    return start + len(line)


def _take_back(fd: int, length: int, cause: BaseException) -> None:
    try:
        os.ftruncate(fd, length)
    except OSError as error:
        code = cause.errno if isinstance(cause, OSError) else error.errno
        raise UndoError(code, os.strerror(code or 0)) from cause


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: a signal or a nearly full disk may cut a write short."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
