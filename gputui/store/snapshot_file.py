"""Snapshot file `queue.json`: an ordinary TinyDB file that is replaced as a whole, and migrations of older schemas.

Files of every released schema stay readable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Struct

from gputui.domain.decoding import convert, decode_json
from gputui.domain.errors import StoreFormatError, StoreNewerError
from gputui.store.files import (
    FileAccess,
    FileStamp,
    PutInPlace,
    os_errors,
    read_file,
    replace_file,
    stamp_of,
    write_whole,
)

Table = dict[str, Any]
Tables = dict[str, Table]

SCHEMA = 3
"""Current schema. Raised only if an older gputui would misread the files; a new key alone is no reason.

Whoever raises it raises the version of gputui too: `tests/store/test_versions.py` keeps the schema of each version.
"""


def check_schema(schema: int, path: Path) -> None:
    """Raise StoreNewerError for a schema newer than ours, and StoreFormatError for one that never was."""
    if schema < 1:
        raise StoreFormatError(f"it has schema {schema}, which no gputui wrote", where=str(path), hint="correct it")
    if schema > SCHEMA:
        raise StoreNewerError(
            f"it has schema {schema}; this gputui supports schemas up to {SCHEMA}",
            where=str(path),
            hint="upgrade gputui, and restart what still runs the older one",
        )


def migrate(tables: Tables, schema: int) -> None:
    """Convert tables of an older schema to the current one, in place."""
    for step in range(schema, SCHEMA):
        MIGRATIONS[step](tables)


def _priority_in_full(tables: Tables) -> None:
    """Convert schema 1, which called the priority `prio`, on the job and in its spec."""
    for document in tables.get("jobs", {}).values():
        spec = document.get("spec") if isinstance(document, dict) else None  # by hand anything may be there
        for holder in (document, spec):
            if isinstance(holder, dict) and "prio" in holder:
                holder["priority"] = holder.pop("prio")


def _as_before(tables: Tables) -> None:
    """Convert schema 2, which had a document for each element of an array; a schema 3 file may have those too."""


MIGRATIONS: Mapping[int, Callable[[Tables], None]] = {1: _priority_in_full, 2: _as_before}
"""Migration steps by the schema they start from."""


META = "_meta"
_HEAD = 4096
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


class Meta(Struct, frozen=True):
    """Header of the snapshot, stored in its table `_meta`, which is written first."""

    generation: int
    next_id: int
    store_id: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]{1,40}\Z")]
    """Part of the names of containers and directories; the pattern keeps paths out of a file that a group may write."""
    schema: int = SCHEMA


class SnapshotFile(Struct):
    """Parsed content of `queue.json`."""

    meta: Meta
    tables: Tables
    """Tables except `_meta`, in the schema of the file."""
    stamp: FileStamp


def read_snapshot(path: Path) -> SnapshotFile | None:
    """Return the snapshot; None if there is none. Raises StoreError."""
    with os_errors(path), suppress(FileNotFoundError):
        data, status = read_file(path)
        meta, tables = _parsed(data, path, Meta)
        return SnapshotFile(meta, tables, stamp_of(status))
    return None


def read_meta(path: Path) -> tuple[Meta, FileStamp] | None:
    """Return the header and stamp of the snapshot, from its first bytes if they suffice; None if there is none."""
    with os_errors(path), suppress(FileNotFoundError):
        head, status = read_file(path, _HEAD)
        end = head.find(b"}}")
        if head.startswith(b'{"_meta"') and end > 0:
            return _parsed(head[: end + 2] + b"}", path, Meta)[0], stamp_of(status)
        whole = read_snapshot(path)
        return None if whole is None else (whole.meta, whole.stamp)
    return None


def write_snapshot(
    path: Path, meta: Meta, tables: Tables, access: FileAccess, place: PutInPlace = replace_file
) -> FileStamp:
    """Replace the snapshot, durably; return its new identity."""
    data = msgspec.json.encode({META: {"1": msgspec.to_builtins(meta)}, **tables})
    return write_whole(path, data, access, place)


class _MonthMeta(Struct):
    schema: int = SCHEMA


AnyMeta = TypeVar("AnyMeta", Meta, _MonthMeta)


def parse_month(data: bytes, path: Path) -> Tables:
    """Return the tables of a month of history of version 0.1, a TinyDB file, in the current schema."""
    meta, tables = _parsed(data, path, _MonthMeta)
    migrate(tables, meta.schema)
    return tables


def _parsed(data: bytes, path: Path, kind: type[AnyMeta]) -> tuple[AnyMeta, Tables]:
    """Return the header and the other tables of a TinyDB file; raises StoreFormatError."""
    try:
        tables = decode_json(data, Tables) if data.strip() else {}
    except msgspec.DecodeError as error:
        hint = "put it back from a backup, or run `gputui state repair`; nothing was changed"
        raise StoreFormatError(f"it cannot be read: {error}", where=str(path), hint=hint) from None
    try:
        meta = convert(tables.pop(META, {}).get("1", {}), kind)
    except msgspec.ValidationError as error:
        if kind is _MonthMeta:
            raise StoreFormatError(f"not a history of gputui: {error}", where=str(path)) from None
        hint = "name another state directory"
        raise StoreFormatError(f"not a queue of gputui: {error}", where=str(path), hint=hint) from None
    check_schema(meta.schema, path)
    return meta, tables


def new_store_id() -> str:
    """Return a random id for a new queue."""
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(12))
