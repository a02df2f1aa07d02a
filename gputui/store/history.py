"""History of finished jobs that left the queue: one append-only file of lines per month.

Version 0.1 kept one TinyDB file per month. Those files are still read and never changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_json
from gputui.domain.runs import Runs, Spans, divided, find, ids, joined_spans
from gputui.domain.units import plural
from gputui.store.documents import Document, part_of_entry, runs_in
from gputui.store.file_access import FileAccess
from gputui.store.files import FileStamp, append_lines, open_file, os_errors, read_file, stamp_of
from gputui.store.migrations import SCHEMA, Table, check_schema, migrate
from gputui.store.replica import JOBS, ids_of
from gputui.store.snapshot_file import parse_month

if TYPE_CHECKING:
    from gputui.store.past_jobs import AnyJob

_LINE = re.compile(rb'^\{"id":(\d{1,18}),(?:"runs":(\[[\d,\[\]]*\]),)?[^\n]*\n', re.MULTILINE)
_PART = 1 << 24


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
    starts: dict[str, int] = field(default_factory=dict)
    """Offset of the last line of each single job, by key."""
    entries: dict[int, Runs] = field(default_factory=dict)
    """Elements of entries by the offsets of their lines."""

    def rows(self, path: Path) -> list[_HistoryPlace]:
        """Return the last line of each job and all lines of entries, last line first."""
        rows = [_HistoryPlace(int(key), path, start) for key, start in self.starts.items()]
        rows += [_HistoryPlace(runs[0].id, path, start, runs) for start, runs in self.entries.items()]
        return sorted(rows, key=lambda row: row.start, reverse=True)

    def find(self, path: Path, job_id: int) -> _HistoryPlace | None:
        """Return the last line of a job."""
        alone = self.starts.get(str(job_id), -1)
        start = max((start for start, runs in self.entries.items() if find(runs, job_id)), default=-1)
        if start > alone:
            return _HistoryPlace(self.entries[start][0].id, path, start, self.entries[start])
        return _HistoryPlace(job_id, path, alone) if alone >= 0 else None


class _HistoryPlace(NamedTuple):
    """Position of a job in the files."""

    id: int
    path: Path
    start: int = 0
    runs: Runs = ()


class HistoryFiles:
    """History files of all months. A job is appended before it leaves the queue; if it is in both, the queue counts."""

    def __init__(self, directory: Path, access: FileAccess) -> None:
        self._directory = directory
        self._access = access
        self._old: dict[Path, tuple[FileStamp, frozenset[str]]] = {}
        self._indices: dict[Path, _Index] = {}

    def add(self, month: str, documents: Mapping[str, Document]) -> None:
        """Append jobs to the file of their month, durably."""
        lines = [
            _HistoryLine(id=int(key), runs=list(map(list, runs_in(document))), schema=SCHEMA, job=document)
            for key, document in documents.items()
        ]
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        append_lines(self._directory / f"history-{month}.jsonl", data, self._access)

    def find(self, job_id: int) -> tuple[str, Document] | None:
        """Return key and document of a job or of its entry, in its last state; None if it is not in history."""
        for path in reversed(self.paths()):
            if path.suffix == ".jsonl":
                row = self._index(path).find(path, job_id)
            else:
                row = _HistoryPlace(job_id, path) if str(job_id) in self._old_ids(path) else None
            if row is not None and (found := next(self._read([row]), None)) is not None:
                return found
        return None

    def documents(self, since_month: str | None = None) -> Iterator[tuple[str, Document]]:
        """Yield keys and documents by month, then by id; each job once, in its last state."""
        paths = [path for path in self.paths() if since_month is None or _month_of(path) >= since_month]
        latest = sorted(_latest(self._rows(path) for path in reversed(paths)), key=_by_month)
        for _, rows in groupby(latest, key=lambda row: _month_of(row.path)):
            yield from self._read(list(rows))

    def latest_first(
        self, kind: type[AnyJob], since_month: str | None, decode: Callable[[str, Document], AnyJob | None]
    ) -> Iterator[AnyJob]:
        """Yield the jobs of each line, last month and last line first; `decode` returns None for unreadable lines.

        A file with damaged lines or lines of an older schema is read again from its end, slowly.
        """
        from gputui.store.past_jobs import jobs_backwards  # its decoder takes long to build

        for path in reversed(self.paths()):
            if since_month is not None and _month_of(path) < since_month:
                return
            for jobs in jobs_backwards(path, kind) if path.suffix == ".jsonl" else [None]:
                if jobs is None:
                    yield from self._slowly(path, decode)
                    break
                yield from jobs

    def _slowly(self, path: Path, decode: Callable[[str, Document], AnyJob | None]) -> Iterator[AnyJob]:
        for key, document in self._read(self._rows(path)):
            if (job := decode(key, document)) is not None:
                yield job

    def damage(self) -> Iterator[str]:
        """Yield sentences about damaged lines in the files read so far."""
        for path, index in self._indices.items():
            if index.damaged:
                yield f"{path}: {plural(index.damaged, 'line')} cannot be read: left out"

    def highest_id(self) -> int:
        """Return the highest id in any month; 0 when there is none."""
        rows = (row for path in self.paths() for row in self._rows(path))
        return max((row.runs[-1].end - 1 if row.runs else row.id for row in rows), default=0)

    def spans(self) -> Spans:
        """Return the ids of all jobs."""
        rows = [row for path in self.paths() for row in self._rows(path)]
        return joined_spans(part for row in rows for part in _parts(row))

    def paths(self) -> list[Path]:
        """Return the files, oldest month first; within a month the file of 0.1 first, since its jobs ended earlier."""
        found = [*self._directory.glob("history-????-??.json"), *self._directory.glob("history-????-??.jsonl")]
        return sorted(found, key=lambda path: (_month_of(path), path.suffix))

    def _rows(self, path: Path) -> list[_HistoryPlace]:
        """Return the jobs in a file, last line first; reads only lines appended since the last call."""
        if path.suffix == ".jsonl":
            return self._index(path).rows(path)
        return [_HistoryPlace(int(key), path) for key in self._old_ids(path)]

    def _read(self, rows: list[_HistoryPlace]) -> Iterator[tuple[str, Document]]:
        """Yield keys and documents of jobs, opening each file once."""
        paths = {row.path for row in rows}
        tables = {path: self._old_jobs(path) for path in paths if path.suffix != ".jsonl"}
        with ExitStack() as files:
            opened = {path: self._opened(path, files) for path in paths - tables.keys()}
            for row in rows:
                if row.path in tables:
                    yield str(row.id), tables[row.path][str(row.id)]
                    continue
                file, is_other = opened[row.path]
                place = self._index(row.path).find(row.path, row.id) if is_other else row
                if file is None or place is None:  # its line was removed meanwhile, for its age
                    continue
                document = self._line(file, place)
                yield part_of_entry(document, row.runs) if row.runs and document else (str(row.id), document)

    def _opened(self, path: Path, files: ExitStack) -> tuple[BinaryIO | None, bool]:
        """Open a file, None where it is gone; return whether it is another than the one whose lines are known."""
        known = self._indices.get(path)
        with os_errors(path):
            try:
                file = files.enter_context(os.fdopen(open_file(path, os.O_RDONLY), "rb"))
            except FileNotFoundError:
                return None, False
            return file, known is not None and known.inode != os.fstat(file.fileno()).st_ino

    def _line(self, file: BinaryIO, row: _HistoryPlace) -> Document:
        with os_errors(row.path):
            file.seek(row.start)
            return _decode_line(file.readline(), row.path)

    def _index(self, path: Path) -> _Index:
        """Return the index of a file, extended by the lines appended since the last call."""
        with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            index = self._indices.get(path)
            if index is None or index.inode != status.st_ino or status.st_size < index.read_to:
                index = self._indices[path] = _Index(status.st_ino)
            file.seek(index.read_to)
            while (part := file.read(_PART)) and (end := part.rfind(b"\n") + 1):
                index.damaged += part.count(b"\n", 0, end)
                for match in _LINE.finditer(part, 0, end):
                    index.damaged -= 1
                    start, runs = index.read_to + match.start(), _runs(match[2])
                    if runs:
                        index.entries[start] = runs
                    else:
                        index.starts[str(int(match[1]))] = start
                index.read_to += end
                file.seek(index.read_to)
        return index

    # files of 0.1

    def _old_ids(self, path: Path) -> frozenset[str]:
        with os_errors(path):
            stamp = stamp_of(path.stat())
        known = self._old.get(path)
        if known is None or known[0] != stamp:
            keys = self._old_jobs(path)
            known = self._old[path] = (stamp, frozenset(map(str, ids_of(keys))))
        return known[1]

    def _old_jobs(self, path: Path) -> Table:
        with os_errors(path):
            data, _ = read_file(path)
        return parse_month(data, path).get(JOBS, {})


def _decode_line(data: bytes, path: Path) -> Document:
    """Return the document of a line in the current schema; empty when the line is damaged."""
    try:
        line = decode_json(data, _HistoryLine)
    except msgspec.MsgspecError:
        return {}
    check_schema(line.schema, path)
    tables = {JOBS: {str(line.id): line.job}}
    migrate(tables, line.schema)
    return line.job


def _runs(data: bytes | None) -> Runs:
    """Return the runs at the head of a line; empty if damaged: the id then means a single job."""
    with suppress(msgspec.MsgspecError):
        return runs_in({"runs": decode_json(data)}) if data else ()
    return ()


def _latest(files: Iterable[list[_HistoryPlace]]) -> Iterator[_HistoryPlace]:
    """Yield each job once, in its last state, from files with the latest first; entries without re-run elements."""
    alone: set[int] = set()
    together = Spans()
    for row in chain.from_iterable(files):
        if row.runs:
            again = joined_spans((job_id, job_id + 1) for job_id in ids(row.runs) if job_id in alone)
            left = divided(divided(row.runs, again)[1], together)[1]
            together = joined_spans((*together.parts, *((run.id, run.end) for run in row.runs)))
            if left:
                yield row._replace(id=left[0].id, runs=left)
        elif row.id not in alone:
            alone.add(row.id)
            if row.id not in together:
                yield row


def _by_month(row: _HistoryPlace) -> tuple[str, int]:
    return _month_of(row.path), row.id


def _parts(row: _HistoryPlace) -> Iterable[tuple[int, int]]:
    return ((run.id, run.end) for run in row.runs) if row.runs else ((row.id, row.id + 1),)


def _month_of(path: Path) -> str:
    """Return `2026-03` for `history-2026-03.jsonl`."""
    return path.stem.removeprefix("history-")
