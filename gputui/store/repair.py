"""Check and repair of a state directory: what cannot be read, and `gputui state repair` of a damaged queue.

Sources of a repair: the snapshot and its journal as far as they are readable; journals of later generations if an older
snapshot was restored; and rescue files, which processes wrote from memory when they noticed the loss.
"""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct, field

from gputui.domain.access import Actor, AuditEntry
from gputui.domain.errors import GputuiError, StoreAccessError, StoreError, StoreFormatError, StoreNewerError
from gputui.domain.kept_data import Finding, Recovery
from gputui.domain.runs import Spans
from gputui.domain.state import JobState
from gputui.domain.text import plural
from gputui.store.codec import (
    CONTROLS,
    JOBS,
    RECURRING,
    Document,
    count_in,
    decode_audit,
    decode_controls,
    decode_job,
    decode_recurring,
    encode,
    is_id,
    iter_ids,
    resolve_overlaps,
)
from gputui.store.files import (
    QUEUE,
    FileAccess,
    StoreLock,
    closed_after,
    keep_ranges,
    open_directory,
    open_file,
    os_errors,
    read_file,
    sync_directory,
    whole_lines,
    write_whole,
)
from gputui.store.history import AuditFiles, HistoryFiles, KeyedEntry, entry_of, job_of, line_paths
from gputui.store.queue_files import (
    SCHEMA,
    JournalEntry,
    Meta,
    Tables,
    WriteRecord,
    journal_lines,
    journal_path,
    lock_path,
    new_store_id,
    parse_month,
    read_record,
)
from gputui.store.storage import (
    LoadedQueue,
    Replica,
    Rescue,
    begin_queue,
    journals,
    next_generation,
    read_rescue,
    rescue_paths,
)

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
        return Finding(f"{path.name}, line {self.number}, byte {self.start}", self.why)


def verify_directory(directory: Path) -> Iterator[Finding]:
    """Yield the faults of the files; reads all of them, without a lock."""
    yield from _of_queue(directory / QUEUE)
    for path in line_paths(directory):
        with os_errors(path):
            yield from (line.finding(path) for line in damaged_lines(path))
            with closed_after(open_file(path, os.O_RDONLY)) as fd:
                torn = os.fstat(fd).st_size - whole_lines(fd)  # a write is in progress, or a crash interrupted it
            if torn > 0:
                text = f"{torn} bytes at its end are of a line that was not written to its end"
                yield Finding(path.name, text, is_harmless=True)
    for path in sorted(directory.glob("history-????-??.json")):
        try:
            tables = parse_month(read_file(path)[0], path)
        except _ERRORS as error:
            yield Finding(path.name, error.what if isinstance(error, GputuiError) else str(error))
            continue
        yield from _of_table(path.name, tables.get(JOBS, {}), "job", decode_job)


def damaged_lines(path: Path) -> Iterator[DamagedLine]:
    """Yield the complete but unreadable lines of a file of history or audit log."""
    is_history = path.name.startswith("history-")
    start = 0
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        for number, line in enumerate(file, 1):
            end = start + len(line)
            try:
                if line.endswith(b"\n") and is_history:
                    decode_job(*job_of(line, path))
                elif line.endswith(b"\n"):
                    decode_audit(entry_of(line)[1])
            except _ERRORS as error:
                why = error.what if isinstance(error, GputuiError) else f"it cannot be read: {error}"
                yield DamagedLine(number, start, end, why, isinstance(error, StoreNewerError))
            start = end


def _of_queue(snapshot: Path) -> Iterator[Finding]:
    replica = Replica(snapshot)
    try:
        if not snapshot.exists():
            yield Finding(snapshot.name, "it is missing")
            return
        try:
            state = replica.refresh()
        except StoreFormatError as error:
            yield Finding(Path(error.where or QUEUE).name, error.what)
            return
        damage = [sentence.partition(": ") for sentence in replica.damage]
        yield from (Finding(Path(path).name, text) for path, _, text in damage)
        if replica.loss is not None and all(path != str(replica.loss.path) for path, _, _ in damage):
            yield Finding(replica.loss.path.name, replica.loss.what)
        yield from _of_tables(snapshot, state)
        # traces of a crash: an incomplete line of the journal, an incomplete write record
        journal, lock = journal_path(snapshot, state.meta.generation), lock_path(snapshot)
        size = journal.stat().st_size if journal.exists() else 0
        if size > state.offset:
            text = f"{size - state.offset} bytes at its end are of a write that was never acknowledged"
            yield Finding(journal.name, text, is_harmless=True)
        if lock.exists() and lock.stat().st_size and read_record(lock) is None:
            text = "the record of the last write cannot be read; the next write renews it"
            yield Finding(lock.name, text, is_harmless=True)
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
            if not is_id(key):
                raise ValueError("its id is not a number")
            decode(int(key), document)
        except _ERRORS as error:
            yield Finding(name, f"{noun} {key}: {error.what if isinstance(error, GputuiError) else error}")


_OVER = {str(state) for state in JobState if state.is_terminal}


class Pieces(Struct):
    """Queue recovered from the sources."""

    problem: str
    store_id: str | None
    tables: Tables
    next_id: int
    known_below: int
    """Id below which every job is certainly here or in history."""
    source: str
    is_complete: bool
    """True if every acknowledged change is here."""
    seen: set[int] = field(default_factory=set)
    """Ids mentioned in a journal; a job removed there is in history."""
    audit: list[KeyedEntry] = field(default_factory=list)
    schema: int = SCHEMA
    """Schema of the damaged files, as far as they tell."""
    settled: list[int] = field(default_factory=list)
    """Jobs that have ended according to history, but not in the recovered queue."""
    doubtful: list[int] = field(default_factory=list)
    """Jobs for which it is unknown whether history or the recovered queue is newer."""


class Repair(Struct, eq=False, weakref=True):
    """Repair of one state directory."""

    _path: Path
    _access: FileAccess
    _history: HistoryFiles
    _migrating: Callable[[int], object]
    """Called with the schema of the damaged files if a repair would convert them."""

    def assess(self) -> Recovery | None:
        """Return the gains and losses of a repair; None if nothing needs repair."""
        pieces = self._pieces()
        return None if pieces is None else self._recovery(pieces)

    def has_rescue_of(self, pid: int) -> bool:
        """Return whether this process has written its queue to a rescue file."""
        return any(path.suffix == f".{pid}" for path in rescue_paths(self._path))

    def carry_out(self, expected: Recovery, now: datetime, actor: Actor) -> Path:
        """Copy the damaged files aside, write the recovered queue, and return the directory of the copies.

        Raises StoreError when the files changed since `expected` was computed.
        """
        with closing(StoreLock(lock_path(self._path), self._access)) as lock, lock.held():
            pieces = self._pieces()
            if pieces is None or self._recovery(pieces) != expected:
                raise StoreError("the files changed meanwhile", where=str(self._path), hint="look again")
            if pieces.schema < SCHEMA:
                self._migrating(pieces.schema)
            aside = self._keep_aside(now)
            rescues = rescue_paths(self._path)
            known = [rescue.meta.generation for path in rescues if (rescue := read_rescue(path))]
            record = read_record(lock_path(self._path))
            generation = max(next_generation(self._path, 0), record.generation if record else 0, *known) + 1
            AuditFiles(self._path.parent, self._access).append(pieces.audit)  # which are in the old journal only
            entry = AuditEntry(now, actor.uid, actor.user, "repair", "the queue", pieces.problem, expected.summary)
            self._write(pieces, generation, entry, lock)
            report = "\n".join([f"{now:%Y-%m-%d %H:%M:%S} UTC, by {actor.user}", *expected.lines, ""])
            with os_errors(aside):
                (aside / "report.txt").write_text(report, encoding="utf-8")
            # all of these were copied aside
            old = [path for number, path in journals(self._path).items() if number < generation]
            for path in (*old, *rescue_paths(self._path)):
                with os_errors(path):
                    path.unlink(missing_ok=True)
        return aside

    # assessment

    def _pieces(self) -> Pieces | None:
        """Recover the queue from its sources; None if nothing is lost."""
        record, (files, problem) = read_record(lock_path(self._path)), self._files()
        if not problem or (files is None and record is None and not journals(self._path)):
            return None
        rescue = self._best_rescue(files, record)
        found = _of_rescue(rescue, files, record) if rescue else self._of_files(files, record)
        found.problem = problem
        found.schema = files.meta.schema if files else record.schema if record else SCHEMA
        if record is not None:
            found.next_id = max(found.next_id, record.next_id)
        self._compare_with_history(found)
        return found

    def _files(self) -> tuple[LoadedQueue | None, str]:
        """Return the queue as far as the files are readable, and the problem in words; empty when all is well."""
        replica = Replica(self._path)
        try:
            state = replica.refresh()
        except StoreNewerError:
            raise
        except StoreFormatError as error:
            return None, f"{error.where}: {error.what}"
        finally:
            replica.close()
        return state, f"{replica.loss.path}: {replica.loss.what}" if replica.loss else ""

    def _best_rescue(self, files: LoadedQueue | None, record: WriteRecord | None) -> tuple[Path, Rescue] | None:
        """Return the latest rescue; None if the files contain as much."""
        store_id = files.meta.store_id if files else record.store_id if record else None
        found = [(path, rescue) for path in rescue_paths(self._path) if (rescue := read_rescue(path))]
        fitting = [one for one in found if store_id is None or one[1].meta.store_id == store_id]
        best = max(fitting, key=lambda one: (one[1].meta.generation, one[1].offset), default=None)
        if best is None or files is None:
            return best
        rescue = best[1]  # it is known to be complete
        if files.meta.generation != rescue.meta.generation:
            return None if files.meta.generation > rescue.meta.generation else best
        data = _bytes_of(journal_path(self._path, rescue.meta.generation))
        has_more = len(data) > rescue.offset and zlib.crc32(memoryview(data)[: rescue.offset]) == rescue.checksum
        return None if has_more else best

    def _of_files(self, files: LoadedQueue | None, record: WriteRecord | None) -> Pieces:
        """Recover from the files only, if no process had the queue in memory."""
        if files is None:
            pieces = Pieces("", record.store_id if record else None, {}, 1, 1, "the journals", is_complete=False)
            later = sorted(journals(self._path))
        else:
            pieces = Pieces(
                "", files.meta.store_id, files.tables, files.next_id, files.meta.next_id, "the files",
                is_complete=False, audit=files.audit,
            )  # fmt: skip
            entries = _entries(journal_path(self._path, files.meta.generation))
            pieces.seen = {key for entry in entries for table in entry.changes.values() for key in iter_ids(table)}
            end = record.generation if record else 0
            later = sorted(one for one in journals(self._path) if files.meta.generation < one <= end)
        for generation in later:
            for entry in _entries(journal_path(self._path, generation)):
                entry.apply(pieces.tables)
                pieces.seen.update(key for table in entry.changes.values() for key in iter_ids(table))
                pieces.next_id = max(pieces.next_id, entry.next_id)
        return pieces

    def _compare_with_history(self, pieces: Pieces) -> None:
        """Find jobs whose move to history is among the lost changes; they must not run again."""
        if pieces.is_complete:
            return
        over = self._history.spans()
        pieces.tables[JOBS] = resolve_overlaps(pieces.tables.get(JOBS, {}), over)
        for key, document in pieces.tables[JOBS].items():
            # each search lists the directory, and few jobs are in both
            is_in_both = is_id(key) and int(key) in over and document.get("state") not in _OVER
            found = self._history.find(int(key)) if is_in_both else None
            if found is not None:
                in_history, here = (
                    sum(1 for attempt in each.get("attempts", ()) if attempt.get("ended_at"))
                    for each in (found[1], document)
                )
                (pieces.settled if in_history > here else pieces.doubtful).append(int(key))

    def _recovery(self, pieces: Pieces) -> Recovery:
        here = {job_id for name in (JOBS, RECURRING) for job_id in iter_ids(pieces.tables.get(name, {}))}
        expected = set(range(pieces.known_below, pieces.next_id)) - here - pieces.seen
        over = self._history.spans() if expected else Spans()
        lost = sorted(job_id for job_id in expected if job_id not in over)
        return Recovery(
            problem=pieces.problem,
            source=pieces.source,
            jobs=sum(map(count_in, pieces.tables.get(JOBS, {}).values())) - len(pieces.settled),
            lost=tuple(lost),
            is_complete=pieces.is_complete,
            settled=tuple(pieces.settled),
            doubtful=tuple(pieces.doubtful),
        )

    # writing

    def _keep_aside(self, now: datetime) -> Path:
        """Copy the damaged files into a new directory, durably."""
        aside = _new_directory(self._path.parent, now)
        with os_errors(aside):
            for path in sorted(self._path.parent.glob(f"{self._path.name}*")):
                if path.is_file() and not path.is_symlink() and path.suffix != ".tmp":
                    with suppress(FileNotFoundError):  # its process removed the rescue meanwhile
                        shutil.copy2(path, aside / path.name)
                        with (aside / path.name).open("rb") as copy:
                            self._access.apply_to_file(copy.fileno())
                            os.fsync(copy.fileno())
            sync_directory(aside)
        return aside

    def _write(self, pieces: Pieces, generation: int, entry: AuditEntry, lock: StoreLock) -> None:
        """Write the recovered queue, with the entry about it in its journal."""
        tables = {JOBS: {}, **pieces.tables}
        for job_id in pieces.settled:
            tables[JOBS].pop(str(job_id))
        for job_id in pieces.doubtful:
            tables[JOBS][str(job_id)] = {**tables[JOBS][str(job_id)], "held": True}
        if not pieces.is_complete:
            reason = f"the queue was repaired on {entry.at:%Y-%m-%d %H:%M} UTC: check it, then run gputui unpause"
            pause = {"paused": True, "pause_reason": reason, "paused_by": "gputui state repair", "paused_at": None}
            tables[CONTROLS] = {"1": {**tables.get(CONTROLS, {}).get("1", {}), **pause}}
        meta = Meta(generation, pieces.next_id, pieces.store_id or new_store_id())
        line = JournalEntry(audit=[encode(entry)], next_id=pieces.next_id)
        begin_queue(self._path, meta, tables, self._access, lock.fd, line)


def repair_of(directory: Path, migrating: Callable[[int], object] = lambda _: None) -> Repair:
    """Return the repair of an existing state directory; raises StoreAccessError when there is none."""
    if not directory.is_dir():
        raise StoreAccessError("there is no state directory", where=str(directory), hint="name it by --state")
    access = open_directory(directory)
    return Repair(directory / QUEUE, access, HistoryFiles(directory, access), migrating)


def _of_rescue(found: tuple[Path, Rescue], files: LoadedQueue | None, record: WriteRecord | None) -> Pieces:
    """Recover from a process's memory, adding jobs that are only in the files."""
    path, rescue = found
    place = (rescue.meta.generation, rescue.offset)
    pieces = Pieces(
        problem="",
        store_id=rescue.meta.store_id,
        tables=rescue.tables,
        next_id=max(rescue.next_id, files.next_id if files else 1),
        known_below=rescue.next_id,
        source=f"the memory of process {path.suffix[1:]}",
        is_complete=record is None or place >= (record.generation, record.length),
        audit=rescue.audit,
    )
    for key, document in files.tables.get(JOBS, {}).items() if files else ():
        if is_id(key) and int(key) >= rescue.next_id:
            pieces.tables[JOBS][key] = document
    return pieces


def _entries(path: Path) -> Iterable[JournalEntry]:
    return [line.entry for line in journal_lines(_bytes_of(path)) if line.entry is not None]


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


_ID = re.compile(rb'\{"id":(\d{1,18}),')


class DamagedFile(Struct):
    """File of history or audit log with lines that cannot be read."""

    path: Path
    lines: list[DamagedLine]
    names: list[str]
    """Jobs or targets that the lines name, where they can be told."""

    @property
    def sentence(self) -> str:
        first = self.lines[0]
        about = f", of {', '.join(self.names[:20])}" if self.names else ""
        count = plural(len(self.lines), "line")
        return f"{self.path.name}: {count} cannot be read{about} (line {first.number}: {first.why})"


def damaged_files(directory: Path) -> list[DamagedFile]:
    """Return the files with lines that cannot be read; those that a newer gputui wrote are left alone."""
    found = []
    for path in line_paths(directory):
        with os_errors(path):
            lines = [line for line in damaged_lines(path) if not line.is_newer]
            if lines:
                names = []
                with path.open("rb") as file:
                    for line in lines if path.name.startswith("history-") else ():
                        file.seek(line.start)
                        if match := _ID.match(file.read(40)):  # its beginning is readable
                            names.append(f"job {int(match[1])}")
                found.append(DamagedFile(path, lines, names))
    return found


def move_aside(directory: Path, damaged: list[DamagedFile], now: datetime) -> Path:
    """Move the lines into files of the same names in a new directory, durably; return that directory."""
    access = open_directory(directory)
    aside = _new_directory(directory, now)
    for file in damaged:
        content = file.path.read_bytes()
        write_whole(aside / file.path.name, b"".join(content[line.start : line.end] for line in file.lines), access)
        edges = [0, *(edge for line in file.lines for edge in (line.start, line.end))]
        kept: list[tuple[int, int | None]] = list(zip(edges[::2], edges[1::2], strict=False))
        keep_ranges(file.path, [*kept, (edges[-1], None)], access)
    report = "\n".join([f"{now:%Y-%m-%d %H:%M:%S} UTC", *(file.sentence for file in damaged), ""])
    write_whole(aside / "report.txt", report.encode(), access)
    return aside


def _new_directory(directory: Path, now: datetime) -> Path:
    name = f"damaged-{now:%Y%m%dT%H%M%SZ}"
    number = 1
    while True:
        aside = directory / (name if number == 1 else f"{name}-{number}")
        with os_errors(aside):
            try:
                aside.mkdir(mode=0o700)
            except FileExistsError:
                number += 1
                continue
            sync_directory(directory)
        return aside
