"""Queue, history and audit log as lines of JSON, for other programs and for another state directory.

The first line names the format and its version, the last one has the number of lines and their checksum. Each line in
between has a `kind`: `job`, `recurring`, `controls`, `history` or `audit`. All ids are kept, as is the next free id.
A directory is filled as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
import re
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
from msgspec.structs import replace

from gputui.domain.access import AuditEntry
from gputui.domain.decoding import convert as converted
from gputui.domain.decoding import decode_json
from gputui.domain.errors import StoreAccessError, StoreFormatError
from gputui.domain.job_spec import JobId, JobSpec
from gputui.domain.settings import StoreSettings
from gputui.domain.state import JobState
from gputui.domain.text import user_name
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
    encode,
    id_ranges,
    is_id,
)
from gputui.store.files import (
    OTHERS_WRITE,
    QUEUE,
    FileAccess,
    StoreLock,
    append_lines,
    check_file_system,
    closed_after,
    open_directory,
    open_file,
    os_errors,
    sync_directory,
)
from gputui.store.history import AuditFiles, entry_of, job_line, job_of
from gputui.store.queue_files import SCHEMA, Meta, Tables, lock_path, parse_month
from gputui.store.storage import LoadedQueue, begin_queue
from gputui.store.tinydb_store import TinyJobStore

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
                status = staging.stat()
                if os.geteuid() == 0:
                    os.chown(directory, status.st_uid, status.st_gid)
                else:
                    with suppress(PermissionError):
                        os.chown(directory, -1, status.st_gid)
                directory.chmod(stat.S_IMODE(status.st_mode))
            for path in sorted(
                staging.iterdir(), key=lambda each: (each.name == QUEUE, not each.name.startswith(QUEUE), each.name)
            ):
                target = directory / path.name
                if target.exists() or target.is_symlink():
                    hint = "another gputui began a queue there: stop it, and name an empty or a new directory"
                    raise StoreAccessError(f"{path.name} appeared meanwhile", where=str(directory), hint=hint)
                path.rename(target)
                sync_directory(directory)
            staging.rmdir()
            sync_directory(directory)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        if is_new:
            with suppress(OSError):
                directory.rmdir()
        raise


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
        for value in chain((header,), _lines_of(state, files)):
            yield (line := msgspec.json.encode(value) + b"\n")
            total.update(line)
            count += 1
    yield msgspec.json.encode(_End(count, total.hexdigest())) + b"\n"


def _lines_of(state: LoadedQueue, files: list[CapturedFile]) -> Iterator[_ExportLine]:
    """Yield queue, history and audit log; unreadable lines are omitted, as everywhere else."""
    for table, kind in _TABLES.items():
        for key, document in state.tables.get(table, {}).items():
            if is_id(key):
                yield _ExportLine(kind, int(key), None, document)
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


def import_lines(directory: Path, lines: Iterable[bytes], source: str) -> ExportHeader:
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


class _Import(Struct):
    """Reader of an export: collects the queue, and writes history and audit log as it reads them."""

    _directory: Path
    _access: FileAccess
    _source: str
    tables: Tables = field(default_factory=lambda: {JOBS: {}})
    _header: ExportHeader | None = None
    _end: _End | None = None
    _sum: Any = field(default_factory=hashlib.sha256)
    _count: int = 0
    _pending: list[_ExportLine] = field(default_factory=list)

    def take(self, line: bytes, number: int) -> None:
        where = f"{self._source}, line {number}"
        if self._end is not None:
            raise StoreFormatError("there is a line behind the last one", where=where, hint="export it again")
        if self._header is None:
            self._header = _header(line, where)
        else:
            self._add(line, where)
        if self._end is None:
            self._sum.update(line)
            self._count += 1

    def _add(self, line: bytes, where: str) -> None:
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
        audit = [(found.key, found.document) for found in self._pending if found.kind == "audit" and found.key]
        for _, document in audit:
            decode_audit(document)
        AuditFiles(self._directory, self._access).append(audit)
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
        converted({"generation": 1, "next_id": 1, "store_id": header.store_id}, Meta)
    except msgspec.MsgspecError:
        header = None
    if header is None or header.kind != "gputui-export":
        raise StoreFormatError("it is no export", where=where, hint="name a file that `gputui state export` wrote")
    if header.version > VERSION or header.schema > SCHEMA:
        raise StoreFormatError("a newer gputui wrote it", where=where, hint="upgrade gputui")
    return header


WARRANTS = "warrants"
NO_WARRANT = "none"
"""Warrant of a job of which nothing proves the submitter: it never starts."""
HELD = "nothing proves who submitted it: submit it again"
"""Reason for which a waiting job without a warrant is held."""
_WARRANT = re.compile(r"(\d{1,10})/([0-9a-f]{24})", re.ASCII)
_LARGEST = 16 * 1024**2
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_SCHEDULERS = "attempts"
"""Directory whose directories keep their owners: with a member's rights alone may a member's attempts be ended."""
_COPY = ".converted."
"""Beginning of the name of a copy that is not whole yet."""
_GONE = "warrants.done"
_CLOSED = 0o700
_PRIVATE = 0o600


class Converted(Struct):
    """Result of a conversion."""

    proven: int = 0
    """Live jobs that a warrant proves."""
    held: list[JobId] = msgspec.field(default_factory=list)
    """Waiting jobs that are held because nothing proves who submitted them."""
    paused: list[JobId] = msgspec.field(default_factory=list)
    """Recurring jobs that are paused for the same reason."""
    left: list[str] = msgspec.field(default_factory=list)
    """Files that stay as they are, because they have another name or are none of ours."""


def is_shared(directory: Path) -> bool:
    """Return whether others than the owner may write the state directory, or could until a conversion failed."""
    try:
        return bool(directory.stat().st_mode & OTHERS_WRITE) or (directory / WARRANTS).is_dir()
    except FileNotFoundError:
        return False


def convert(directory: Path, settings: StoreSettings, now: datetime) -> Converted:
    """Give the directory and its files to this user alone, and record the proven submitters of its jobs.

    The caller has the leadership, and a backup. From the first step on no member reaches a file by its name; files that
    members may still have open are replaced by copies. May be repeated after a failure.
    """
    is_to_be_proven = is_shared(directory)
    with os_errors(directory):
        if is_to_be_proven and not (directory / WARRANTS).is_dir():
            (directory / WARRANTS).mkdir()  # until the end it tells a repetition to believe nothing that members wrote
        os.chown(directory, os.geteuid(), os.getegid())
        directory.chmod(_CLOSED)
    found = Converted()
    with closing(TinyJobStore(directory, settings)) as store:
        if is_to_be_proven:
            _record_submitters(store, directory / WARRANTS, now, found)
        store.storage.checkpoint()
    with os_errors(directory):
        _close(directory, found)
    return found


def _submitter(folder: Path, store_id: str, spec: JobSpec) -> int | None:
    """Return the uid of the user who submitted exactly this, by a warrant in the folder; None: nothing proves it."""
    match = _WARRANT.fullmatch(spec.warrant)
    if match is None:
        return None
    uid = int(match[1])
    try:
        content = _warrant(folder, match[1], match[2], uid)
    except (OSError, msgspec.DecodeError):
        return None
    is_his = content == {"store": store_id, "runs": encode(spec.what_runs)}
    return uid if is_his and not (uid == 0 and spec.is_host) else None


def _warrant(folder: Path, user: str, name: str, uid: int) -> Any:
    """Return the content of a warrant; raises OSError for one that others than its submitter can have written."""
    with closed_after(os.open(folder, _DIRECTORY)) as root:
        place = os.open(user, _DIRECTORY, dir_fd=root)
    with closed_after(place):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        with os.fdopen(fd, "rb") as file:
            status = os.fstat(fd)
            if not (_is_of(uid, os.fstat(place)) and _is_of(uid, status)):
                raise PermissionError
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > _LARGEST:
                raise PermissionError
            return decode_json(file.read())


def _is_of(uid: int, status: os.stat_result) -> bool:
    return status.st_uid == uid and not status.st_mode & OTHERS_WRITE


def _record_submitters(store: TinyJobStore, warrants: Path, now: datetime, found: Converted) -> None:
    with store.transaction() as transaction:
        for job in list(transaction.jobs().values()):
            uid = _submitter(warrants, store.store_id, job.spec)
            marked = job.evolve(spec=_marked(job.spec, uid), submitted_uid=uid)
            if uid is not None:
                marked = marked.evolve(submitted_by=user_name(uid))
            elif job.state is JobState.PENDING:  # it starts for nobody, not even if an operator releases it
                marked = marked.evolve(held=True, hold_reason=HELD, held_by="", held_at=now)
            transaction.put(marked)
            found.proven += uid is not None and not job.state.is_terminal
            found.held += job.ids if uid is None and job.state is JobState.PENDING else ()
        for entry in list(transaction.recurring().values()):
            uid = _submitter(warrants, store.store_id, entry.submission.spec)
            submission = replace(entry.submission, spec=_marked(entry.submission.spec, uid))
            entry = replace(entry, submission=submission)
            if uid is not None:
                transaction.put_recurring(replace(entry, uid=uid, added_by=user_name(uid)))
            else:
                found.paused += [] if entry.paused else [entry.id]
                transaction.put_recurring(replace(entry, paused=True))
        me = os.geteuid()
        after = f"{found.proven} jobs proven, {len(found.held)} held"
        transaction.audit(AuditEntry(now, me, user_name(me), "convert", "queue", "shared by a group", after))


def _marked(spec: JobSpec, uid: int | None) -> JobSpec:
    """Return the spec; one that nothing proves gets a warrant that is none. A proof stays, for a repetition."""
    return spec if uid is not None or spec.warrant else replace(spec, warrant=NO_WARRANT)


def _close(directory: Path, found: Converted) -> None:
    """Give all files to this user; those at the top, to which members wrote, are replaced by copies."""
    for partial in directory.glob(f"{_COPY}*"):  # of a conversion that failed
        partial.unlink()
    _remove(directory / _GONE)
    for path in sorted(directory.iterdir()):
        status = path.lstat()
        if stat.S_ISSOCK(status.st_mode):
            path.unlink()
        elif stat.S_ISREG(status.st_mode):
            _replace(path, found)
        elif stat.S_ISDIR(status.st_mode) and path.name == WARRANTS:
            continue  # it goes last: without it, this is no shared directory any more
        elif stat.S_ISDIR(status.st_mode) and path.name != _OF_SCHEDULERS:
            _give(path, found)
        elif stat.S_ISLNK(status.st_mode) and status.st_uid == os.geteuid() and path.is_dir():  # on another disk
            _give(path.resolve(), found)
        elif stat.S_ISDIR(status.st_mode):
            with closed_after(os.open(path, _DIRECTORY)) as fd:
                _give_one(fd, _CLOSED)
        else:
            found.left.append(str(path))
    if os.path.lexists(directory / WARRANTS):
        (directory / WARRANTS).rename(directory / _GONE)  # all at once: a part of them would prove a part of the jobs
    sync_directory(directory)
    _remove(directory / _GONE)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _replace(path: Path, found: Converted) -> None:
    """Replace a file by a copy that no process of a member has open."""
    new = path.with_name(f"{_COPY}{os.getpid()}")
    with closed_after(open_file(path, os.O_RDONLY)) as source:
        status = os.fstat(source)
        if status.st_nlink != 1:
            found.left.append(str(path))
            return
        target = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
        with os.fdopen(source, "rb", closefd=False) as old, os.fdopen(target, "wb") as file:
            os.fchmod(target, _PRIVATE)
            shutil.copyfileobj(old, file, 1 << 20)
            file.flush()
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fsync(target)
        new.replace(path)


def _give(folder: Path, found: Converted) -> None:
    """Give a directory and all in it to this user, without following a link."""
    for place, _, files, at in os.fwalk(folder, follow_symlinks=False):
        _give_one(at, _CLOSED)
        for name in files:
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
            except OSError as error:
                found.left.append(f"{place}/{name}: {error.strerror or 'it cannot be opened'}")
                continue
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    found.left.append(f"{place}/{name}: it is no file")
                elif status.st_nlink != 1:
                    found.left.append(f"{place}/{name}: it has another name (a hard link)")
                else:
                    _give_one(fd, _PRIVATE)
            finally:
                os.close(fd)


def _give_one(fd: int, mode: int) -> None:
    os.fchown(fd, os.geteuid(), os.getegid())
    os.fchmod(fd, mode)
