"""Checks that everything in a state directory can be read: the queue with its journal, the history, the audit log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui.domain.decoding import decode_json
from gputui.domain.errors import GputuiError, StoreFormatError, StoreNewerError
from gputui.domain.finding import Finding
from gputui.store.codec import decode_audit, decode_controls, decode_job, decode_recurring
from gputui.store.directory import QUEUE
from gputui.store.documents import Document, is_id
from gputui.store.files import open_file, os_errors, read_file
from gputui.store.job_cache import RECURRING
from gputui.store.migrations import SCHEMA, check_schema, migrate
from gputui.store.replica import CONTROLS, JOBS, LoadedQueue, Replica, journal_path, lock_path
from gputui.store.snapshot_file import parse_month
from gputui.store.write_record import read_record_at

_ERRORS = (GputuiError, msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError)


class DamagedLine(Struct, frozen=True):
    """Line of a file that cannot be read."""

    number: int
    start: int
    end: int
    why: str
    is_newer: bool = False
    """True if a newer gputui wrote it."""

    def finding(self, path: Path) -> Finding:
        """Return the line as a finding."""
        return Finding(f"{path.name}, line {self.number}, byte {self.start}", self.why)


def verify_directory(directory: Path) -> Iterator[Finding]:
    """Yield the faults of the files; reads all of them, without a lock."""
    yield from _of_queue(directory / QUEUE)
    for path in line_paths(directory):
        with os_errors(path):
            yield from (line.finding(path) for line in damaged_lines(path))
            if (torn := torn_bytes(path)) > 0:
                text = f"{torn} bytes at its end are of a line that was not written to its end"
                yield Finding(path.name, text, is_harmless=True)
    for path in sorted(directory.glob("history-????-??.json")):
        yield from _of_old_history(path)


def line_paths(directory: Path) -> list[Path]:
    """Return the files of history and audit log with one record per line."""
    return [*sorted(directory.glob("history-????-??.jsonl")), *sorted(directory.glob("audit-????-??.jsonl"))]


def damaged_lines(path: Path) -> Iterator[DamagedLine]:
    """Yield the complete but unreadable lines of a file of history or audit log."""
    check = _check_history if path.name.startswith("history-") else _check_audit
    start = 0
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        for number, line in enumerate(file, 1):
            end = start + len(line)
            if line.endswith(b"\n"):
                yield from _checked(lambda line=line: check(line, path), number, start, end)  # type: ignore[misc]
            start = end


def _checked(check: Callable[[], None], number: int, start: int, end: int) -> Iterator[DamagedLine]:
    try:
        check()
    except _ERRORS as error:
        why = error.what if isinstance(error, GputuiError) else f"it cannot be read: {error}"
        yield DamagedLine(number, start, end, why, isinstance(error, StoreNewerError))


def torn_bytes(path: Path) -> int:
    """Return the length of an incomplete last line: its write is in progress, or a crash interrupted it."""
    from gputui.store.files import whole_lines

    fd = open_file(path, os.O_RDONLY)
    try:
        return os.fstat(fd).st_size - whole_lines(fd)
    finally:
        os.close(fd)


class _HistoryRecord(Struct):
    id: int
    job: dict[str, Any]
    schema: int = SCHEMA


def _check_history(line: bytes, path: Path) -> None:
    found = decode_json(line, _HistoryRecord)
    check_schema(found.schema, path)
    tables = {JOBS: {str(found.id): found.job}}
    migrate(tables, found.schema)
    decode_job(found.id, tables[JOBS][str(found.id)])


def _check_audit(line: bytes, path: Path) -> None:
    del path
    document = decode_json(line, dict[str, Any])
    generation, start, place = document.pop("id")
    if not all(type(number) is int for number in (generation, start, place)):
        raise ValueError("its id is no id")
    decode_audit(document)


def _of_old_history(path: Path) -> Iterator[Finding]:
    """Check a month of version 0.1, a TinyDB file."""
    try:
        tables = parse_month(read_file(path)[0], path)
    except _ERRORS as error:
        yield Finding(path.name, error.what if isinstance(error, GputuiError) else str(error))
        return
    yield from _of_table(path.name, tables.get(JOBS, {}), "job", decode_job)


def _of_queue(snapshot: Path) -> Iterator[Finding]:
    replica = Replica(snapshot)
    try:
        if not snapshot.exists():
            yield Finding(snapshot.name, "it is missing")
            return
        try:
            state = replica.refresh()
        except StoreFormatError as error:
            yield Finding(_named(error.where), error.what)
            return
        told = [sentence.partition(": ") for sentence in replica.damage]
        yield from (Finding(_named(path), text) for path, _, text in told)
        if replica.loss is not None and all(path != str(replica.loss.path) for path, _, _ in told):
            yield Finding(replica.loss.path.name, replica.loss.what)
        yield from _of_tables(snapshot, state)
        yield from _of_ends(snapshot, state)
    finally:
        replica.close()


def _of_tables(snapshot: Path, state: LoadedQueue) -> Iterator[Finding]:
    """Check that every document in the queue can be decoded."""
    jobs = state.tables.get(JOBS, {})
    yield from _of_table(snapshot.name, jobs, "job", decode_job)
    yield from _of_table(snapshot.name, state.tables.get(RECURRING, {}), "recurring job", decode_recurring)
    controls = state.tables.get(CONTROLS, {}).get("1", {})
    yield from _of_table(snapshot.name, {"1": controls}, "controls", lambda _, document: decode_controls(document))
    for key, document in state.audit:
        try:
            decode_audit(document)
        except _ERRORS as error:
            yield Finding(journal_path(snapshot, key[0]).name, f"audit entry at byte {key[1]}: {error}")
    beyond = sorted(int(key) for key in jobs if is_id(key) and int(key) >= state.next_id)
    if beyond:
        yield Finding(
            snapshot.name, f"job {beyond[0]} has an id that was not given out yet: the next is {state.next_id}"
        )


def _of_table(
    name: str, table: Mapping[str, Document], noun: str, decode: Callable[[int, Document], object]
) -> Iterator[Finding]:
    for key, document in table.items():
        try:
            decode(int(key) if is_id(key) else _no_id(key), document)
        except _ERRORS as error:
            yield Finding(name, f"{noun} {key}: {error.what if isinstance(error, GputuiError) else error}")


def _no_id(key: str) -> int:
    raise ValueError("its id is not a number")


def _of_ends(snapshot: Path, state: LoadedQueue) -> Iterator[Finding]:
    """Report traces of a crash: an incomplete line of the journal, an incomplete write record."""
    journal, lock = journal_path(snapshot, state.meta.generation), lock_path(snapshot)
    size = journal.stat().st_size if journal.exists() else 0
    if size > state.offset:
        text = f"{size - state.offset} bytes at its end are of a write that was never acknowledged"
        yield Finding(journal.name, text, is_harmless=True)
    if lock.exists() and lock.stat().st_size and read_record_at(lock) is None:
        text = "the record of the last write cannot be read; the next write renews it"
        yield Finding(lock.name, text, is_harmless=True)


def _named(where: str | None) -> str:
    return Path(where).name if where else QUEUE
