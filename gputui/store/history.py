"""What left the queue: history of finished jobs and audit log, append-only files of lines, one per month.

Version 0.1 kept one TinyDB file of history per month. Those files are still read and never changed.

Finished jobs move here from the queue, and old months are removed whole. The oldest that is left is cut: a shorter copy
takes its place. So a scheduler that is killed leaves either file, and the next one continues. Each step removes or cuts
one file.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field

from gputui.domain.access import Actor, AuditEntry
from gputui.domain.decoding import JsonDecoder, convert, decode_json, json_decoder
from gputui.domain.errors import GputuiError, StoreFormatError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.kept_data import KeepLimits, KeptData
from gputui.domain.runs import Runs, Spans, find, joined_spans
from gputui.domain.settings import StoreSettings
from gputui.domain.text import plural
from gputui.store.codec import JOBS, UNREADABLE, Document, decode_job, is_id, part_of_entry, runs_in
from gputui.store.files import (
    FileAccess,
    FileStamp,
    append_lines,
    keep_ranges,
    open_file,
    os_errors,
    read_file,
    remove_lines,
    stamp_of,
)
from gputui.store.queue_files import SCHEMA, AuditKey, Table, check_schema, migrate, parse_month

if TYPE_CHECKING:
    from gputui.domain.accounting import JobRecord


def jobs_to_archive(jobs: Iterable[Job], settings: StoreSettings, now: datetime) -> list[Job]:
    """Return the finished jobs to move to history, oldest first: too old, or beyond the number to keep.

    Elements of an array on which a waiting job depends stay, so that the scheduler sees the end of all of them.
    """
    known = list(jobs)
    awaited = {
        job_id
        for job in known
        if not job.state.is_terminal and (job.spec.after or job.spec.after_any)
        for job_id in job.spec.after + job.spec.after_any
    }
    finished = sorted(
        (job for job in known if job.has_ended and (job.array is None or job.array.id not in awaited)),
        key=lambda job: (job.end, job.id),
    )
    surplus = len(finished) - settings.keep_finished
    oldest_kept = now - settings.history_after
    return [job for place, job in enumerate(finished) if place < surplus or job.end < oldest_kept]


def month_of(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m}"


def month_files(directory: Path, kind: str) -> list[Path]:
    """Return the files `KIND-YYYY-MM.jsonl`, oldest month first, and before one the `.json` of version 0.1."""
    found = [*directory.glob(f"{kind}-????-??.json"), *directory.glob(f"{kind}-????-??.jsonl")]
    return sorted(found, key=lambda path: (path.stem, path.suffix))


CHECK_EVERY = timedelta(hours=1)
SLACK = timedelta(days=1)
"""Time for which lines may stay beyond their age, so that a file is cut at most once a day."""
MOST_LINES = 50_000
"""Lines that are read in one step."""
_SPARE = 10
"""Part of the size, as a divisor, that is freed beyond the limit, so that it is not reached again at once."""


class LineFiles(Struct):
    """Files of a month each: `PREFIX-YYYY-MM.jsonl`, or of version 0.1 `PREFIX-YYYY-MM.json`."""

    directory: Path
    kind: str
    time_of: Callable[[bytes], datetime | None]
    """Returns the time of a line; None for a damaged one."""
    limits: KeepLimits

    def kept(self) -> KeptData:
        """Return size, number and oldest entry of the files, with their limits."""
        paths = month_files(self.directory, self.kind)
        oldest = self._first_time(paths[0]) if paths else None
        return KeptData(self.kind, sum(map(_size, paths)), len(paths), oldest, self.limits)

    def trim(self, access: FileAccess, now: datetime) -> bool:
        """Remove or cut the oldest file where a limit asks for it; return whether it did."""
        paths = month_files(self.directory, self.kind)
        if not paths or not self.limits.are_set:
            return False
        oldest, total = paths[0], sum(map(_size, paths))
        surplus, max_age, most = 0, self.limits.max_age, self.limits.max_size
        if max_age is not None:
            before = now - max_age
            if (_month(oldest) + timedelta(days=31)).replace(day=1) <= before:
                surplus = _size(oldest)
            elif oldest.suffix != ".json":
                first = self._first_time(oldest)
                if first is not None and first < before - min(SLACK, max_age / 10):
                    surplus = self._length(oldest, lambda _, at: at < before)
        if most is not None and total > most:
            too_much = total - most + most // _SPARE
            if too_much < _size(oldest):
                too_much = self._length(oldest, lambda start, _: start < too_much)
            surplus = max(surplus, too_much)
        if surplus <= 0:
            return False
        if surplus >= _size(oldest) or oldest.suffix == ".json":
            remove_lines(oldest)
        else:
            keep_ranges(oldest, [(surplus, None)], access)
        return True

    def _length(self, path: Path, is_surplus: Callable[[int, datetime], bool]) -> int:
        """Return the length of the lines at the beginning of which that is so; a damaged line goes with the one before.

        `is_surplus` gets the offset and the time of a line.
        """
        length = 0
        for start, line in islice(_lines(path), MOST_LINES):
            at = self.time_of(line)
            if at is not None and not is_surplus(start, at):
                break
            length = start + len(line)
        return length

    def _first_time(self, path: Path) -> datetime | None:
        """Return the time of the first line that can be read; of a file of 0.1 the beginning of its month."""
        if path.suffix == ".json":
            return _month(path)
        times = (self.time_of(line) for _, line in islice(_lines(path), 100))
        return next((at for at in times if at is not None), None)


class Trimmer(Struct):
    """Keeps history and audit log within their limits, one step at a time."""

    directory: Path
    settings: StoreSettings
    access: FileAccess
    _due: datetime | None = None
    _is_begun: bool = False

    def step(self, now: datetime) -> None:
        """Remove or cut at most one file of each kind; once an hour, and again at once while there is more to do."""
        if self._due is not None and self._due - CHECK_EVERY <= now < self._due:
            return
        if not self._is_begun:
            self._is_begun = True
            for path in self.directory.glob("*-????-??.jsonl.*.tmp"):
                with os_errors(path):  # only the scheduler trims, so nobody else writes a copy now
                    path.unlink(missing_ok=True)
        has_more = [files.trim(self.access, now) for files in line_files(self.directory, self.settings)]
        self._due = None if any(has_more) else now + CHECK_EVERY


def line_files(directory: Path, settings: StoreSettings) -> tuple[LineFiles, LineFiles]:
    history = KeepLimits(settings.history_max_age, settings.history_max_size)
    audit = KeepLimits(settings.audit_max_age, settings.audit_max_size)
    return (
        LineFiles(directory, "history", _time_of_job, history),
        LineFiles(directory, "audit", _time_of_entry, audit),
    )


class _TimedEntry(msgspec.Struct):
    at: datetime


class _TimedJob(msgspec.Struct):
    id: int
    job: dict[str, Any]


_ENTRY = json_decoder(_TimedEntry)
_JOB = json_decoder(_TimedJob)


def _time_of_entry(line: bytes) -> datetime | None:
    with suppress(msgspec.MsgspecError):
        return _ENTRY.decode(line).at
    return None


def _time_of_job(line: bytes) -> datetime | None:
    """Return when the job of a line ended; None for a damaged line."""
    with suppress(msgspec.MsgspecError, GputuiError):
        found = _JOB.decode(line)
        return decode_job(found.id, found.job).end
    return None


_LONGEST = 64 * 1024**2
"""Bytes."""


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of each line, up to one that is longer than any of ours."""
    start = 0
    with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        while (line := file.readline(_LONGEST)) and len(line) < _LONGEST:
            yield start, line
            start += len(line)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _month(path: Path) -> datetime:
    year, month = path.stem.split("-")[-2:]
    return datetime(int(year), int(month), 1, tzinfo=UTC)


_LINE = re.compile(rb'^\{"id":(\d{1,18}),(?:"runs":(\[[\d,\[\]]*\]),)?')
NO_MONTH = "9999-99"
"""Month after all others."""


class _HistoryLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Line of an appended job; id and runs come first, so that jobs are found without decoding."""

    id: int
    runs: list[list[int]] = []
    """Runs of an entry, a copy of those in the job."""
    schema: int
    job: Document


class _Index(Struct):
    """Index of the jobs in a file, up to `read_to`."""

    inode: int
    read_to: int = 0
    damaged: int = 0
    """Number of lines that are not jobs."""
    starts: dict[int, int] = field(default_factory=dict)
    """Offset of the last line of each single job."""
    entries: dict[int, Runs] = field(default_factory=dict)
    """Elements of entries by the offsets of their lines."""
    spans: Spans = Spans()

    def rows(self) -> list[_HistoryPlace]:
        """Return the last line of each job and all lines of entries, last line first."""
        rows = [_HistoryPlace(job_id, start) for job_id, start in self.starts.items()]
        rows += [_HistoryPlace(runs[0].id, start, runs) for start, runs in self.entries.items()]
        return sorted(rows, key=lambda row: row.start, reverse=True)

    def find(self, job_id: int) -> _HistoryPlace | None:
        """Return the last line of a job."""
        alone = self.starts.get(job_id, -1)
        start = max((start for start, runs in self.entries.items() if find(runs, job_id)), default=-1)
        if start > alone:
            return _HistoryPlace(self.entries[start][0].id, start, self.entries[start])
        return _HistoryPlace(job_id, alone) if alone >= 0 else None


class _HistoryPlace(NamedTuple):
    id: int
    start: int = 0
    runs: Runs = ()


class HistoryFiles(Struct):
    """History files of all months. A job is appended before it leaves the queue; if it is in both, the queue counts."""

    directory: Path
    access: FileAccess
    _old: dict[Path, tuple[FileStamp, frozenset[str]]] = field(default_factory=dict)
    _indices: dict[Path, _Index] = field(default_factory=dict)
    _undecodable: set[str] = field(default_factory=set)
    """Keys of jobs that could not be decoded."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while an index is extended."""

    def add(self, month: str, documents: Mapping[str, Document]) -> None:
        """Append jobs to the file of their month, durably."""
        lines = b"".join(job_line(int(key), document) for key, document in documents.items())
        append_lines(self.directory / f"history-{month}.jsonl", lines, self.access)

    def find(self, job_id: int) -> tuple[str, Document] | None:
        """Return key and document of a job or of its entry, in its last state; None if it is not in history."""
        for path in reversed(month_files(self.directory, "history")):
            if path.suffix == ".jsonl":
                row = self._index(path).find(job_id)
            else:
                row = _HistoryPlace(job_id) if str(job_id) in self._old_ids(path) else None
            if row is not None and (found := next(self._read(path, [row]), None)) is not None:
                return found
        return None

    def latest_first(
        self,
        kind: type[AnyJob],
        since_month: str | None,
        decode: Callable[[str, Document], AnyJob | None],
        until_month: str = NO_MONTH,
    ) -> Iterator[AnyJob]:
        """Yield the jobs of each line, last month and last line first; `decode` returns None for unreadable lines.

        A file with damaged lines or lines of an older schema is read again from its end, slowly.
        """
        for path in reversed(month_files(self.directory, "history")):
            month = path.stem.removeprefix("history-")
            if since_month is not None and month < since_month:
                return
            if month > until_month:
                continue
            for jobs in jobs_backwards(path, kind) if path.suffix == ".jsonl" else [None]:
                if jobs is None:
                    found = (decode(key, document) for key, document in self._read(path, self._rows(path)))
                    yield from (job for job in found if job is not None)
                    break
                yield from jobs

    def damage(self) -> Iterator[str]:
        """Yield sentences about what could not be read of the files read so far."""
        for path, index in self._indices.items():
            if index.damaged:
                yield f"{path}: {plural(index.damaged, 'line')} cannot be read: left out"
        if self._undecodable:
            count, first = len(self._undecodable), min(self._undecodable, key=lambda key: (len(key), key))
            which = f"job {first}" if count == 1 else f"{count} jobs, the first of them job {first},"
            yield f"{self.directory}/history-*: {which} cannot be read: left out"

    def decoded(self, key: str, document: Document) -> Job | None:
        """Return the job of a document; None, and a record of it, if it cannot be decoded."""
        try:
            return decode_job(int(key), document)
        except StoreFormatError:
            self._undecodable.add(key)
            return None

    def highest_id(self) -> int:
        """Return the highest id in any month; 0 when there is none."""
        return max((end - 1 for _, end in self.spans().parts), default=0)

    def spans(self, after_month: str = "") -> Spans:
        """Return the ids in the months after that one."""
        found: list[tuple[int, int]] = []
        for path in month_files(self.directory, "history"):
            if path.stem.removeprefix("history-") <= after_month:
                continue
            if path.suffix == ".jsonl":
                found += self._index(path).spans.parts
            else:
                found += ((int(key), int(key) + 1) for key in self._old_ids(path))
        return joined_spans(found)

    def _rows(self, path: Path) -> list[_HistoryPlace]:
        """Return the jobs in a file, last line first; reads only lines appended since the last call."""
        if path.suffix == ".jsonl":
            return self._index(path).rows()
        return [_HistoryPlace(int(key)) for key in self._old_ids(path)]

    def _read(self, path: Path, rows: Iterable[_HistoryPlace]) -> Iterator[tuple[str, Document]]:
        if path.suffix != ".jsonl":
            table = self._old_jobs(path)
            yield from ((str(row.id), table[str(row.id)]) for row in rows)
            return
        known = self._indices.get(path)
        with ExitStack() as opened:
            with os_errors(path):
                try:
                    file = opened.enter_context(os.fdopen(open_file(path, os.O_RDONLY), "rb"))
                except FileNotFoundError:  # removed meanwhile, for its age
                    return
                is_other = known is not None and known.inode != os.fstat(file.fileno()).st_ino
            for row in rows:
                place = self._index(path).find(row.id) if is_other else row
                if place is None:  # its line was removed meanwhile, for its age
                    continue
                document: Document = {}
                with os_errors(path), suppress(msgspec.MsgspecError):  # a damaged line
                    file.seek(place.start)
                    _, document = job_of(file.readline(), path)
                yield part_of_entry(document, row.runs) if row.runs and document else (str(row.id), document)

    def _index(self, path: Path) -> _Index:
        """Return the index of a file, extended by the lines appended since the last call."""
        with self._lock, os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            index = self._indices.get(path)
            if index is None or index.inode != status.st_ino or status.st_size < index.read_to:
                index = self._indices[path] = _Index(status.st_ino)
            file.seek(index.read_to)
            new = [*index.spans.parts]
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                start, index.read_to = index.read_to, index.read_to + len(line)
                if (match := _LINE.match(line)) is None:
                    index.damaged += 1
                    continue
                runs: Runs = ()
                with suppress(msgspec.MsgspecError):  # damaged: the id then means a single job
                    runs = runs_in({"runs": decode_json(match[2])}) if match[2] else ()
                if runs:
                    index.entries[start] = runs
                    new += ((run.id, run.end) for run in runs)
                else:
                    job_id = int(match[1])
                    index.starts[job_id] = start
                    new.append((job_id, job_id + 1))
            if len(new) > len(index.spans.parts):
                index.spans = joined_spans(new)
        return index

    # files of 0.1

    def _old_ids(self, path: Path) -> frozenset[str]:
        with os_errors(path):
            stamp = stamp_of(path.stat())
        known = self._old.get(path)
        if known is None or known[0] != stamp:
            keys = self._old_jobs(path)
            known = self._old[path] = (stamp, frozenset(str(int(key)) for key in keys if is_id(key)))
        return known[1]

    def _old_jobs(self, path: Path) -> Table:
        with os_errors(path):
            data, _ = read_file(path)
        return parse_month(data, path).get(JOBS, {})


def job_line(job_id: int, document: Document) -> bytes:
    runs = list(map(list, runs_in(document)))
    return msgspec.json.encode(_HistoryLine(id=job_id, runs=runs, schema=SCHEMA, job=document)) + b"\n"


def job_of(line: bytes, path: Path) -> tuple[int, Document]:
    """Return id and document, in the current schema, of a line; raises MsgspecError, and StoreError for its schema."""
    found = decode_json(line, _HistoryLine)
    check_schema(found.schema, path)
    migrate({JOBS: {str(found.id): found.job}}, found.schema)
    return found.id, found.job


PART = 1 << 21
"""Bytes that are decoded at once; a longer line is left to the slower method."""
_HEAD = re.compile(rb'(\{"id":\d{1,18},)(?:"runs":\[[\d,\[\]]*\],)?"schema":%d,"job":\{' % SCHEMA)
"""Beginning of a line, up to its job."""


AnyJob = TypeVar("AnyJob", Job, "JobRecord")


class _JobLine(Struct, Generic[AnyJob], frozen=True):
    """Line of a job, with the id moved into it."""

    job: AnyJob


def jobs_backwards(path: Path, kind: type[AnyJob]) -> Iterator[list[AnyJob] | None]:
    """Yield the jobs of a file in parts, last line first; None if a part needs the slower method.

    That is one with a damaged line, with one of an older schema, or without the end of a line.
    """
    decoder: JsonDecoder[_JobLine[AnyJob]] = json_decoder(_JobLine[kind])  # type: ignore[valid-type]
    with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - PART)
            file.seek(start)
            data = file.read(end - start)
            cut = data.find(b"\n") + 1 if start else 0
            is_whole = not start or 0 < cut < len(data)
            moved = _with_ids_moved(data[cut : data.rfind(b"\n") + 1]) if is_whole else None
            try:
                found = None if moved is None else [line.job for line in reversed(decoder.decode_lines(moved))]
            except UNREADABLE:
                found = None
            yield found
            if not is_whole:
                return
            end = start + cut


def _with_ids_moved(data: bytes) -> bytes | None:
    """Return the lines with each id moved into its job; None if a line has no head. The decoder finds other damage."""
    view, start = memoryview(data), 0
    parts: list[bytes | memoryview] = []
    while start < len(data):
        head = _HEAD.match(data, start)
        if head is None:
            return None
        start = data.index(b"\n", head.end()) + 1
        parts += (b'{"job":', head[1], view[head.end() : start])
    return b"".join(parts)


def latest(jobs: Iterable[AnyJob], gone: Spans) -> Iterator[AnyJob]:
    """Yield each job once, from jobs with the last first; without those in `gone`.

    Elements of an entry that ran again later are excluded from it.
    """
    alone: set[JobId] = set()
    together: Spans = gone
    job: AnyJob
    for job in jobs:
        if not job.runs:
            if job.id not in alone:
                alone.add(job.id)
                if job.id not in together:
                    yield job
            continue
        left = job.without([each for each in job.ids if each in alone])
        left = left.without(together) if left is not None else None
        together = joined_spans((*together.parts, *((run.id, run.end) for run in job.runs)))
        if left is not None:
            yield left


_ESCAPED = r"[^ !#-\[\]-~]|/"
"""Characters that JSON may write in more than one way."""
_UNKNOWN_MONTH = "1970-01"
_LATEST = 1 << 20
"""Bytes at the end of an audit file in which requests are looked for that may come again."""
KeyedEntry = tuple[AuditKey, Document]


class AuditFiles(Struct):
    """The files `audit-YYYY-MM.jsonl`, filled from the journal when it is folded.

    A crash during a fold may leave an entry here twice, or both here and in the journal. Keys identify duplicates.
    """

    directory: Path
    access: FileAccess

    def append(self, entries: Iterable[KeyedEntry]) -> None:
        """Append entries to the files of their months, durably; one without a readable time follows the one before."""
        months: dict[str, list[bytes]] = {}
        month = _UNKNOWN_MONTH
        for key, document in entries:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                month = month_of(datetime.fromisoformat(document["at"]))
            months.setdefault(month, []).append(msgspec.json.encode({"id": key, **document}) + b"\n")
        for month, lines in months.items():
            append_lines(self.directory / f"audit-{month}.jsonl", b"".join(lines), self.access)

    def read(self, target: str | None = None) -> Iterator[KeyedEntry]:
        """Yield all entries once each, by month; with a target, at least those about that job or setting."""
        word = b"" if target is None or re.search(_ESCAPED, target) else b'"%s"' % target.encode()
        for path in sorted(self.directory.glob("audit-????-??.jsonl")):
            seen: set[AuditKey] = set()
            generation = None
            with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
                for line in file:
                    if word not in line:
                        continue
                    try:
                        key, document = entry_of(line)
                    except (ValueError, KeyError):
                        continue  # torn by a crash, or damaged: the others still count
                    if key[0] not in {0, generation}:  # there are duplicates only within one
                        generation, seen = key[0], set()
                    if key not in seen:
                        seen.add(key)
                        yield key, document

    def latest_with_keys(self) -> Iterator[KeyedEntry]:
        """Yield those of the latest entries, but for submissions, that have the key of a request; some maybe twice."""
        for path in sorted(self.directory.glob("audit-????-??.jsonl"))[-2:]:
            with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LATEST))
                for line in file:
                    with suppress(ValueError, KeyError):  # cut off, or damaged
                        if b'"key":' in line and (entry := entry_of(line))[1].get("verb") != "submit":
                            yield entry


def entry_of(line: bytes) -> KeyedEntry:
    """Return key and document of a line of the audit log; raises MsgspecError and KeyError."""
    document = decode_json(line, dict[str, Any])
    return convert(document.pop("id"), AuditKey), document


def submission_entries(jobs: Iterable[Job], actor: Actor) -> Iterator[AuditEntry]:
    """Yield the audit entries of new jobs, one per array."""
    arrays: dict[JobId, list[Job]] = {}
    for job in jobs:
        arrays.setdefault(job.array.id if job.array else job.id, []).append(job)
    for group in arrays.values():
        job, count = group[0], sum(job.count for job in group)
        after = f"{job.state}: priority {job.priority}" + (", held" if job.held else "")
        after += f", {plural(count, 'element')}" if job.array else ""
        target = f"array {job.array.id}" if job.array else job.target
        uid, user, via = actor.uid, actor.user, actor.via
        yield AuditEntry(job.submitted_at, uid, user, "submit", target, "", after, via=via, key=job.key)


def line_paths(directory: Path) -> list[Path]:
    """Return the files of history and audit log with one record per line."""
    return [*sorted(directory.glob("history-????-??.jsonl")), *sorted(directory.glob("audit-????-??.jsonl"))]
