"""The queue as this process has it in memory: the snapshot, and as much of the journal as was read so far."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gputui.domain.errors import StoreError, StoreFormatError
from gputui.store.faults import os_errors
from gputui.store.hint import Identity, identity_of
from gputui.store.journal import Document, Entry, Line, decode_lines, is_plausible
from gputui.store.migrations import SCHEMA, migrate
from gputui.store.snapshot_file import Meta, SnapshotFile, Tables, read_meta, read_snapshot

JOBS = "jobs"
CONTROLS = "controls"
_TRIES = 1000
_CRC = 8

AuditKey = tuple[int, int, int]
"""Generation, place of the line in its journal, place in the line: one entry's own."""


def journal_path(snapshot: Path, generation: int) -> Path:
    """Where the journal of a generation is."""
    return snapshot.with_name(f"{snapshot.name}.wal.{generation}")


@dataclass
class Loaded:
    """What the files said, up to `offset` in the journal."""

    meta: Meta
    identity: Identity
    tables: Tables
    journal: int | None
    """Descriptor of the journal; None: not made yet."""
    next_id: int
    offset: int = 0
    guard: bytes = b""
    """Checksum of the last line read."""
    guard_at: int = 0
    audit: list[tuple[AuditKey, Document]] = field(default_factory=list)
    is_damaged: bool = False


class Replica:
    """Reads without any lock. Its callers see to it that one thread at a time is in here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage: dict[str, None] = {}
        """Sentences about what could not be read, each once."""
        self._loaded: Loaded | None = None
        self._store_id: str | None = None
        self._touched: set[str] | None = None
        self._watched: tuple[Identity, Path] | None = None

    @property
    def state(self) -> Loaded:
        """What is in memory, as of the last refresh."""
        return self._loaded or self._load()

    @property
    def is_old_schema(self) -> bool:
        """Whether the files are of an older schema than what is in memory."""
        return self.state.meta.schema < SCHEMA

    def take_touched(self) -> set[str] | None:
        """Keys of jobs that changed since the last call; None when any may have."""
        touched, self._touched = self._touched, set()
        return touched

    def refresh(self) -> Loaded:
        """Catch up with what any process has written. Costs two stats when nothing was."""
        state = self._loaded
        with os_errors(self._path):
            if state is None or self._identity() != state.identity or not self._read_tail(state):
                return self._load()
        return state

    def version(self) -> object:
        """A token that changes with every write, without reading it."""
        with os_errors(self._path):
            return self._version()

    def _version(self) -> object:
        identity = self._identity()
        if self._watched is None or self._watched[0] != identity:
            found = read_meta(self._path)
            if found is None:
                raise _gone(self._path)
            self._watched = (found[1], journal_path(self._path, found[0].generation))
        try:
            length = self._watched[1].stat().st_size
        except FileNotFoundError:
            length = 0
        return (*identity, length)

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
        try:
            return identity_of(self._path.stat())
        except FileNotFoundError:
            raise _gone(self._path) from None

    def _load(self) -> Loaded:
        self.close()
        self._touched = None
        with no_collection():
            snapshot, journal = self._consistent_pair()
            self._check_same(snapshot.meta.store_id)
            tables = snapshot.tables
            ids = [int(key) for key in tables.setdefault(JOBS, {})]
            next_id = max(snapshot.meta.next_id, max(ids, default=0) + 1)
            self._loaded = state = Loaded(snapshot.meta, snapshot.identity, tables, journal, next_id)
            self._apply(state, self._tail(state))
            migrate(tables, snapshot.meta.schema)
        return state

    def _check_same(self, store_id: str) -> None:
        """Refuse another queue in the place of the one known so far: its ids mean other jobs."""
        if self._store_id is None:
            self._store_id = store_id
        elif self._store_id != store_id:
            raise StoreFormatError(
                "another queue is in its place", where=str(self._path), hint="end this gputui, and start it again"
            )

    def _consistent_pair(self) -> tuple[SnapshotFile, int | None]:
        """A snapshot and its journal, of which neither was replaced while the other was opened."""
        for _ in range(_TRIES):
            snapshot = read_snapshot(self._path)
            if snapshot is None:
                raise _gone(self._path)
            journal = self._open_journal(snapshot.meta.generation)
            if self._identity() == snapshot.identity:
                return snapshot, journal
            if journal is not None:
                os.close(journal)
        raise StoreError("it is replaced faster than it can be read", where=str(self._path))

    def _open_journal(self, generation: int) -> int | None:
        path = journal_path(self._path, generation)
        with os_errors(path):
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None

    def _read_tail(self, state: Loaded) -> bool:
        """Apply what was appended; False when memory no longer agrees with the file."""
        if state.journal is None:
            state.journal = self._open_journal(state.meta.generation)
            if state.journal is None:
                return True
        size = os.fstat(state.journal).st_size
        if size == state.offset:
            return True
        # a line that could not be synced is cut off again, and another may have taken its place
        unchanged = os.pread(state.journal, len(state.guard), state.guard_at) == state.guard
        if size < state.offset or not unchanged or state.meta.schema < SCHEMA:
            return False
        self._apply(state, self._tail(state))
        return True

    def _tail(self, state: Loaded) -> bytes:
        if state.journal is None:
            return b""
        parts = []
        position = state.offset
        while part := os.pread(state.journal, 1 << 26, position):
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def _apply(self, state: Loaded, data: bytes) -> None:
        start = state.offset
        for line in decode_lines(data, start):
            if line.entry is None:
                self._pass_over(state, line)
            else:
                self._apply_entry(state, line.entry, line.start)
            state.guard_at = line.start
            state.guard = data[line.start - start : line.start - start + _CRC]
        state.offset = start + data.rfind(b"\n") + 1

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
        state.is_damaged = True
        if line.salvaged_id is not None and is_plausible(line.salvaged_id, state.next_id):
            state.next_id = line.salvaged_id


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the collector from walking thousands of documents again and again while they are made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _gone(path: Path) -> StoreFormatError:
    return StoreFormatError("the queue is gone", where=str(path), hint="put it back from a backup")
