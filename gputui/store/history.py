"""Finished jobs that left the queue: one ordinary TinyDB file a month, replaced whole when jobs are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tinydb import TinyDB
from tinydb.storages import Storage

from gputui.store.faults import os_errors
from gputui.store.hint import Identity, identity_of
from gputui.store.journal import Document
from gputui.store.migrations import SCHEMA, check_schema, migrate
from gputui.store.permissions import Permissions
from gputui.store.replica import JOBS
from gputui.store.snapshot_file import META, Table, Tables, parse_tables, write_whole


class WholeFileStorage(Storage):
    """TinyDB's storage for files that change rarely: read whole, replaced whole, migrated on the way in."""

    def __init__(self, path: Path, permissions: Permissions) -> None:
        self._path = path
        self._permissions = permissions

    def read(self) -> Tables | None:
        """All tables, in today's schema; None when there is no file."""
        with os_errors(self._path):
            try:
                data = self._path.read_bytes()
            except FileNotFoundError:
                return None
        tables = parse_tables(data, self._path)
        schema = int(tables.pop(META, {}).get("1", {}).get("schema", SCHEMA))
        check_schema(schema, self._path)
        migrate(tables, schema)
        return tables

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        """Replace all tables, durably."""
        stamped = {META: {"1": {"schema": SCHEMA}}, **data}
        write_whole(self._path, msgspec.json.encode(stamped), self._permissions)


class HistoryFiles:
    """All months. A job is written here before it leaves the queue; if it is in both, the queue is right."""

    def __init__(self, directory: Path, permissions: Permissions) -> None:
        self._directory = directory
        self._permissions = permissions
        self._ids: dict[Path, tuple[Identity, frozenset[str]]] = {}

    def add(self, month: str, documents: Mapping[str, Document]) -> None:
        """Write jobs into the file of their month, durably."""
        storage = WholeFileStorage(self._directory / f"history-{month}.json", self._permissions)
        tables = storage.read() or {}
        tables[JOBS] = dict(sorted({**tables.get(JOBS, {}), **documents}.items(), key=lambda item: int(item[0])))
        storage.write(tables)

    def find(self, key: str) -> Document | None:
        """The document of a job; of one that ended twice, the later."""
        for path in reversed(self.paths()):
            if key in self.ids(path):
                return self._jobs(path).get(key)
        return None

    def documents(self, since_month: str | None = None) -> Iterator[tuple[str, Document]]:
        """Keys and documents by month and then by id, each job as it ended last."""
        paths = [path for path in self.paths() if since_month is None or path.name >= f"history-{since_month}.json"]
        for place, path in enumerate(paths):
            later: frozenset[str] = frozenset().union(*map(self.ids, paths[place + 1 :]))
            for key, document in sorted(self._jobs(path).items(), key=lambda item: int(item[0])):
                if key not in later:
                    yield key, document

    def highest_id(self) -> int:
        """The highest id in any month; 0 when there is none."""
        return max((int(key) for path in self.paths() for key in self.ids(path)), default=0)

    def paths(self) -> list[Path]:
        """The files, oldest month first."""
        return sorted(self._directory.glob("history-????-??.json"))

    def ids(self, path: Path) -> frozenset[str]:
        """Keys of the jobs of a month, remembered until the file is replaced."""
        with os_errors(path):
            identity = identity_of(path.stat())
        known = self._ids.get(path)
        if known is None or known[0] != identity:
            known = self._ids[path] = (identity, frozenset(self._jobs(path)))
        return known[1]

    def _jobs(self, path: Path) -> Table:
        with TinyDB(path, self._permissions, storage=WholeFileStorage) as database:
            tables: Tables = database.storage.read() or {}
            return tables.get(JOBS, {})
