"""The queue as this process has it in memory: the snapshot, and as much of the journal as was read so far."""

from __future__ import annotations

import gc
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from gputui.domain.errors import StoreError, StoreFormatError
from gputui.store.faults import os_errors
from gputui.store.files import open_file
from gputui.store.hint import Hint, Identity, identity_of, read_hint_at
from gputui.store.integrity import Loss, acknowledged_end, loss_of_journal, loss_of_snapshot
from gputui.store.journal import Document, Entry, Line, decode_lines, is_plausible
from gputui.store.migrations import SCHEMA, migrate
from gputui.store.snapshot_file import Meta, SnapshotFile, Tables, read_meta, read_snapshot

JOBS = "jobs"
CONTROLS = "controls"
_TRIES = 1000
_CRC = 8
_JUDGE_AGAIN = 5.0
"""Seconds after which files that have lost something are read again even if they look the same."""

AuditKey = tuple[int, int, int]
"""Generation, place of the line in its journal, place in the line: one entry's own."""


def journal_path(snapshot: Path, generation: int) -> Path:
    """Return the path of the journal of a generation."""
    return snapshot.with_name(f"{snapshot.name}.wal.{generation}")


def lock_path(snapshot: Path) -> Path:
    """Return the path of the lock file, which holds the record of the last write."""
    return snapshot.with_name(f"{snapshot.name}.lock")


@dataclass
class Loaded:
    """What the files said, up to `offset` in the journal."""

    meta: Meta
    identity: Identity
    tables: Tables
    journal: int | None
    """Descriptor of the journal; None: not opened yet."""
    next_id: int
    offset: int = 0
    checksum: int = 0
    """CRC-32 of the journal up to `offset`."""
    guard: bytes = b""
    """Checksum of the last line read."""
    guard_at: int = 0
    record: Identity | None = None
    """Stamp of the lock file when its record was last read."""
    audit: list[tuple[AuditKey, Document]] = field(default_factory=list)


@dataclass
class Files:
    """The files as read together, and what they lack of what was acknowledged."""

    snapshot: SnapshotFile
    journal: int | None
    data: bytes
    lines: list[Line]
    loss: Loss | None


Fingerprint = tuple[object, ...]


class Replica:
    """Reads without any lock. Its callers see to it that one thread at a time is in here."""

    def __init__(self, path: Path, rescue: Callable[[Loaded], None] = lambda _: None) -> None:
        """`rescue` is called with a whole queue in memory whose files have lost something."""
        self._path = path
        self._rescue = rescue
        self.damage: dict[str, None] = {}
        """Sentences about what could not be read, each once."""
        self.loss: Loss | None = None
        """Loss found in the files at the last refresh. The state is then the last whole one known, or a part."""
        self._loaded: Loaded | None = None
        self._store_id: str | None = None
        self._touched: set[str] | None = None
        self._watched: tuple[Identity, Path] | None = None
        self._judged: Fingerprint | None = None
        """Stamp of the files in which the loss was found."""
        self._judged_at = 0.0
        self._is_whole = False
        """Whether what is in memory was read from files that had lost nothing."""
        self._is_rescued = False

    @property
    def is_loaded(self) -> bool:
        """Whether the queue was read."""
        return self._loaded is not None

    @property
    def state(self) -> Loaded:
        """What is in memory, as of the last refresh."""
        return self._loaded or self.refresh()

    @property
    def is_old_schema(self) -> bool:
        """Whether the files are of an older schema than what is in memory."""
        return self.state.meta.schema < SCHEMA

    def take_touched(self) -> set[str] | None:
        """Keys of jobs that changed since the last call; None when any may have."""
        touched, self._touched = self._touched, set()
        return touched

    def refresh(self, record: Hint | None = None) -> Loaded:
        """Catch up with what any process has written. Costs four stats when nothing was.

        A writer, who holds the lock, gives the record, which the files have to agree with just now. Where they have
        lost something, `loss` says so and a whole queue in memory is kept as it was.
        """
        with os_errors(self._path):
            state = self._loaded
            if state is not None and self._is_settled(state) and not self._is_contradicted(state, record):
                return state
            try:
                with no_collection():
                    files = self._read_files()
            except StoreFormatError:
                self._rescue_memory()
                raise
            return self._adopt(files)

    def _is_contradicted(self, state: Loaded, record: Hint | None) -> bool:
        """Whether the record tells of another journal than was read, or somebody else has written into it since."""
        if self.loss is not None or record is None or record.generation != state.meta.generation:
            return False
        status = _status(journal_path(self._path, state.meta.generation))
        is_touched = status is not None and record.journal not in {None, identity_of(status)}
        return is_touched or _is_short(state, record)

    def _is_settled(self, state: Loaded) -> bool:
        """Whether memory says all that the files do, after reading what was appended."""
        if self.loss is not None:
            self._rescue_memory()
            is_recent = time.monotonic() < self._judged_at + _JUDGE_AGAIN
            return is_recent and self._fingerprint() == self._judged
        status = _status(self._path)
        return status is not None and identity_of(status) == state.identity and self._read_tail(state)

    def _adopt(self, files: Files) -> Loaded:
        """Have in memory what the files say, unless memory has what they have lost."""
        self._check_same(files.snapshot.meta.store_id)
        if files.loss is not None and self._loaded is not None and self._is_whole:
            if files.journal is not None:
                os.close(files.journal)
        else:
            self._take(files)
            self._is_whole, self._is_rescued = files.loss is None, False
        self.loss = files.loss
        if files.loss is not None:
            self._distrust(files.snapshot.meta.generation)
            self._judged, self._judged_at = self._fingerprint(), time.monotonic()
            self._rescue_memory()
        return self.state

    def _distrust(self, generation: int) -> None:
        """Touch a damaged journal that is as its record says, so that the next writer reads it and refuses.

        It was changed in the instant of a write, and would be appended to for as long as nobody touches it.
        """
        path, record = journal_path(self._path, generation), read_hint_at(lock_path(self._path))
        status = _status(path)
        if status is None or record is None or record.journal != identity_of(status):
            return
        try:
            os.utime(path, ns=(status.st_atime_ns, time.time_ns()))
        except OSError:
            with suppress(OSError):  # another member's file: its time can only be set to now
                os.utime(path)

    def _rescue_memory(self) -> None:
        """Have the whole queue written down that is in memory and no longer in the files; once."""
        if self._loaded is not None and self._is_whole and not self._is_rescued:
            with suppress(StoreError, OSError):
                self._rescue(self._loaded)
                self._is_rescued = True

    def version(self) -> object:
        """A token that changes with every write, without reading it."""
        with os_errors(self._path):
            try:
                return self._version()
            except StoreFormatError:
                self._rescue_memory()
                raise

    def _version(self) -> object:
        identity = self._identity()
        if self._watched is None or self._watched[0] != identity:
            found = read_meta(self._path)
            if found is None:
                raise _gone(self._path)
            self._watched = (found[1], journal_path(self._path, found[0].generation))
        status = _status(self._watched[1])
        return (*identity, -1, -1) if status is None else (*identity, status.st_ino, status.st_size)

    def rebase(self, meta: Meta, identity: Identity) -> None:
        """Stand on a snapshot just written from this very memory, and on its empty journal."""
        state = self.state
        self.close()
        self._loaded = Loaded(meta, identity, state.tables, None, state.next_id)

    def close(self) -> None:
        """Let go of the journal."""
        if self._loaded is not None and self._loaded.journal is not None:
            os.close(self._loaded.journal)
            self._loaded.journal = None

    def _identity(self) -> Identity:
        status = _status(self._path)
        if status is None:
            raise _gone(self._path)
        return identity_of(status)

    def _fingerprint(self) -> Fingerprint:
        """Everything that a loss is judged by: it changes when somebody mends the files."""
        meta = self._loaded.meta if self._loaded else None
        paths = [self._path] + ([journal_path(self._path, meta.generation)] if meta else [])
        found = [None if status is None else identity_of(status) for status in map(_status, paths)]
        return (*found, read_hint_at(lock_path(self._path)))

    def _take(self, files: Files) -> None:
        """Have the contents of the files in memory."""
        self.close()
        self._touched = None
        snapshot, tables = files.snapshot, files.snapshot.tables
        with no_collection():
            ids = ids_of(tables.setdefault(JOBS, {}))
            next_id = max(snapshot.meta.next_id, max(ids, default=0) + 1)
            self._loaded = state = Loaded(snapshot.meta, snapshot.identity, tables, files.journal, next_id)
            self._apply_lines(state, files.data, files.lines)
            migrate(tables, snapshot.meta.schema)

    def _check_same(self, store_id: str) -> None:
        """Refuse another queue in the place of the one known so far: its ids mean other jobs."""
        if self._store_id is None:
            self._store_id = store_id
        elif self._store_id != store_id:
            raise StoreFormatError(
                "another queue is in its place", where=str(self._path), hint="end this gputui, and start it again"
            )

    def _read_files(self) -> Files:
        """Read a snapshot and its journal, of which neither was replaced meanwhile, and judge them by the record.

        The record is read first: what it tells of was in the files before.
        """
        for _ in range(_TRIES):
            record = read_hint_at(lock_path(self._path))
            snapshot = read_snapshot(self._path)
            if snapshot is None:
                raise _gone(self._path)
            journal = self._open_journal(snapshot.meta.generation)
            data = b"" if journal is None else _read_from(journal, 0)
            is_same = self._identity() == snapshot.identity
            if is_same and not (_is_behind(record, snapshot.meta) and record != read_hint_at(lock_path(self._path))):
                return self._judged_files(snapshot, journal, data, record)
            if journal is not None:
                os.close(journal)
        raise StoreError("it is replaced faster than it can be read", where=str(self._path))

    def _judged_files(self, snapshot: SnapshotFile, journal: int | None, data: bytes, record: Hint | None) -> Files:
        meta = snapshot.meta
        applicable = None if _is_behind(record, meta) else record
        lines = list(decode_lines(data, 0))
        end = acknowledged_end(lines, len(data), applicable)
        data, lines = data[:end], [line for line in lines if line.start < end]
        path = journal_path(self._path, meta.generation)
        loss = loss_of_snapshot(self._path, meta, applicable) or loss_of_journal(
            path, None if journal is None else data, lines, applicable
        )
        return Files(snapshot, journal, data, lines, loss)

    def _open_journal(self, generation: int) -> int | None:
        path = journal_path(self._path, generation)
        with os_errors(path):
            try:
                return open_file(path, os.O_RDONLY)
            except FileNotFoundError:
                return None

    def _read_tail(self, state: Loaded) -> bool:
        """Apply what was appended; False when memory no longer agrees with the file."""
        if state.journal is None:
            state.journal = self._open_journal(state.meta.generation)
            if state.journal is None:
                return False
        record = self._new_record(state)  # first: what it tells of is in the journal by then
        status, there = os.fstat(state.journal), _status(journal_path(self._path, state.meta.generation))
        if there is None or (there.st_ino, there.st_dev) != (status.st_ino, status.st_dev):
            return False
        if there.st_size == state.offset:
            return not _is_short(state, record)
        # a line that could not be synced is cut off again, and another may have taken its place
        unchanged = os.pread(state.journal, len(state.guard), state.guard_at) == state.guard
        if there.st_size < state.offset or not unchanged or state.meta.schema < SCHEMA:
            return False
        data = _read_from(state.journal, state.offset)
        lines = list(decode_lines(data, state.offset))
        if any(line.entry is None for line in lines):
            return False
        self._apply_lines(state, data, lines)
        return not _is_short(state, record)

    def _new_record(self, state: Loaded) -> Hint | None:
        """The record, where it was written since the last look at it."""
        status = _status(lock_path(self._path))
        place = None if status is None else identity_of(status)
        if place == state.record:
            return None
        state.record = place
        return read_hint_at(lock_path(self._path))

    def _apply_lines(self, state: Loaded, data: bytes, lines: Iterable[Line]) -> None:
        """Apply the whole lines of `data`, which stands at the state's offset."""
        start = state.offset
        for line in lines:
            if line.entry is None:
                self._pass_over(state, line)
            else:
                self._apply_entry(state, line.entry, line.start)
            state.guard_at = line.start
            state.guard = data[line.start - start : line.start - start + _CRC]
        length = data.rfind(b"\n") + 1
        state.checksum = zlib.crc32(memoryview(data)[:length], state.checksum)
        state.offset = start + length

    def _apply_entry(self, state: Loaded, entry: Entry, start: int) -> None:
        for name, changes in entry.changes.items():
            table = state.tables.setdefault(name, {})
            for key, document in changes.items():
                if document is None:
                    table.pop(key, None)
                else:
                    table[key] = document
            if name == JOBS and self._touched is not None:
                self._touched.update(changes)
        state.next_id = max(state.next_id, entry.next_id)
        generation = state.meta.generation
        state.audit += (((generation, start, place), document) for place, document in enumerate(entry.audit))

    def _pass_over(self, state: Loaded, line: Line) -> None:
        path = journal_path(self._path, state.meta.generation)
        self.damage[f"{path}: the line at byte {line.start} is damaged and was passed over"] = None
        if line.salvaged_id is not None and is_plausible(line.salvaged_id, state.next_id):
            state.next_id = line.salvaged_id


def ids_of(table: Iterable[str]) -> Iterator[int]:
    """The ids among the keys of a table; a key written by hand may be none."""
    return (int(key) for key in table if key.isascii() and key.isdigit())


def _is_behind(record: Hint | None, meta: Meta) -> bool:
    """Whether the record is of an earlier generation than the snapshot, whose writer died before it could renew it."""
    return record is not None and record.generation < meta.generation


def _is_short(state: Loaded, record: Hint | None) -> bool:
    """Whether the record tells of more in this journal than was read, or of something else."""
    if record is None or record.generation != state.meta.generation or record.length < state.offset:
        return False
    return record.length > state.offset or record.checksum not in {None, state.checksum}


def _read_from(fd: int, position: int) -> bytes:
    """Return the file from this position to its end."""
    parts = []
    while part := os.pread(fd, 1 << 26, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file; None when there is none."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the collector from walking thousands of documents while they are made, and from a large queue for good."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > _LARGE:
                gc.freeze()  # or the next object that is made has all of them walked through
            gc.enable()


_LARGE = 100_000
"""Objects made in one go."""


def _gone(path: Path) -> StoreFormatError:
    return StoreFormatError(
        "the queue is gone", where=str(path), hint="put it back from a backup, or run `gputui state repair`"
    )
