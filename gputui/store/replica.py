"""In-memory replica of the queue: the snapshot plus the journal as far as it was read. Readers take no lock.

A process whose files were damaged writes its replica to a rescue file, for `gputui state repair`.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_json
from gputui.domain.errors import StoreError, StoreFormatError
from gputui.store.codec import JOBS, Document, gc_paused, id_ranges
from gputui.store.files import MAX_READ, FileAccess, FileStamp, open_file, os_errors, stamp_of, too_large, write_whole
from gputui.store.queue_files import (
    SCHEMA,
    AuditKey,
    JournalEntry,
    JournalLine,
    Loss,
    Meta,
    QueueFiles,
    Tables,
    WriteRecord,
    acknowledged,
    journal_lines,
    journal_path,
    lock_path,
    loss_of,
    migrate,
    read_meta,
    read_record,
    read_snapshot,
)

_TRIES = 1000
_CRC = 8
_MAX_SALVAGE = 1_000_000
"""Most by which the next id that a damaged line seems to have had may exceed the one known before."""
_JUDGE_AGAIN = 5.0
"""Seconds after which damaged files are read again even if they look unchanged."""
Fingerprint = tuple[object, ...]


class LoadedQueue(Struct):
    """Contents of the files up to `offset` in the journal."""

    meta: Meta
    stamp: FileStamp
    tables: Tables
    journal: int | None
    """Descriptor of the journal; None: not open."""
    next_id: int
    offset: int = 0
    checksum: int = 0
    """CRC-32 of the journal up to `offset`."""
    guard: bytes = b""
    """Checksum of the last line read."""
    guard_at: int = 0
    record: FileStamp | None = None
    """Stamp of the lock file when its record was last read."""
    audit: list[tuple[AuditKey, Document]] = field(default_factory=list)
    touched: set[str] | None = None
    """Keys of jobs that changed since the reader of jobs last emptied it; None when any may have changed."""


class OwnLine(NamedTuple):
    """Journal line that this process has just written, with its decoded content."""

    line: bytes
    entry: JournalEntry


class Replica(Struct, eq=False, weakref=True):
    """Replica of the queue, kept up to date without a lock. Callers serialise access between threads."""

    _path: Path
    _rescue: Callable[[LoadedQueue], None] | None = None
    """Called with the complete queue in memory when its files have lost something."""
    damage: dict[str, None] = field(default_factory=dict)
    """Sentences about unreadable parts, each once."""
    loss: Loss | None = None
    """Loss found at the last refresh; `state` is then the last complete queue known, or a part of it."""
    loaded: LoadedQueue | None = None
    """Queue in memory as of the last refresh; None before the first one."""
    _store_id: str | None = None
    _watched: tuple[FileStamp, Path] | None = None
    _judged: Fingerprint | None = None
    """Fingerprint of the files in which the loss was found."""
    _judged_at: float = 0.0
    _is_whole: bool = False
    """True if the queue in memory was read from undamaged files."""
    _is_rescued: bool = False

    @property
    def state(self) -> LoadedQueue:
        """Queue in memory as of the last refresh."""
        return self.loaded or self.refresh()

    def refresh(self, record: WriteRecord | None = None, own: OwnLine | None = None) -> LoadedQueue:
        """Read all writes since the last call, and return the queue. Costs four stats if nothing changed.

        A writer that holds the lock passes `record`, with which the files must agree, or after its write `own`, its
        line, which need not be decoded again. If files have lost something, `loss` is set and a complete queue in
        memory is kept.
        """
        with os_errors(self._path):
            state = self.loaded
            if state is not None and self._is_current(state, record, own):
                return state
            try:
                with gc_paused():
                    files = self._read_files()
            except StoreFormatError:
                self._rescue_memory()
                raise
            return self._adopt(files)

    def _is_current(self, state: LoadedQueue, record: WriteRecord | None, own: OwnLine | None) -> bool:
        """Return whether memory agrees with the files and the record, after reading appended lines."""
        if self.loss is not None:
            self._rescue_memory()
            is_recent = time.monotonic() < self._judged_at + _JUDGE_AGAIN
            return is_recent and self._fingerprint() == self._judged
        status = _status(self._path)
        if status is None or stamp_of(status) != state.stamp or not self._read_tail(state, own):
            return False
        if record is None or record.generation != state.meta.generation:
            return True
        status = _status(journal_path(self._path, state.meta.generation))
        is_touched = status is not None and record.journal not in {None, stamp_of(status)}  # by another program
        return not is_touched and not _is_short(state, record)

    def _adopt(self, files: QueueFiles) -> LoadedQueue:
        """Load the files into memory, unless memory still has what the files lost.

        Raises StoreFormatError if another queue has replaced ours, since its ids mean other jobs.
        """
        meta = files.snapshot.meta
        if self._store_id not in {None, meta.store_id}:
            raise StoreFormatError("it was replaced by another queue", where=str(self._path), hint="restart gputui")
        self._store_id = meta.store_id
        if files.loss is not None and self.loaded is not None and self._is_whole:
            if files.journal is not None:
                os.close(files.journal)
        else:
            self._close_journal()
            snapshot, tables = files.snapshot, files.snapshot.tables
            before = self.loaded.tables.get(JOBS, {}) if self.loaded is not None else {}
            with gc_paused():
                next_id = max((end for _, end in id_ranges(tables.setdefault(JOBS, {}))), default=1)
                self.loaded = state = LoadedQueue(
                    meta, snapshot.stamp, tables, files.journal, max(meta.next_id, next_id)
                )
                self._apply_lines(state, files.data, files.lines)
                if meta.schema < SCHEMA:
                    migrate(tables, meta.schema)
                jobs = tables[JOBS].items()  # of equal ones the old objects, which decoded jobs refer to
                tables[JOBS] = {key: old if (old := before.get(key)) == each else each for key, each in jobs}
            self._is_whole, self._is_rescued = files.loss is None, False
        self.loss = files.loss
        if files.loss is not None:
            self._distrust(meta.generation)
            self._judged, self._judged_at = self._fingerprint(), time.monotonic()
            self._rescue_memory()
        return self.state

    def _distrust(self, generation: int) -> None:
        """Touch a damaged journal whose stamp matches its record, so that the next writer reads it and refuses.

        It was overwritten in the instant of a write, and writers would otherwise append without reading it.
        """
        path, record = journal_path(self._path, generation), read_record(lock_path(self._path))
        status = _status(path)
        if status is None or record is None or record.journal != stamp_of(status):
            return
        try:
            os.utime(path, ns=(status.st_atime_ns, time.time_ns()))
        except OSError:
            with suppress(OSError):  # another member's file: its time can only be set to now
                os.utime(path)

    def _rescue_memory(self) -> None:
        """Write the complete queue in memory to a rescue file, once per loss."""
        if self._rescue is not None and self.loaded is not None and self._is_whole and not self._is_rescued:
            with suppress(StoreError, OSError):
                self._rescue(self.loaded)
                self._is_rescued = True

    def _fingerprint(self) -> Fingerprint:
        """Return the state of all files that decide about a loss; it changes when an operator repairs them."""
        meta = self.loaded.meta if self.loaded else None
        paths = [self._path] + ([journal_path(self._path, meta.generation)] if meta else [])
        found = [None if status is None else stamp_of(status) for status in map(_status, paths)]
        return (*found, read_record(lock_path(self._path)))

    def version(self) -> object:
        """Return a token that changes with every write, computed from stats only."""
        with os_errors(self._path):
            try:
                status = _status(self._path)
                stamp = None if status is None else stamp_of(status)
                if self._watched is None or self._watched[0] != stamp:
                    found = read_meta(self._path)
                    if stamp is None or found is None:
                        raise _missing_queue(self._path)
                    self._watched = (found[1], journal_path(self._path, found[0].generation))
            except StoreFormatError:
                self._rescue_memory()
                raise
            status = _status(self._watched[1])
            return (stamp, -1, -1) if status is None else (stamp, status.st_ino, status.st_size)

    def rebase(self, meta: Meta, stamp: FileStamp) -> None:
        """Continue from a snapshot just written from memory, and its empty journal."""
        state = self.state
        self._close_journal()
        self.loaded = LoadedQueue(meta, stamp, state.tables, None, state.next_id, touched=state.touched)

    def close(self) -> None:
        """Close the journal, for good."""
        self._close_journal()
        self._rescue = None  # else it and its owner keep each other: large queues are never collected

    def _close_journal(self) -> None:
        if self.loaded is not None and self.loaded.journal is not None:
            os.close(self.loaded.journal)
            self.loaded.journal = None

    def _read_files(self) -> QueueFiles:
        """Read a consistent pair of snapshot and journal, and compare it with the record.

        The record is read first, so that the files contain at least what it mentions.
        """
        for _ in range(_TRIES):
            record = read_record(lock_path(self._path))
            snapshot = read_snapshot(self._path)
            if snapshot is None:
                raise _missing_queue(self._path)
            path = journal_path(self._path, snapshot.meta.generation)
            journal = _opened(path)
            if journal is not None and (size := os.fstat(journal).st_size) > MAX_READ:
                os.close(journal)
                raise too_large(size, path)
            data = None if journal is None else _read_from(journal, 0)
            status = _status(self._path)
            # its writer died before renewing it
            is_behind = record is not None and record.generation < snapshot.meta.generation
            is_same = status is not None and stamp_of(status) == snapshot.stamp
            if is_same and not (is_behind and record != read_record(lock_path(self._path))):
                record = None if is_behind else record
                data, lines = (None, []) if data is None else acknowledged(data, record)
                loss = loss_of(self._path, snapshot.meta, path, data, lines, record)
                return QueueFiles(snapshot, journal, data or b"", lines, loss)
            if journal is not None:
                os.close(journal)
        raise StoreError("it is replaced faster than it can be read", where=str(self._path))

    def _read_tail(self, state: LoadedQueue, own: OwnLine | None) -> bool:
        """Apply lines appended since the last read; return False when memory disagrees with the file."""
        path = journal_path(self._path, state.meta.generation)
        if state.journal is None:
            state.journal = _opened(path)
            if state.journal is None:
                return False
        # the record first, if it is new, so that the journal contains at least what it mentions
        status, record = _status(lock_path(self._path)), None
        stamp = None if status is None else stamp_of(status)
        if stamp != state.record:
            state.record, record = stamp, read_record(lock_path(self._path))
        status, there = os.fstat(state.journal), _status(path)
        if there is None or (there.st_ino, there.st_dev) != (status.st_ino, status.st_dev):
            return False
        if there.st_size == state.offset:
            return not _is_short(state, record)
        # a line that could not be synced is cut off again, and another may have taken its place
        unchanged = os.pread(state.journal, len(state.guard), state.guard_at) == state.guard
        if there.st_size < state.offset or not unchanged or state.meta.schema < SCHEMA:
            return False
        data = _read_from(state.journal, state.offset)
        is_own = own is not None and own.line == data
        lines = [JournalLine(state.offset, own.entry)] if own and is_own else list(journal_lines(data, state.offset))
        if any(line.entry is None for line in lines):
            return False
        self._apply_lines(state, data, lines)
        return not _is_short(state, record)

    def _apply_lines(self, state: LoadedQueue, data: bytes, lines: Iterable[JournalLine]) -> None:
        """Apply the complete lines of `data`, which begins at the state's offset."""
        begin, generation = state.offset, state.meta.generation
        for line in lines:
            start, entry = line.start, line.entry
            if entry is None:
                self._pass_over(state, line)
                entry = JournalEntry()
            for name, changes in entry.changes.items():
                table = state.tables.setdefault(name, {})
                for key, document in changes.items():
                    if document is None:
                        table.pop(key, None)
                    else:
                        table[key] = document
                if name == JOBS and state.touched is not None:
                    state.touched.update(changes)
            state.next_id = max(state.next_id, entry.next_id)
            state.audit += (((generation, start, place), document) for place, document in enumerate(entry.audit))
            state.guard_at, state.guard = start, data[start - begin : start - begin + _CRC]
        length = data.rfind(b"\n") + 1
        state.checksum = zlib.crc32(memoryview(data)[:length], state.checksum)
        state.offset = begin + length

    def _pass_over(self, state: LoadedQueue, line: JournalLine) -> None:
        path = journal_path(self._path, state.meta.generation)
        self.damage[f"{path}: the line at byte {line.start} is damaged and was passed over"] = None
        if line.salvaged_id is not None and state.next_id < line.salvaged_id <= state.next_id + _MAX_SALVAGE:
            state.next_id = line.salvaged_id


def _is_short(state: LoadedQueue, record: WriteRecord | None) -> bool:
    """Return whether the record mentions more of this journal than was read, or has another checksum."""
    if record is None or record.generation != state.meta.generation or record.length < state.offset:
        return False
    return record.length > state.offset or record.checksum not in {None, state.checksum}


def _read_from(fd: int, position: int) -> bytes:
    parts = []
    while part := os.pread(fd, 1 << 26, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None when it is missing."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _opened(path: Path) -> int | None:
    """Return a descriptor for reading a journal; None if there is none."""
    with os_errors(path):
        try:
            return open_file(path, os.O_RDONLY)
        except FileNotFoundError:
            return None


def _missing_queue(path: Path) -> StoreFormatError:
    return StoreFormatError(
        "the queue is gone", where=str(path), hint="put it back from a backup, or run `gputui state repair`"
    )


class Rescue(msgspec.Struct):
    """Complete queue as of `offset` in the journal of its generation."""

    meta: Meta
    next_id: int
    offset: int
    checksum: int
    tables: Tables
    audit: list[tuple[AuditKey, Document]]


def rescue_paths(snapshot: Path) -> list[Path]:
    return sorted(path for path in snapshot.parent.glob(f"{snapshot.name}.rescue.*") if path.suffix[1:].isdigit())


def write_rescue(snapshot: Path, state: LoadedQueue, access: FileAccess) -> Path:
    """Write the queue to the rescue file of this process, durably; return its path."""
    path = snapshot.with_name(f"{snapshot.name}.rescue.{os.getpid()}")
    rescue = Rescue(state.meta, state.next_id, state.offset, state.checksum, state.tables, state.audit)
    write_whole(path, msgspec.json.encode(rescue), access)
    return path


def read_rescue(path: Path) -> Rescue | None:
    """Return the content of a rescue file; None if it is unreadable."""
    try:
        return decode_json(path.read_bytes(), Rescue)
    except (OSError, msgspec.MsgspecError):
        return None
