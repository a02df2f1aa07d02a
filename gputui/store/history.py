"""Finished jobs that left the queue: a file of lines a month, to which jobs are appended.

Version 0.1 kept a TinyDB file a month, which it replaced whole for each job. Such files are still read, and stay.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

import msgspec

from gputui.domain.units import plural
from gputui.store.faults import os_errors
from gputui.store.files import open_file, read_file
from gputui.store.hint import Identity, identity_of
from gputui.store.journal import Document
from gputui.store.lines import append_lines
from gputui.store.migrations import SCHEMA, check_schema, migrate
from gputui.store.permissions import Permissions
from gputui.store.replica import JOBS, ids_of
from gputui.store.snapshot_file import META, Table, parse_tables

_LINE = re.compile(rb'^\{"id":(\d{1,18}),[^\n]*\n', re.MULTILINE)
_PART = 1 << 24


class _Line(msgspec.Struct):
    """A job as it is appended; its id comes first, so that lines are found without being decoded."""

    id: int
    schema: int
    job: Document


@dataclass
class _Index:
    """Where the jobs of a file begin, as far as it was read."""

    inode: int
    read_to: int = 0
    damaged: int = 0
    """Lines that are no jobs."""
    starts: dict[str, int] = field(default_factory=dict)


class HistoryFiles:
    """All months. A job is written here before it leaves the queue; if it is in both, the queue is right."""

    def __init__(self, directory: Path, permissions: Permissions) -> None:
        self._directory = directory
        self._permissions = permissions
        self._old: dict[Path, tuple[Identity, frozenset[str]]] = {}
        self._indices: dict[Path, _Index] = {}

    def add(self, month: str, documents: Mapping[str, Document]) -> None:
        """Append jobs to the file of their month, durably."""
        lines = [_Line(int(key), SCHEMA, document) for key, document in documents.items()]
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        append_lines(self._directory / f"history-{month}.jsonl", data, self._permissions)

    def find(self, key: str) -> Document | None:
        """The document of a job; of one that ended twice, the later."""
        for path in reversed(self.paths()):
            if key in self.ids(path):
                [(_, document)] = self._read([(key, path)])
                return document
        return None

    def documents(self, since_month: str | None = None) -> Iterator[tuple[str, Document]]:
        """Keys and documents by month and then by id, each job as it ended last."""
        paths = [path for path in self.paths() if since_month is None or _month_of(path) >= since_month]
        later: set[str] = set()
        latest: list[tuple[str, int, str, Path]] = []
        for path in reversed(paths):
            here = self.ids(path)
            latest += [(_month_of(path), int(key), key, path) for key in here if key not in later]
            later.update(here)
        for _, rows in groupby(sorted(latest), key=itemgetter(0)):
            yield from self._read([(key, path) for _, _, key, path in rows])

    def damage(self) -> Iterator[str]:
        """Sentences about damaged lines in the files read so far."""
        for path, index in self._indices.items():
            if index.damaged:
                yield f"{path}: {plural(index.damaged, 'line')} cannot be read: left out"

    def highest_id(self) -> int:
        """The highest id in any month; 0 when there is none."""
        return max((int(key) for path in self.paths() for key in self.ids(path)), default=0)

    def paths(self) -> list[Path]:
        """The files, oldest month first; of one month the file of 0.1 first, as its jobs ended before."""
        found = [*self._directory.glob("history-????-??.json"), *self._directory.glob("history-????-??.jsonl")]
        return sorted(found, key=lambda path: (_month_of(path), path.suffix))

    def ids(self, path: Path) -> Collection[str]:
        """Keys of the jobs in a file. Only what was appended since the last call is read."""
        return self._index(path).starts.keys() if path.suffix == ".jsonl" else self._old_ids(path)

    def _read(self, rows: list[tuple[str, Path]]) -> Iterator[tuple[str, Document]]:
        """The documents of these keys in their files, of which each is opened once."""
        paths = {path for _, path in rows}
        tables = {path: self._old_jobs(path) for path in paths if path.suffix != ".jsonl"}
        with ExitStack() as files:
            opened = {}
            for path in paths - tables.keys():
                with os_errors(path):
                    opened[path] = files.enter_context(os.fdopen(open_file(path, os.O_RDONLY), "rb"))
            for key, path in rows:
                yield key, tables[path][key] if path in tables else self._line(opened[path], path, key)

    def _line(self, file: BinaryIO, path: Path, key: str) -> Document:
        with os_errors(path):
            file.seek(self._indices[path].starts[key])
            return _decoded(file.readline(), path)

    def _index(self, path: Path) -> _Index:
        """Where the jobs of the file begin; read on from where it was read to."""
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
                    index.starts[str(int(match[1]))] = index.read_to + match.start()
                index.read_to += end
                file.seek(index.read_to)
        return index

    # files of 0.1

    def _old_ids(self, path: Path) -> frozenset[str]:
        with os_errors(path):
            identity = identity_of(path.stat())
        known = self._old.get(path)
        if known is None or known[0] != identity:
            keys = self._old_jobs(path)
            known = self._old[path] = (identity, frozenset(map(str, ids_of(keys))))
        return known[1]

    def _old_jobs(self, path: Path) -> Table:
        with os_errors(path):
            data, _ = read_file(path)
        tables = parse_tables(data, path)
        schema = int(tables.pop(META, {}).get("1", {}).get("schema", SCHEMA))
        check_schema(schema, path)
        migrate(tables, schema)
        return tables.get(JOBS, {})


def _decoded(data: bytes, path: Path) -> Document:
    """The document of a line, in today's schema; an empty one, which is no job, where the line is damaged."""
    try:
        line = msgspec.json.decode(data, type=_Line)
    except msgspec.MsgspecError:
        return {}
    check_schema(line.schema, path)
    tables = {JOBS: {str(line.id): line.job}}
    migrate(tables, line.schema)
    return line.job


def _month_of(path: Path) -> str:
    """`2026-03`, of `history-2026-03.jsonl`."""
    return path.stem.removeprefix("history-")
