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

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_json
from gputui.domain.errors import StoreError, StoreFormatError
from gputui.store.codec import JOBS, Document, gc_paused, id_ranges
from gputui.store.files import FileAccess, FileStamp, os_errors, read_file, stamp_of, write_whole
from gputui.store.queue_files import (
    SCHEMA,
    AuditKey,
    JournalEntry,
    JournalLine,
    Loss,
    Meta,
    QueueFiles,
    Tables,
    acknowledged,
    journal_path,
    lock_path,
    loss_of,
    migrate,
    read_record,
    read_snapshot,
)

_TRIES = 1000
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
    next_id: int
    offset: int = 0
    checksum: int = 0
    """CRC-32 of the journal up to `offset`."""
    audit: list[tuple[AuditKey, Document]] = field(default_factory=list)
    touched: set[str] | None = None
    """Keys of jobs that changed since the reader of jobs last emptied it; None when any may have changed."""


class Replica(Struct, eq=False, weakref=True):
    """The queue in memory: read as a whole, then changed by this process's own writes alone.

    Files that do not look as they were last read or written here are read again, without a lock. Callers serialise
    access between threads.
    """

    _path: Path
    _rescue: Callable[[LoadedQueue], None] | None = None
    """Called with the complete queue in memory when its files have lost something."""
    damage: dict[str, None] = field(default_factory=dict)
    """Sentences about unreadable parts, each once."""
    loss: Loss | None = None
    """Loss found at the last refresh; `state` is then the last complete queue known, or a part of it."""
    loaded: LoadedQueue | None = None
    """Queue in memory as of the last refresh; None before the first one."""
    is_writing: bool = False
    """True while this process appends a line, which is in memory only once it is durable."""
    _store_id: str | None = None
    _seen: Fingerprint | None = None
    """Fingerprint of the files as they were read or written last."""
    _judged_at: float = 0.0
    _is_whole: bool = False
    """True if the queue in memory was read from undamaged files."""
    _is_rescued: bool = False

    @property
    def state(self) -> LoadedQueue:
        """Queue in memory as of the last refresh."""
        return self.loaded or self.refresh()

    def refresh(self) -> LoadedQueue:
        """Return the queue, after reading files that others have changed. Costs two stats if nobody has.

        If files have lost something, `loss` is set and a complete queue in memory is kept.
        """
        with os_errors(self._path):
            if self.loaded is not None and (self.is_writing or self._is_current()):
                return self.loaded
            try:
                with gc_paused():
                    files = self._read_files()
            except StoreFormatError:
                self._rescue_memory()
                raise
            return self._adopt(files)

    def _is_current(self) -> bool:
        if self.loss is not None:
            self._rescue_memory()
            if time.monotonic() >= self._judged_at + _JUDGE_AGAIN:
                return False
        return self._fingerprint() == self._seen

    def _adopt(self, files: QueueFiles) -> LoadedQueue:
        """Load the files into memory, unless memory still has what the files lost.

        Raises StoreFormatError if another queue has replaced ours, since its ids mean other jobs.
        """
        meta = files.snapshot.meta
        if self._store_id not in {None, meta.store_id}:
            raise StoreFormatError("it was replaced by another queue", where=str(self._path), hint="restart gputui")
        self._store_id = meta.store_id
        if files.loss is None or self.loaded is None or not self._is_whole:
            tables = files.snapshot.tables
            with gc_paused():
                next_id = max((end for _, end in id_ranges(tables.setdefault(JOBS, {}))), default=1)
                self.loaded = state = LoadedQueue(meta, files.snapshot.stamp, tables, max(meta.next_id, next_id))
                self._apply_lines(state, files.data, files.lines)
                if meta.schema < SCHEMA:
                    migrate(tables, meta.schema)
            self._is_whole, self._is_rescued = files.loss is None, False
        self.loss = files.loss
        self._seen = (files.snapshot.stamp, files.journal)
        if files.loss is not None:
            self._seen, self._judged_at = self._fingerprint(), time.monotonic()
            self._rescue_memory()
        return self.state

    def _rescue_memory(self) -> None:
        """Write the complete queue in memory to a rescue file, once per loss."""
        if self._rescue is not None and self.loaded is not None and self._is_whole and not self._is_rescued:
            with suppress(StoreError, OSError):
                self._rescue(self.loaded)
                self._is_rescued = True

    def _fingerprint(self) -> Fingerprint:
        """Return what differs once others have written, and after a loss also once an operator has repaired it."""
        generation = self.loaded.meta.generation if self.loaded is not None else 0
        found = _stamp(self._path), _stamp(journal_path(self._path, generation))
        return found if self.loss is None else (*found, read_record(lock_path(self._path)))

    def version(self) -> object:
        """Return a token that changes once a refresh may return something else. Costs two stats."""
        with os_errors(self._path):
            return self._seen if self.is_writing else self._fingerprint()

    def append(self, line: bytes, entry: JournalEntry, journal: os.stat_result) -> None:
        """Take over a line that this process has written, after which the journal has this status."""
        state = self.state
        self._apply_lines(state, line, [JournalLine(state.offset, entry)])
        self._seen = (state.stamp, stamp_of(journal))

    def rebase(self, meta: Meta, stamp: FileStamp, journal: os.stat_result) -> None:
        """Continue from a snapshot just written from memory, and its empty journal."""
        state = self.state
        self.loaded = LoadedQueue(meta, stamp, state.tables, state.next_id, touched=state.touched)
        self._seen = (stamp, stamp_of(journal))

    def close(self) -> None:
        """Write no rescue file any more."""
        self._rescue = None  # else it and its owner keep each other: large queues are never collected

    def _read_files(self) -> QueueFiles:
        """Read a consistent pair of snapshot and journal, and compare it with the record.

        The record is read first, so that the files contain at least what it mentions.
        """
        for _ in range(_TRIES):
            record = read_record(lock_path(self._path))
            snapshot = read_snapshot(self._path)
            if snapshot is None:
                raise StoreFormatError(
                    "the queue is gone",
                    where=str(self._path),
                    hint="put it back from a backup, or run `gputui state repair`",
                )
            path = journal_path(self._path, snapshot.meta.generation)
            found, stamp = _read_journal(path)
            # its writer died before renewing it
            is_behind = record is not None and record.generation < snapshot.meta.generation
            if _stamp(self._path) == snapshot.stamp and not (
                is_behind and record != read_record(lock_path(self._path))
            ):
                record = None if is_behind else record
                data, lines = (None, []) if found is None else acknowledged(found, record)
                loss = loss_of(self._path, snapshot.meta, path, data, lines, record)
                return QueueFiles(snapshot, stamp, data or b"", lines, loss)
        raise StoreError("it is replaced faster than it can be read", where=str(self._path))

    def _apply_lines(self, state: LoadedQueue, data: bytes, lines: Iterable[JournalLine]) -> None:
        """Apply the complete lines of `data`, which begins at the state's offset."""
        for line in lines:
            entry = line.entry
            if entry is None:
                path = journal_path(self._path, state.meta.generation)
                self.damage[f"{path}: the line at byte {line.start} is damaged and was passed over"] = None
                if line.salvaged_id is not None and state.next_id < line.salvaged_id <= state.next_id + _MAX_SALVAGE:
                    state.next_id = line.salvaged_id
                continue
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
            places = enumerate(entry.audit)
            state.audit += (((state.meta.generation, line.start, place), document) for place, document in places)
        length = data.rfind(b"\n") + 1
        state.checksum = zlib.crc32(memoryview(data)[:length], state.checksum)
        state.offset += length


def _stamp(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None when it is missing."""
    try:
        return stamp_of(path.stat())
    except FileNotFoundError:
        return None


def _read_journal(path: Path) -> tuple[bytes | None, FileStamp | None]:
    """Return the content of a journal, and its stamp before that was read; None if there is none."""
    before = _stamp(path)
    with os_errors(path), suppress(FileNotFoundError):
        return read_file(path)[0], before
    return None, None


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
