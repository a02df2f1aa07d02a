"""TinyDB storage with a journal: the snapshot stays readable by stock TinyDB, each change appends one durable line.

Files that killed writers left behind are removed when it is opened.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from tinydb import TinyDB
from tinydb.storages import Storage
from tinydb.table import Table as TinyTable

from gputui.domain.decoding import decode_json
from gputui.domain.errors import StoreAccessError, StoreBusyError, StoreError, StoreFormatError
from gputui.store.codec import JOBS, Document, gc_paused, id_ranges
from gputui.store.files import (
    FILE_MODE,
    FileAccess,
    FileStamp,
    StoreLock,
    append,
    closed_after,
    cut_torn,
    is_same_file,
    open_file,
    os_errors,
    read_file,
    stamp_of,
    sync_directory,
    write_whole,
)
from gputui.store.history import AuditFiles
from gputui.store.queue_files import (
    META,
    SCHEMA,
    AuditKey,
    JournalEntry,
    JournalLine,
    Loss,
    Meta,
    QueueFiles,
    Table,
    Tables,
    WriteRecord,
    acknowledged,
    encode_line,
    journal_path,
    lock_path,
    loss_of,
    migrate,
    read_meta,
    read_record,
    read_snapshot,
    write_snapshot,
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
    rescue: Callable[[LoadedQueue], None] | None = None
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
            if self.loaded is not None:
                if self.is_writing:
                    return self.loaded
                if self.loss is not None:
                    self._rescue_memory()
                is_due = self.loss is not None and time.monotonic() >= self._judged_at + _JUDGE_AGAIN
                if not is_due and self._fingerprint() == self._seen:
                    return self.loaded
            try:
                with gc_paused():
                    files = self._read_files()
            except StoreFormatError:
                self._rescue_memory()
                raise
            return self._adopt(files)

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
        if self.rescue is not None and self.loaded is not None and self._is_whole and not self._is_rescued:
            with suppress(StoreError, OSError):
                self.rescue(self.loaded)
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
        self.rescue = None  # else it and its owner keep each other: large queues are never collected

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
            found, stamp = None, _stamp(path)  # taken before it is read
            with os_errors(path), suppress(FileNotFoundError):
                found = read_file(path)[0]
            stamp = None if found is None else stamp
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
            entry.apply(state.tables)
            if state.touched is not None:
                state.touched.update(entry.changes.get(JOBS, ()))
            state.next_id = max(state.next_id, entry.next_id)
            places = enumerate(entry.audit)
            state.audit += (((state.meta.generation, line.start, place), document) for place, document in places)
        length = data.rfind(b"\n") + 1
        state.checksum = zlib.crc32(memoryview(data)[:length], state.checksum)
        state.offset += length


def _stamp(path: Path) -> FileStamp | None:
    try:
        return stamp_of(path.stat())
    except FileNotFoundError:
        return None


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


def journals(snapshot: Path) -> dict[int, Path]:
    prefix = f"{snapshot.name}.wal."
    found = snapshot.parent.glob(f"{prefix}*")
    return {int(path.name[len(prefix) :]): path for path in found if path.name[len(prefix) :].isdigit()}


def next_generation(snapshot: Path, generation: int) -> int:
    """Return a generation later than all journals, so that none is taken for the journal of a restored snapshot."""
    return max([generation, *journals(snapshot)]) + 1


def check_not_orphaned(snapshot: Path) -> None:
    """Raise StoreFormatError if other files prove that a snapshot with jobs is missing."""
    left = [path.name for path in (*journals(snapshot).values(), *rescue_paths(snapshot)) if path.stat().st_size]
    record = read_record(lock_path(snapshot))
    if record is not None and record.next_id > 1:
        left.append(f"{lock_path(snapshot).name}, which records ids up to {record.next_id - 1},")
    if left:
        raise StoreFormatError(
            f"the queue is gone, but {left[0]} is still there",
            where=str(snapshot),
            hint="put queue.json back from a backup, or run `gputui state repair`",
        )


_NEW = "*.json.*.tmp"
"""Names of files that are written, to replace others."""


FOLD_AT = 4 * 1024**2
"""Journal size in bytes above which a write folds it into the snapshot."""
RawTable = dict[str, msgspec.Raw]


class JournalStorage(Storage):
    """Storage of the queue. Readers take no lock; a writer holds it from its first read until its line is on disk."""

    def __init__(self, path: Path, access: FileAccess, lock: StoreLock) -> None:
        self._path = path
        self._access = access
        self.lock = lock
        self.audit = AuditFiles(path.parent, access)
        self.memory = threading.RLock()
        """Held while the replica is read or refreshed, never while waiting for another process."""
        self.replica = Replica(path, self._write_rescue)
        self.unreadable_jobs: Callable[[], Iterable[str]] = tuple
        """Returns the keys of undecodable jobs, whose documents are kept byte for byte."""
        self.wrote: Callable[[float], object] | None = None
        """Called with the seconds that each line took until it was on disk."""
        self.changed: Callable[[], object] = tuple
        """Called after each write, once it is in memory."""
        self.migrating: Callable[[int], object] = lambda _: None
        """Called with the schema of the files before they are converted; may refuse by a StoreError."""
        self.is_owned = False
        """True if this process alone may write, unless the queue has to be repaired."""
        self._pending: JournalEntry | None = None
        """Changes of the transaction under way, which is of the thread that holds the lock."""
        self._writer: tuple[int, int] | None = None
        self._rescue: Path | None = None

    # interface of tinydb.storages.Storage

    def read(self) -> Tables:
        """Return all tables, including changes of this thread's transaction."""
        pending = self._pending if self.lock.is_mine else None
        with self.memory:
            if pending is None:
                return self.replica.refresh().tables
            return {
                name: self.table(name, pending) for name in self.replica.state.tables.keys() | pending.changes.keys()
            }

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        """Refuse to replace all tables; changes are lines of the journal, see `transaction`."""
        raise _not_by_tinydb()

    def close(self) -> None:
        if self.replica.loaded is not None:
            with self.memory:
                self.replica.close()
        self.unreadable_jobs = tuple  # or the store and its storage would keep one another
        self._close_writer()
        self.lock.close()

    # transactions

    @contextmanager
    def transaction(self) -> Iterator[JournalEntry]:
        """Write the block's changes as one journal line when it ends without an exception.

        A nested block joins the outer one; an exception undoes its own changes.
        """
        with self.lock.held():
            entry = self._pending
            if entry is not None:
                changes, audit = {name: dict(table) for name, table in entry.changes.items()}, list(entry.audit)
                try:
                    yield entry
                except BaseException:
                    entry.changes, entry.audit = changes, audit
                    raise
                return
            self._pending = entry = JournalEntry(next_id=self._begin().next_id)
            try:
                yield entry
            finally:
                self._pending = None
            if not entry.changes and not entry.audit:
                return
            line, state = encode_line(entry), self.replica.state
            self._append(line, entry, state)
            self._leave_record(state)
            self.changed()
            if state.offset > max(FOLD_AT, state.stamp[2] // 2):
                # the change is already on disk: a failed fold is retried later
                with suppress(StoreError):
                    self._checkpoint(state)

    def table(self, name: str, pending: JournalEntry) -> Table:
        """Return a table including the changes of a transaction. Not to be modified."""
        with self.memory:
            table = self.replica.state.tables.get(name, {})
        changes = pending.changes.get(name)
        if not changes:
            return table
        return {key: document for key, document in (table | changes).items() if document is not None}

    def document(self, name: str, key: str, pending: JournalEntry) -> Document | None:
        """Return a document including the changes of a transaction. Not to be modified."""
        changes = pending.changes.get(name, {})
        if key in changes:
            return changes[key]
        with self.memory:
            return self.replica.state.tables.get(name, {}).get(key)

    # folding

    def checkpoint(self) -> None:
        """Write a new snapshot and start an empty journal. A crash between any two steps loses nothing."""
        with self.lock.held():
            if self._pending is not None:
                return  # the current transaction is not in any file yet: the next fold includes it
            self._checkpoint(self._catch_up())

    def settle(self) -> None:
        """Make durable what a killed writer left; raise StoreDamagedError, and let others repair, if changes are lost.

        Whoever tells or stores elsewhere what is in the queue calls this before, unless it writes to the queue first.
        """
        with self.lock.held():
            self._sync_journal(self._catch_up())

    @property
    def journal_length(self) -> int:
        """Size in bytes of the journal that is not yet in the snapshot."""
        with self.memory:
            return self.replica.refresh().offset

    def _checkpoint(self, state: LoadedQueue) -> None:
        if state.meta.schema < SCHEMA:
            self.migrating(state.meta.schema)
        self._sync_journal(state)
        old = state.meta.generation
        meta = Meta(next_generation(self._path, old), state.next_id, state.meta.store_id)
        self.audit.append(state.audit)
        self._close_writer()
        journal = _make_journal(journal_path(self._path, meta.generation), self._access)

        def place(new: Path, path: Path, stamp: FileStamp) -> None:
            """Rename the file and update the replica in one step for readers of this process."""
            with self.memory:
                new.replace(path)
                self.replica.rebase(meta, stamp, journal)

        tables, keys = state.tables, set(self.unreadable_jobs())
        if keys:  # as the bytes that were stored
            raw = raw_documents(self._path, journal_path(self._path, old), JOBS, keys)
            tables = {**tables, JOBS: {**tables[JOBS], **raw}}
        write_snapshot(self._path, meta, tables, self._access, place)
        self._leave_record(self.replica.state, durably=True)
        folded = journal_path(self._path, old)
        with os_errors(folded):
            folded.unlink(missing_ok=True)

    def _begin(self) -> LoadedQueue:
        """Refresh the replica, and make the journal ready to append to."""
        state = self._catch_up()
        if self._rescue is not None and self.replica.loss is None:
            with suppress(OSError):  # the files are complete again
                self._rescue.unlink(missing_ok=True)
            self._rescue = None
        if state.meta.schema < SCHEMA:
            self._checkpoint(state)
            return self.replica.state
        fd = self._writer_of(state.meta.generation)
        with os_errors(journal_path(self._path, state.meta.generation)):
            cut_torn(fd, state.offset)
        record = self._sync_journal(state)
        if record is None or record.generation != state.meta.generation or not record.length:
            # without one on the disk, nobody could tell a line that power loss tears now from a damaged one
            sync_directory(self._path.parent)  # first: the snapshot that the record names is not to be lost
            self._leave_record(state, durably=True)
        return state

    def _sync_journal(self, state: LoadedQueue) -> WriteRecord | None:
        """Sync lines beyond the record, which is returned: their writer may have been killed before it did.

        What is built on them must not be on the disk without them.
        """
        record = read_record(self.lock.fd)
        if record is None or (record.generation, record.length) != (state.meta.generation, state.offset):
            with os_errors(self._path):
                os.fdatasync(self._writer_of(state.meta.generation))
        return record

    def _catch_up(self) -> LoadedQueue:
        with self.memory:
            state = self.replica.refresh()
            self.lock.keeps = self.is_owned and self.replica.loss is None
            if self.replica.loss is not None:
                raise self.replica.loss.error
        return state

    # the files

    def remove_leftovers(self, generation: int) -> None:
        """Remove what killed writers left: half-written files, and journals that are folded already or only begun."""
        if journals(self._path).keys() <= {generation} and not [*self._path.parent.glob(_NEW)]:
            return
        # left to others if this process may only read, or would have to wait
        with suppress(StoreAccessError, StoreBusyError), self.lock.lock_timeout(0), self.lock.held():
            found = read_meta(self._path)
            if found is None:
                return
            left = [*self._path.parent.glob(_NEW)]
            for number, path in journals(self._path).items():
                with suppress(FileNotFoundError):  # its writer has continued meanwhile
                    if number < found[0].generation or (number > found[0].generation and not path.stat().st_size):
                        left.append(path)
            sync_directory(self._path.parent)  # who gave the snapshot its name may have been killed before this
            for path in left:
                with os_errors(path):
                    path.unlink(missing_ok=True)

    def begin_journal(self, meta: Meta) -> None:
        """Create the journal of a snapshot that was put here without one."""
        with self.lock.held():
            if not journal_path(self._path, meta.generation).exists():
                with os_errors(self._path), closed_after(open_file(self._path, os.O_RDONLY)) as fd:
                    os.fsync(fd)  # whoever copied it may not have done so
                _make_journal(journal_path(self._path, meta.generation), self._access)

    def _append(self, line: bytes, entry: JournalEntry, state: LoadedQueue) -> None:
        """Append a line to the journal, whose length must be that of the queue in memory, and take it over there.

        Checks before and after the write that the path still refers to the open file.
        """
        path, journal = journal_path(self._path, state.meta.generation), None
        with os_errors(path):
            fd = self._writer_of(state.meta.generation)
            _check_journal(path, fd, state.offset)
            begun = time.perf_counter()
            with self.memory:
                self.replica.is_writing = True
            try:
                append(fd, line)
                journal = _check_journal(path, fd, state.offset + len(line))
            finally:
                with self.memory:
                    self.replica.is_writing = False
                    if journal is not None:
                        self.replica.append(line, entry, journal)
            if self.wrote is not None:
                self.wrote(time.perf_counter() - begun)

    def _leave_record(self, state: LoadedQueue, *, durably: bool = False) -> None:
        meta = state.meta
        record = WriteRecord(SCHEMA, meta.generation, state.offset, state.next_id, state.checksum, meta.store_id)
        record.write(self.lock.fd, durably=durably)

    def _writer_of(self, generation: int) -> int:
        path = journal_path(self._path, generation)
        if self._writer is not None and (self._writer[0] != generation or not is_same_file(path, self._writer[1])):
            self._close_writer()
        if self._writer is None:
            with os_errors(path):
                self._writer = (generation, open_file(path, os.O_RDWR | os.O_APPEND))
        return self._writer[1]

    def _close_writer(self) -> None:
        if self._writer is not None:
            os.close(self._writer[1])
            self._writer = None

    def _write_rescue(self, state: LoadedQueue) -> None:
        self._rescue = write_rescue(self._path, state, self._access)


def begin_queue(
    snapshot: Path, meta: Meta, tables: Tables, access: FileAccess, lock: int, first: JournalEntry | None = None
) -> None:
    """Write snapshot, journal and record of a queue, durably; `lock` is the descriptor of the lock, held.

    `first` is the journal's first line, if it has one.
    """
    journal = journal_path(snapshot, meta.generation)
    _make_journal(journal, access)
    if first is not None:
        with os_errors(journal), closed_after(open_file(journal, os.O_WRONLY | os.O_APPEND)) as fd:
            append(fd, encode_line(first))
    write_snapshot(snapshot, meta, tables, access)
    WriteRecord(SCHEMA, meta.generation, 0, meta.next_id, 0, meta.store_id).write(lock, durably=True)


def _make_journal(path: Path, access: FileAccess) -> os.stat_result:
    """Create an empty journal, durably; return its status."""
    with os_errors(path):
        with closed_after(open_file(path, os.O_WRONLY | os.O_CREAT, FILE_MODE)) as fd:
            access.apply_to_file(fd)
            os.ftruncate(fd, 0)  # not earlier: settling refuses a file that has another name
            status = os.fstat(fd)
        sync_directory(path.parent)  # without it, a snapshot without its journal would look like a loss
    return status


def _check_journal(path: Path, fd: int, length: int) -> os.stat_result:
    """Return the status of the journal; raises StoreDamagedError unless it is the open file with that length."""
    status = os.fstat(fd)
    if status.st_size != length or not is_same_file(path, fd):
        raise Loss(path, "the journal was removed, replaced or cut while it was written to").error
    return status


def _not_by_tinydb() -> StoreError:
    return StoreError("TinyDB's own writing methods are not used here", hint="change the queue in a transaction")


class ReadOnlyTable(TinyTable):
    """TinyDB table for reading. Changes go through `JournalStorage.transaction`, one line of the journal each.

    TinyDB's writing methods change documents in place, and these documents are shared by all readers of this process.
    """

    default_query_cache_capacity = 0  # a cached answer would miss writes of other processes

    def _update_table(self, updater: Callable[[dict[int, Any]], None]) -> None:
        # private, but all writing methods of TinyDB end here; the public way is to override all seven
        raise _not_by_tinydb()


class JournalDB(TinyDB):
    """TinyDB database whose storage is the snapshot and its journal."""

    table_class = ReadOnlyTable
    default_storage_class = JournalStorage  # type: ignore[assignment]  # declared as the one it is by default


class _RawLine(msgspec.Struct):
    t: dict[str, RawTable]


def raw_documents(snapshot: Path, journal: Path, table: str, keys: Collection[str]) -> RawTable:
    """Return these documents of a table as the bytes in which they were last written."""
    tables = decode_json(snapshot.read_bytes(), dict[str, RawTable])
    found = {} if table == META else {key: raw for key, raw in tables.get(table, {}).items() if key in keys}
    for line in journal.read_bytes().splitlines():
        with suppress(msgspec.MsgspecError, IndexError):  # a damaged line contains no document
            body = decode_json(line.split(b" ", 2)[2], _RawLine)
            found |= {key: raw for key, raw in body.t.get(table, {}).items() if key in keys}
    return {key: msgspec.Raw(bytes(raw)) for key, raw in found.items()}
