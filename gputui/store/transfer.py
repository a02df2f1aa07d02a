"""Queue, history and audit log as lines of JSON, for other programs and for another state directory.

The first line names the format and its version, the last one has the number of lines and their checksum. Each line in
between has a `kind`: `job`, `recurring`, `controls`, `history` or `audit`. All ids are kept, as is the next free id.
A directory is filled as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import convert, decode_json
from gputui.domain.errors import StoreAccessError, StoreFormatError
from gputui.domain.settings import StoreSettings
from gputui.store.backup import CapturedFile, captured_queue
from gputui.store.codec import (
    CONTROLS,
    JOBS,
    RECURRING,
    Document,
    decode_audit,
    decode_controls,
    decode_job,
    decode_recurring,
    id_ranges,
    is_id,
)
from gputui.store.files import (
    QUEUE,
    FileAccess,
    StoreLock,
    append_lines,
    check_file_system,
    open_directory,
    os_errors,
    sync_directory,
)
from gputui.store.history import AuditFiles, entry_of, job_line, job_of
from gputui.store.queue_files import SCHEMA, Meta, Tables, lock_path, parse_month
from gputui.store.replica import LoadedQueue
from gputui.store.storage import begin_queue

_OF_THE_SYSTEM = {"lost+found"}


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Yield a new directory, whose content is moved into the empty or missing `directory` at the end of the block.

    The journal and its record go first and `queue.json` last: gputui refuses to begin a new queue in a directory where
    that was interrupted. Raises StoreAccessError for a directory that has something in it.
    """
    is_new = not directory.exists()
    with os_errors(directory):
        if not is_new and (found := sorted({path.name for path in directory.iterdir()} - _OF_THE_SYSTEM)):
            hint = "name an empty or a new directory by --state; nothing is overwritten"
            raise StoreAccessError(f"it is not empty: {found[0]} is there", where=str(directory), hint=hint)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_file_system(directory)
    staging = directory / f".filling.{os.getpid()}"
    try:
        with os_errors(staging):
            staging.mkdir(mode=0o700)
            yield staging
            os.sync()
            if is_new:
                _take_over(staging, directory)
            _move(staging, directory)
            staging.rmdir()
            sync_directory(directory)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                directory.rmdir()
        raise


def _move(staging: Path, directory: Path) -> None:
    """Move the content; raises StoreAccessError where another process has put something of its names meanwhile."""
    first = sorted(staging.iterdir(), key=lambda path: (path.name == QUEUE, not path.name.startswith(QUEUE), path.name))
    for path in first:
        target = directory / path.name
        if target.exists() or target.is_symlink():
            hint = "another gputui began a queue there: stop it, and name an empty or a new directory"
            raise StoreAccessError(f"{path.name} appeared meanwhile", where=str(directory), hint=hint)
        path.rename(target)
        if path.name.startswith(QUEUE):
            sync_directory(directory)


def _take_over(staging: Path, directory: Path) -> None:
    """Give the directory the owner and mode of the one that was filled."""
    status = staging.stat()
    if os.geteuid() == 0:
        os.chown(directory, status.st_uid, status.st_gid)
    else:
        with suppress(PermissionError):
            os.chown(directory, -1, status.st_gid)
    directory.chmod(stat.S_IMODE(status.st_mode))


VERSION = 1
_TABLES = {JOBS: "job", RECURRING: "recurring", CONTROLS: "controls"}
_BATCH = 1000
"""Lines of history or audit log that are appended at once."""


class ExportHeader(Struct, omit_defaults=False):
    """First line of an export."""

    gputui: str
    store_id: str
    made_at: datetime
    generation: int
    next_id: int
    schema: int = SCHEMA
    kind: str = "gputui-export"
    version: int = VERSION


class _ExportLine(Struct, omit_defaults=True):
    """Line between the first and the last."""

    kind: str
    id: int | None = None
    month: str | None = None
    """Month of its history file."""
    document: dict[str, Any] = field(default_factory=dict)
    key: tuple[int, int, int] | None = None
    """Key of an entry of the audit log."""


class _End(Struct):
    """Last line."""

    lines: int
    sha256: str
    kind: str = "end"


# export


def export_lines(directory: Path, now: datetime, version: str) -> Iterator[bytes]:
    """Yield the lines of an export of the state at one moment, while others use the directory."""
    total, count = hashlib.sha256(), 0
    with captured_queue(directory) as (state, files):
        meta = state.meta
        header = ExportHeader(version, meta.store_id, now, meta.generation, state.next_id)
        for value in chain((header,), _of_queue(state), _of_files(files, state)):
            yield (line := _encoded(value))
            total.update(line)
            count += 1
    yield _encoded(_End(count, total.hexdigest()))


def _encoded(value: Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _of_queue(state: LoadedQueue) -> Iterator[_ExportLine]:
    for table, kind in _TABLES.items():
        for key, document in state.tables.get(table, {}).items():
            if is_id(key):
                yield _ExportLine(kind, int(key), None, document)


def _of_files(files: list[CapturedFile], state: LoadedQueue) -> Iterator[_ExportLine]:
    """Yield history and audit log; unreadable lines are omitted, as everywhere else."""
    for file in files:
        kind, _, month = Path(file.name).stem.partition("-")
        if file.name.endswith(".json"):  # of version 0.1
            for key, document in parse_month(b"".join(file.pieces()), Path(file.name)).get(JOBS, {}).items():
                if is_id(key):
                    yield _ExportLine("history", int(key), month, document)
            continue
        for line in file.lines():
            with suppress(msgspec.MsgspecError, KeyError):
                if kind == "history":
                    job_id, document = job_of(line, Path(file.name))
                    yield _ExportLine("history", job_id, month, document)
                else:
                    place, document = entry_of(line)
                    yield _ExportLine("audit", key=place, document=document)
    for place, document in state.audit:
        yield _ExportLine("audit", document=document, key=place)


# import


def import_lines(directory: Path, settings: StoreSettings, lines: Iterable[bytes], source: str) -> ExportHeader:
    """Fill an empty or missing directory from the lines of an export; return its header.

    Raises StoreFormatError, which names the line, for an export that is not whole; then the directory stays empty.
    """
    with staged(directory) as staging:
        access = open_directory(staging)
        reader = _Import(staging, access, source)
        for number, line in enumerate(lines, 1):
            reader.take(line, number)
        header = reader.finish()
        # in a generation later than those in the audit log
        ends = (end for table in reader.tables.values() for _, end in id_ranges(table))
        next_id = max(header.next_id, max(ends, default=1))
        meta = Meta(header.generation + 1, next_id, header.store_id)
        snapshot = staging / QUEUE
        with closing(StoreLock(lock_path(snapshot), access)) as lock:
            begin_queue(snapshot, meta, reader.tables, access, lock.fd)
    return header


class _Import:
    """Reader of an export: collects the queue, and writes history and audit log as it reads them."""

    def __init__(self, directory: Path, access: FileAccess, source: str) -> None:
        self.tables: Tables = {JOBS: {}}
        self._directory = directory
        self._access = access
        self._audit = AuditFiles(directory, access)
        self._source = source
        self._header: ExportHeader | None = None
        self._end: _End | None = None
        self._sum = hashlib.sha256()
        self._count = 0
        self._pending: list[_ExportLine] = []

    def take(self, line: bytes, number: int) -> None:
        """Read the next line."""
        where = f"{self._source}, line {number}"
        if self._header is None:
            self._header = _header(line, where)
        elif self._end is not None:
            raise StoreFormatError("there is a line behind the last one", where=where, hint="export it again")
        else:
            self._take(line, where)
        if self._end is None:
            self._sum.update(line)
            self._count += 1

    def _take(self, line: bytes, where: str) -> None:
        try:
            found = decode_json(line, _ExportLine)
            if found.kind == "end":
                self._end = decode_json(line, _End)
            elif found.kind in {"history", "audit"}:
                self._pending.append(found)
                if len(self._pending) >= _BATCH:
                    self._flush()
            else:
                table = {kind: name for name, kind in _TABLES.items()}[found.kind]
                _CHECKS[found.kind](found.id or 0, found.document)
                self.tables.setdefault(table, {})[str(found.id)] = found.document
        except (ValueError, KeyError, StoreFormatError) as error:
            text = error.what if isinstance(error, StoreFormatError) else str(error)
            raise StoreFormatError(f"it cannot be read: {text}", where=where, hint="export it again") from None

    def _flush(self) -> None:
        """Append the collected lines of history and audit log to their files."""
        audit = [(found.key, found.document) for found in self._pending if found.kind == "audit" and found.key]
        for _, document in audit:
            decode_audit(document)
        self._audit.append(audit)
        months: dict[str, list[bytes]] = {}
        for found in self._pending:
            if found.kind == "history":
                decode_job(found.id or 0, found.document)
                months.setdefault(found.month or "", []).append(job_line(found.id or 0, found.document))
        for month, lines in months.items():
            datetime.strptime(month, "%Y-%m")  # noqa: DTZ007 - it becomes part of a file name
            append_lines(self._directory / f"history-{month}.jsonl", b"".join(lines), self._access)
        self._pending.clear()

    def finish(self) -> ExportHeader:
        """Return the header; raises StoreFormatError where lines are missing or changed."""
        self._flush()
        if self._header is None or self._end is None:
            raise StoreFormatError("it ends too early", where=self._source, hint="export it again")
        if (self._end.lines, self._end.sha256) != (self._count, self._sum.hexdigest()):
            raise StoreFormatError("lines are missing or were changed", where=self._source, hint="export it again")
        return self._header


_CHECKS: dict[str, Callable[[int, Document], object]] = {
    "job": decode_job,
    "recurring": decode_recurring,
    "controls": lambda _, document: decode_controls(document),
}


def _header(line: bytes, where: str) -> ExportHeader:
    try:
        header = decode_json(line, ExportHeader)
        convert({"generation": 1, "next_id": 1, "store_id": header.store_id}, Meta)
    except msgspec.MsgspecError:
        header = None
    if header is None or header.kind != "gputui-export":
        raise StoreFormatError("it is no export", where=where, hint="name a file that `gputui state export` wrote")
    if header.version > VERSION or header.schema > SCHEMA:
        raise StoreFormatError("a newer gputui wrote it", where=where, hint="upgrade gputui")
    return header
