"""TinyDB's storage: a snapshot that stock TinyDB opens, and a journal beside it that makes writes cheap and durable."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinydb.storages import Storage

from gputui.domain.errors import StoreError
from gputui.store.audit import AuditFiles, KeyedEntry
from gputui.store.caps import caps_waiting
from gputui.store.faults import os_errors
from gputui.store.files import is_same_file, open_file
from gputui.store.hint import Hint, identity_of, read_hint
from gputui.store.integrity import Loss
from gputui.store.journal import Document, Entry, append, encode_line
from gputui.store.leftovers import next_generation, retire_journal, sweep
from gputui.store.lock import StoreLock
from gputui.store.migrations import SCHEMA
from gputui.store.permissions import Permissions
from gputui.store.raw import raw_documents
from gputui.store.replica import CONTROLS, JOBS, Loaded, Replica, journal_path
from gputui.store.rescue import rescue_path, write_rescue
from gputui.store.snapshot_file import Meta, Table, Tables, sync_directory, write_snapshot

FOLD_AT = 4 * 1024**2
"""Bytes of journal from which it is folded into the snapshot after a write."""
FOLD_UNREAD_AT = 16 * FOLD_AT
"""The same where the queue must be loaded first: far apart, as the leader folds when it is idle."""


class JournalStorage(Storage):
    """Readers take no lock; a writer holds it from before its first look until its line is on disk."""

    def __init__(self, path: Path, permissions: Permissions, lock: StoreLock) -> None:
        self._path = path
        self._permissions = permissions
        self.lock = lock
        self.audit = AuditFiles(path.parent, permissions)
        self.memory = threading.RLock()
        """Held while the replica is read or brought up to date; never while waiting for another process."""
        self.replica = Replica(path, self._write_rescue)
        self.unreadable_jobs: Callable[[], Iterable[str]] = tuple
        """Tells the keys of jobs that cannot be read; their documents are kept byte for byte."""
        self._pending: Entry | None = None
        self._writer: tuple[int, int] | None = None
        self._rescue: Path | None = None

    # what TinyDB asks for

    def read(self) -> Tables:
        """All tables, with what the transaction of this thread has done so far."""
        with self.memory:
            tables = self.replica.state.tables if self.pending else self.replica.refresh().tables
        if self.pending is None:
            return tables
        return {name: self.table(name) for name in tables.keys() | self.pending.changes.keys()}

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        """Make these all the tables there are. TinyDB itself calls it only to drop tables."""
        with self.transaction():
            before = self.read()
            for name in before.keys() | data.keys():
                wanted = {str(key): document for key, document in data.get(name, {}).items()}
                changes: dict[str, Document | None] = dict.fromkeys(before.get(name, {}).keys() - wanted.keys())
                self.stage(name, changes | wanted)

    def close(self) -> None:
        """Let go of all files."""
        with self.memory:
            self.replica.close()
        self._close_writer()
        self.lock.close()

    # transactions

    @property
    def pending(self) -> Entry | None:
        """What the transaction of the calling thread has done; None outside of one."""
        return self._pending if self._pending is not None and self.lock.is_mine else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """One line of the journal, written when the block is left without an exception. An inner one joins."""
        with self.lock.held():
            if self._pending is not None:
                yield
                return
            state = self._begin()
            self._pending = entry = Entry(next_id=state.next_id)
            try:
                yield
            finally:
                self._pending = None
            if entry.changes or entry.audit:
                self._commit(entry)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Inside a transaction: an exception takes back what was done since."""
        entry = self._pending
        assert entry is not None
        changes = {name: dict(table) for name, table in entry.changes.items()}
        audit = list(entry.audit)
        try:
            yield
        except BaseException:
            entry.changes, entry.audit = changes, audit
            raise

    def table(self, name: str) -> Table:
        """One table, with what the transaction of this thread has done so far. Not to be changed."""
        with self.memory:
            table = self.replica.state.tables.get(name, {})
        changes = self.pending.changes.get(name) if self.pending else None
        if not changes:
            return table
        return {key: document for key, document in (table | changes).items() if document is not None}

    def document(self, name: str, key: str) -> Document | None:
        """One document, likewise. Not to be changed."""
        changes = self.pending.changes.get(name, {}) if self.pending else {}
        if key in changes:
            return changes[key]
        with self.memory:
            return self.replica.state.tables.get(name, {}).get(key)

    def stage(self, name: str, changes: dict[str, Document | None]) -> None:
        """Do these changes in the transaction under way."""
        assert self._pending is not None
        if not changes:
            return
        self._pending.changes.setdefault(name, {}).update(changes)
        if name == JOBS:
            highest = max((int(key) for key, document in changes.items() if document is not None), default=0)
            self._pending.next_id = max(self._pending.next_id, highest + 1)

    def take_id(self) -> int:
        """The id of the next job, never given out before."""
        assert self._pending is not None
        self._pending.next_id += 1
        return self._pending.next_id - 1

    def stage_audit(self, document: Document) -> None:
        """Write down a wish in the transaction under way."""
        assert self._pending is not None
        self._pending.audit.append(document)

    def add_unread(self, make: Callable[[int], Entry]) -> None:
        """Append what `make` makes of the next id, without loading the queue where the last writer's hint holds."""
        with self.lock.held():
            hint = None if self._pending else self._trusted_hint()
            if hint is None:
                with self.transaction():
                    self._join(make)
                return
            entry = make(hint.next_id)
            line = encode_line(entry)
            status = self._append(hint.generation, line, hint.length)
            checksum = None if hint.checksum is None else zlib.crc32(line, hint.checksum)
            length, journal = status.st_size, identity_of(status)
            replace(hint, length=length, next_id=entry.next_id, checksum=checksum, journal=journal).write(self.lock.fd)
        if length > FOLD_UNREAD_AT:
            with suppress(StoreError):
                self.checkpoint()

    def caps_waiting(self) -> bool:
        """Whether the operator's wishes cap anybody's waiting jobs; likewise."""
        with self.lock.held():
            hint = None if self._pending else self._trusted_hint()
            return hint.caps_waiting if hint else caps_waiting(self.read().get(CONTROLS, {}))

    # folding

    def checkpoint(self) -> None:
        """Write the queue whole, and begin an empty journal. A crash between any two steps loses nothing."""
        with self.lock.held():
            if self._pending is not None:
                return  # the transaction under way is in no file yet: the next fold will have it
            self._checkpoint(self._catch_up())

    @property
    def journal_length(self) -> int:
        """Bytes of journal that are not in the snapshot yet."""
        with self.memory:
            return self.replica.refresh().offset

    def unfolded_audit(self) -> list[KeyedEntry]:
        """Audit entries that are still in the journal."""
        with self.memory:
            return list(self.replica.refresh().audit)

    def _checkpoint(self, state: Loaded) -> None:
        old = state.meta.generation
        meta = Meta(next_generation(self._path, old), state.next_id, state.meta.store_id)
        self.audit.append(state.audit)
        self._close_writer()
        self._make_journal(meta.generation)
        identity = write_snapshot(self._path, meta, self._with_raw(state), self._permissions)
        with self.memory:
            self.replica.rebase(meta, identity)
        self._leave_hint(self.replica.state)
        retire_journal(journal_path(self._path, old))

    def _with_raw(self, state: Loaded) -> Tables:
        """The tables, with the very bytes of jobs that cannot be read."""
        keys = set(self.unreadable_jobs())
        if not keys:
            return state.tables
        raw = raw_documents(self._path, journal_path(self._path, state.meta.generation), JOBS, keys)
        return {**state.tables, JOBS: {**state.tables[JOBS], **raw}}

    def _begin(self) -> Loaded:
        """Know all that was written, and make the journal fit to append to."""
        state = self._catch_up()
        self._retire_rescue()
        if self.replica.is_old_schema:
            self._checkpoint(state)
            return self.replica.state
        fd = self._writer_of(state.meta.generation)
        with os_errors(journal_path(self._path, state.meta.generation)):
            if os.fstat(fd).st_size > state.offset:
                os.ftruncate(fd, state.offset)  # the torn line of a writer that was killed
        return state

    def _catch_up(self) -> Loaded:
        with self.memory:
            hint = read_hint(self.lock.fd)
            state = self.replica.refresh(hint)
            if self.replica.loss is not None:
                raise self.replica.loss.error
            # the line that gave out the last ids may be damaged, and the hint may know them still
            if hint is not None:
                state.next_id = max(state.next_id, hint.next_id)
        return state

    def _commit(self, entry: Entry) -> None:
        state = self.replica.state
        line = encode_line(entry)
        end, checksum = state.offset + len(line), zlib.crc32(line, state.checksum)
        self._append(state.meta.generation, line, state.offset)
        with self.memory:
            state = self.replica.refresh()
        if (state.offset, state.checksum) != (end, checksum):
            path = journal_path(self._path, state.meta.generation)
            raise Loss(path, "the journal was replaced while it was written to").error
        self._leave_hint(state)
        if state.offset > max(FOLD_AT, state.identity[2] // 2):
            # what was acknowledged is on disk already: a fold that fails is tried again later
            with suppress(StoreError):
                self._checkpoint(state)

    def _join(self, make: Callable[[int], Entry]) -> None:
        pending = self._pending
        assert pending is not None
        entry = make(pending.next_id)
        for name, table in entry.changes.items():
            self.stage(name, table)
        pending.audit += entry.audit

    # the files

    def sweep(self) -> None:
        """Remove what killed writers left behind."""
        sweep(self._path, self.lock)

    def make_first(self, meta: Meta) -> None:
        """Write an empty queue; the lock is held."""
        self._make_journal(meta.generation)
        identity = write_snapshot(self._path, meta, {JOBS: {}}, self._permissions)
        self._leave_hint(Loaded(meta, identity, {}, None, meta.next_id))

    def begin_journal(self, meta: Meta) -> None:
        """Begin the journal of a snapshot that somebody put here by itself."""
        with self.lock.held():
            if not journal_path(self._path, meta.generation).exists():
                self._make_journal(meta.generation)

    def check(self) -> None:
        """Raise StoreDamagedError where the files have lost something, as far as this process has read them."""
        with self.memory:
            if self.replica.is_loaded:
                self.replica.refresh()
            if self.replica.loss is not None:
                raise self.replica.loss.error

    def _append(self, generation: int, line: bytes, at: int) -> os.stat_result:
        """Append a line at the end of the journal, which is at `at`; its status afterwards.

        Whether the file under the path is the one written to is looked at before, and again before anybody is told
        that the line is stored.
        """
        path = journal_path(self._path, generation)
        with os_errors(path):
            fd = self._writer_of(generation)
            _check_journal(path, fd, at)
            append(fd, line)
            return _check_journal(path, fd, at + len(line))

    def _trusted_hint(self) -> Hint | None:
        """The hint, if snapshot and journal are just as its writer left them."""
        hint = read_hint(self.lock.fd)
        if hint is None or hint.schema != SCHEMA or hint.journal is None or hint.journal[2] != hint.length:
            return None
        path = journal_path(self._path, hint.generation)
        with os_errors(path):
            try:
                found = identity_of(self._path.stat()), identity_of(path.stat())
            except FileNotFoundError:
                return None
        return hint if found == (hint.snapshot, hint.journal) else None

    def _leave_hint(self, state: Loaded) -> None:
        """Record where the journal ends."""
        meta, capped = state.meta, caps_waiting(state.tables.get(CONTROLS, {}))
        with os_errors(self._path):
            journal = identity_of(journal_path(self._path, meta.generation).stat())
        Hint(
            SCHEMA, meta.generation, state.offset, state.next_id, state.identity, capped,
            checksum=state.checksum, store_id=meta.store_id, journal=journal,
        ).write(self.lock.fd)  # fmt: skip

    def _writer_of(self, generation: int) -> int:
        """Descriptor to append to the journal of that generation."""
        path = journal_path(self._path, generation)
        if self._writer is not None and (self._writer[0] != generation or not is_same_file(path, self._writer[1])):
            self._close_writer()
        if self._writer is None:
            with os_errors(path):
                self._writer = (generation, open_file(path, os.O_RDWR | os.O_APPEND))
        return self._writer[1]

    def _make_journal(self, generation: int) -> None:
        path = journal_path(self._path, generation)
        with os_errors(path):
            fd = open_file(path, os.O_WRONLY | os.O_CREAT, self._permissions.file_mode)
            try:
                self._permissions.settle_file(fd)
                os.ftruncate(fd, 0)  # only now: settling refuses a file that has another name
            finally:
                os.close(fd)
            sync_directory(path.parent)  # a snapshot without its journal would pass for one that lost it

    def _close_writer(self) -> None:
        if self._writer is not None:
            os.close(self._writer[1])
            self._writer = None

    # what memory has and the files have lost

    def _write_rescue(self, state: Loaded) -> None:
        """Write the queue in memory down, for `gputui state repair`."""
        self._rescue = rescue_path(self._path)
        write_rescue(self._rescue, state, self._permissions)

    def _retire_rescue(self) -> None:
        """Remove what was written down, once the files are whole again."""
        if self._rescue is not None and self.replica.loss is None:
            with suppress(OSError):
                self._rescue.unlink(missing_ok=True)
            self._rescue = None


def _check_journal(path: Path, fd: int, length: int) -> os.stat_result:
    """The status of the journal; raises StoreDamagedError where it is not the open file of that length."""
    status = os.fstat(fd)
    if status.st_size != length or not is_same_file(path, fd):
        raise Loss(path, "the journal was removed, replaced or cut while it was written to").error
    return status
