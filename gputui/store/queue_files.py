"""Files of the queue: snapshot, journal, and the record of the last write in the lock file.

The snapshot `queue.json` is an ordinary TinyDB file that is replaced as a whole. Files of every released schema stay
readable.

A line of the journal is a transaction, `CRC32 NEXT_ID JSON`, synced before the change is acknowledged. The JSON object
has `t`, changed documents by table and id (null: removed), and `a`, audit entries. The checksum is eight hexadecimal
digits and covers the rest of the line.

The record is written after its journal line was synced, so it is never ahead of the journal: a snapshot or journal that
is behind the record has lost something. The record itself may be old, torn or missing; it then proves less, never more.
Damaged lines at the end, beyond the record, count as torn: written in part as the power failed, and never acknowledged.
For that the first record of each journal is synced before its first line.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.decoding import convert, decode_json
from gputui.domain.errors import InputError, StoreDamagedError, StoreError, StoreFormatError, StoreNewerError
from gputui.store.codec import JOBS, Document, id_ranges
from gputui.store.files import FileAccess, FileStamp, PutInPlace, os_errors, read_file, stamp_of, write_whole

Table = dict[str, Any]
Tables = dict[str, Table]

SCHEMA = 3
"""Current schema. Raised only if an older gputui would misread the files; a new key alone is no reason.

Whoever raises it raises the version of gputui too: `tests/store/test_versions.py` keeps the schema of each version.
"""


def check_schema(schema: int, path: Path) -> None:
    """Raise StoreNewerError for a schema newer than ours, and StoreFormatError for one that never was."""
    if schema < 1:
        raise StoreFormatError(f"it has schema {schema}, which no gputui wrote", where=str(path), hint="correct it")
    if schema > SCHEMA:
        raise StoreNewerError(
            f"it has schema {schema}; this gputui supports schemas up to {SCHEMA}",
            where=str(path),
            hint="upgrade gputui, and restart what still runs the older one",
        )


def migrate(tables: Tables, schema: int) -> None:
    """Convert tables of an older schema to the current one, in place."""
    for step in range(schema, SCHEMA):
        MIGRATIONS[step](tables)


def _priority_in_full(tables: Tables) -> None:
    """Convert schema 1, which called the priority `prio`, on the job and in its spec."""
    for document in tables.get("jobs", {}).values():
        spec = document.get("spec") if isinstance(document, dict) else None  # by hand anything may be there
        for holder in (document, spec):
            if isinstance(holder, dict) and "prio" in holder:
                holder["priority"] = holder.pop("prio")


def _as_before(tables: Tables) -> None:
    """Convert schema 2, which had a document for each element of an array; a schema 3 file may have those too."""


MIGRATIONS: Mapping[int, Callable[[Tables], None]] = {1: _priority_in_full, 2: _as_before}
"""Migration steps by the schema they start from."""


def journal_path(snapshot: Path, generation: int) -> Path:
    return snapshot.with_name(f"{snapshot.name}.wal.{generation}")


def lock_path(snapshot: Path) -> Path:
    """Return the path of the lock file, which holds the record of the last write."""
    return snapshot.with_name(f"{snapshot.name}.lock")


META = "_meta"
_HEAD = 4096
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class Meta(Struct, frozen=True):
    """Header of the snapshot, stored in its table `_meta`, which is written first."""

    generation: int
    next_id: int
    store_id: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]{1,40}\Z")]
    """Part of the names of containers and directories; the pattern keeps paths out of a file that a group may write."""
    schema: int = SCHEMA


class SnapshotFile(Struct):
    """Parsed content of `queue.json`."""

    meta: Meta
    tables: Tables
    """Tables except `_meta`, in the schema of the file."""
    stamp: FileStamp


def read_snapshot(path: Path) -> SnapshotFile | None:
    """Return the snapshot; None if there is none. Raises StoreError."""
    with os_errors(path), suppress(FileNotFoundError):
        data, status = read_file(path)
        meta, tables = _parsed(data, path, Meta)
        return SnapshotFile(meta, tables, stamp_of(status))
    return None


def read_meta(path: Path) -> tuple[Meta, FileStamp] | None:
    """Return the header and stamp of the snapshot, from its first bytes if they suffice; None if there is none."""
    with os_errors(path), suppress(FileNotFoundError):
        head, status = read_file(path, _HEAD)
        end = head.find(b"}}")
        if head.startswith(b'{"_meta"') and end > 0:
            return _parsed(head[: end + 2] + b"}", path, Meta)[0], stamp_of(status)
        whole = read_snapshot(path)
        return None if whole is None else (whole.meta, whole.stamp)
    return None


def write_snapshot(
    path: Path, meta: Meta, tables: Tables, access: FileAccess, place: PutInPlace | None = None
) -> FileStamp:
    """Replace the snapshot, durably; return its new identity."""
    data = msgspec.json.encode({META: {"1": msgspec.to_builtins(meta)}, **tables})
    return write_whole(path, data, access, place)


class _MonthMeta(Struct):
    schema: int = SCHEMA


AnyMeta = TypeVar("AnyMeta", Meta, _MonthMeta)


def parse_month(data: bytes, path: Path) -> Tables:
    """Return the tables of a month of history of version 0.1, a TinyDB file, in the current schema."""
    meta, tables = _parsed(data, path, _MonthMeta)
    migrate(tables, meta.schema)
    return tables


def _parsed(data: bytes, path: Path, kind: type[AnyMeta]) -> tuple[AnyMeta, Tables]:
    """Return the header and the other tables of a TinyDB file; raises StoreFormatError."""
    try:
        tables = decode_json(data, Tables) if data.strip() else {}
    except msgspec.DecodeError as error:
        hint = "put it back from a backup, or run `gputui state repair`; nothing was changed"
        raise StoreFormatError(f"it cannot be read: {error}", where=str(path), hint=hint) from None
    try:
        meta = convert(tables.pop(META, {}).get("1", {}), kind)
    except msgspec.ValidationError as error:
        if kind is _MonthMeta:
            raise StoreFormatError(f"not a history of gputui: {error}", where=str(path)) from None
        hint = "name another state directory"
        raise StoreFormatError(f"not a queue of gputui: {error}", where=str(path), hint=hint) from None
    check_schema(meta.schema, path)
    return meta, tables


def new_store_id() -> str:
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(12))


TableChanges = dict[str, dict[str, Document | None]]
"""Documents by table and id; None: removed."""


class _Body(Struct):
    """Content of a line. A document may be anything in a line that another program wrote."""

    t: dict[str, dict[str, Any]]
    a: list[Document]


_ENCODER = msgspec.json.Encoder()


class JournalEntry(Struct):
    """Changes and audit entries of one transaction."""

    changes: TableChanges = field(default_factory=dict)
    audit: list[Document] = field(default_factory=list)
    next_id: int = 1

    def stage(self, table: str, changes: dict[str, Document | None]) -> None:
        if changes:
            self.changes.setdefault(table, {}).update(changes)
        if table == JOBS:
            stored = {key: document for key, document in changes.items() if document is not None}
            self.next_id = max([self.next_id, *(end for _, end in id_ranges(stored))])

    def apply(self, tables: Tables) -> None:
        """Change tables, which are not those of a transaction under way."""
        for name, changes in self.changes.items():
            table = tables.setdefault(name, {})
            for key, document in changes.items():
                if document is None:
                    table.pop(key, None)
                else:
                    table[key] = document

    def take_id(self, count: int = 1) -> int:
        """Return a new id, or the first of `count` new ids, never used before."""
        self.next_id += count
        return self.next_id - count


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


def journal_lines(data: bytes) -> Iterator[JournalLine]:
    """Yield the complete lines of a journal; a torn tail is skipped."""
    at = 0
    while (end := data.find(b"\n", at)) >= 0:
        crc, _, rest = data[at:end].partition(b" ")
        number, _, body = rest.partition(b" ")
        try:
            if len(crc) != 8 or int(crc, 16) != zlib.crc32(rest):
                yield JournalLine(at, None, int(number) if number.isdigit() and len(number) < 12 else None)
            else:
                content = decode_json(body, _Body)
                yield JournalLine(at, JournalEntry(content.t, content.a, int(number)))
        except ValueError:
            yield JournalLine(at, None)
        at = end + 1


_SIZE = 256
_NO_CHECKSUM = -1
_ID_LENGTH = 12
_ID_BASE = 36
_UNKNOWN = (0, 0, 0)
"""Zeros in place of a stamp, with which older versions append without reading the queue."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class WriteRecord(Struct, frozen=True):
    """End of the journal and next id as of the last acknowledged write."""

    schema: int
    generation: int
    length: int
    """Length of the journal in bytes."""
    next_id: int
    checksum: int | None = None
    """CRC-32 of the journal up to `length`; None in records of version 0.1."""
    store_id: str | None = None

    def write(self, fd: int, *, durably: bool = False) -> None:
        """Write the record to the lock file. Only the first one of a journal is synced, before its first line.

        It is written after its journal line was synced. So after a crash it may be old, but never ahead of the journal:
        a journal shorter than its record has lost acknowledged lines.
        """
        checksum = _NO_CHECKSUM if self.checksum is None else self.checksum
        # one of another length was written by hand, and would come back with zeros before it
        store = int(self.store_id, _ID_BASE) if self.store_id and len(self.store_id) == _ID_LENGTH else 0
        numbers = (self.schema, self.generation, self.length, self.next_id, *_UNKNOWN, 1, checksum, store, *_UNKNOWN)
        body = " ".join(map(str, numbers)).encode()
        with suppress(OSError):  # the journal line is already safe
            os.pwrite(fd, b"%08x %s" % (zlib.crc32(body), body.ljust(_SIZE - 10)) + b"\n", 0)
            if durably:
                os.fdatasync(fd)


def read_record(lock: int | Path) -> WriteRecord | None:
    """Return the record in a lock file, an open one or that at a path; None if it is missing, torn or unreadable."""
    if isinstance(lock, int):
        text = os.pread(lock, _SIZE, 0)
    else:
        try:
            text, _ = read_file(lock, _SIZE)
        except (OSError, StoreError):
            return None
    crc, _, body = text.partition(b" ")
    body = body.rstrip()
    try:
        if int(crc, 16) != zlib.crc32(body):
            return None
        schema, generation, length, next_id, *rest = map(int, body.split())
    except ValueError:
        return None
    record = WriteRecord(schema, generation, length, next_id)
    if len(rest) < 9:  # of version 0.1
        return record
    checksum, store = rest[4:6]
    digits = ""
    while store:
        store, digit = divmod(store, _ID_BASE)
        digits = _DIGITS[digit] + digits
    return replace(
        record,
        checksum=None if checksum == _NO_CHECKSUM else checksum,
        store_id=digits.rjust(_ID_LENGTH, "0") if digits else None,
    )


REPAIR = "run `gputui state repair`: it lists the losses before it changes anything"


class Loss(Struct, frozen=True):
    """Loss of acknowledged changes in one file."""

    path: Path
    what: str

    @property
    def error(self) -> StoreDamagedError:
        """Error to raise on writes and checks."""
        return StoreDamagedError(
            f"{self.what}; nothing is stored until this is repaired", where=str(self.path), hint=REPAIR
        )


def acknowledged(data: bytes, record: WriteRecord | None) -> tuple[bytes, list[JournalLine]]:
    """Return a journal and its lines without damaged lines at its end that a crash must have left.

    Without a record any line may have been acknowledged.
    """
    lines = list(journal_lines(data))
    end = len(data)
    while record is not None and lines and lines[-1].entry is None and lines[-1].start >= record.length:
        end = lines.pop().start
    return data[:end], lines


def loss_of(
    snapshot: Path,
    meta: Meta,
    journal: Path,
    data: bytes | None,
    lines: Sequence[JournalLine],
    record: WriteRecord | None,
) -> Loss | None:
    """Return the loss in a snapshot and its journal, if any; `data` is None without a journal.

    `record` is None if there is none, or one of an earlier generation.
    """
    if record is not None:
        if record.store_id is not None and record.store_id != meta.store_id:
            text = f"it is queue {meta.store_id}, but its lock file belongs to queue {record.store_id}"
            return Loss(snapshot, text)
        if record.generation > meta.generation:
            text = (
                f"it is generation {meta.generation} of the queue, but generation {record.generation} was acknowledged"
            )
            return Loss(snapshot, text)
    if data is None:
        what = f", and {record.length} bytes of acknowledged changes with it" if record and record.length else ""
        return Loss(journal, f"the journal is missing{what}")
    if record is not None:
        if len(data) < record.length:
            return Loss(journal, f"the journal has {len(data)} bytes, and {record.length} were acknowledged")
        if record.checksum is not None and zlib.crc32(memoryview(data)[: record.length]) != record.checksum:
            text = f"the first {record.length} bytes of the journal are not those that were acknowledged"
            return Loss(journal, text)
    damaged = [line.start for line in lines if line.entry is None]
    if not damaged:
        return None
    some = "the line" if len(damaged) == 1 else f"{len(damaged)} lines, the first"
    return Loss(journal, f"{some} at byte {damaged[0]} is damaged")


AuditKey = tuple[int, int, int]
"""Unique key of an audit entry: generation, offset of its journal line, index in the line; else 0, time and pid."""


class QueueFiles(Struct):
    """Snapshot and journal, read together, with their loss if any."""

    snapshot: SnapshotFile
    journal: FileStamp | None
    data: bytes
    lines: list[JournalLine]
    loss: Loss | None
