"""Journal format: one line per transaction, `CRC32 NEXT_ID JSON`, synced before the change is acknowledged.

The JSON object has `t`, changed documents by table and id (null: removed), and `a`, audit entries. The checksum is
eight hexadecimal digits and covers the rest of the line.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_json
from gputui.domain.errors import InputError
from gputui.store.documents import Document

TableChanges = dict[str, dict[str, Document | None]]
"""Documents by table and id; None: removed."""


class _Body(Struct):
    """Content of a line. A document may be anything in a line that another program wrote."""

    t: dict[str, dict[str, Any]]
    a: list[Document]


_MAX_SALVAGE = 1_000_000
_ENCODER = msgspec.json.Encoder()


class JournalEntry(Struct):
    """Changes and audit entries of one transaction."""

    changes: TableChanges = field(default_factory=dict)
    audit: list[Document] = field(default_factory=list)
    next_id: int = 1


class JournalLine(Struct, frozen=True):
    """Complete line of the journal and its byte offset."""

    start: int
    entry: JournalEntry | None
    """Decoded content; None: the line is damaged."""
    salvaged_id: int | None = None
    """Next id that a damaged line seems to have had, so that its ids are not assigned again."""


def encode_line(entry: JournalEntry) -> bytes:
    """Return the line of a transaction; raises InputError for values that JSON cannot represent."""
    try:
        body = _ENCODER.encode({"t": entry.changes, "a": entry.audit})
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"cannot be stored: {error}", hint="text must be valid UTF-8, numbers at most 64 bits"
        ) from None
    rest = b"%d %s" % (entry.next_id, body)
    return b"%08x %s\n" % (zlib.crc32(rest), rest)


def journal_lines(data: bytes, start: int) -> Iterator[JournalLine]:
    """Yield the complete lines of `data`, which begins at byte `start` of the journal; a torn tail is skipped."""
    position = 0
    while (end := data.find(b"\n", position)) >= 0:
        yield _decode_line(data[position:end], start + position)
        position = end + 1


def _decode_line(text: bytes, start: int) -> JournalLine:
    crc, _, rest = text.partition(b" ")
    number, _, body = rest.partition(b" ")
    try:
        if len(crc) != 8 or int(crc, 16) != zlib.crc32(rest):
            return JournalLine(start, None, int(number) if number.isdigit() and len(number) < 12 else None)
        content = decode_json(body, _Body)
        return JournalLine(start, JournalEntry(content.t, content.a, int(number)))
    except ValueError:
        return JournalLine(start, None)


def is_plausible(salvaged: int, known: int) -> bool:
    """Return whether the next id of a damaged line is credible, given the one known before."""
    return known < salvaged <= known + _MAX_SALVAGE


class UndoError(OSError):
    """A failed write that could not be undone, and may be read later."""


def append(fd: int, line: bytes) -> int:
    """Append and sync a line; return the new length. On failure the file is as before, or UndoError is raised."""
    start = os.lseek(fd, 0, os.SEEK_END)
    try:
        write_all(fd, line)
        os.fdatasync(fd)
    except BaseException as error:
        # also on KeyboardInterrupt: an unacknowledged line must not be read later
        _undo(fd, start, error)
        raise
    return start + len(line)


def _undo(fd: int, length: int, cause: BaseException) -> None:
    try:
        os.ftruncate(fd, length)
    except OSError as error:
        code = cause.errno if isinstance(cause, OSError) else error.errno
        raise UndoError(code, os.strerror(code or 0)) from cause


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes: a signal or a nearly full disk may shorten a single write."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
