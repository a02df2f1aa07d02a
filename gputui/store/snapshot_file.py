"""Files that are replaced whole: `queue.json`, an ordinary TinyDB file, and the history files beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gputui.domain.errors import StoreFormatError
from gputui.store.faults import of_os_error, os_errors
from gputui.store.files import open_file, read_file
from gputui.store.hint import Identity, identity_of
from gputui.store.journal import write_all
from gputui.store.migrations import SCHEMA, check_schema
from gputui.store.permissions import Permissions

Table = dict[str, Any]
Tables = dict[str, Table]
META = "_meta"
_HEAD = 4096
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True)
class Meta:
    """What the snapshot says of itself, in its table `_meta`, which is written first."""

    generation: int
    next_id: int
    store_id: Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]{1,40}\Z")]
    """Part of names of containers and directories, so a member who may write the file must not put a path there."""
    schema: int = SCHEMA


@dataclass
class SnapshotFile:
    """A loaded `queue.json`."""

    meta: Meta
    tables: Tables
    """All but `_meta`, in the schema of the file."""
    identity: Identity


def read_snapshot(path: Path) -> SnapshotFile | None:
    """The snapshot; None when there is none."""
    found = _read(path)
    if found is None:
        return None
    data, identity = found
    tables = parse_tables(data, path)
    return SnapshotFile(_meta_of(tables.pop(META, {}), path), tables, identity)


def read_meta(path: Path) -> tuple[Meta, Identity] | None:
    """What the snapshot says of itself, from its first bytes where they suffice; None when there is none."""
    found = _read(path, _HEAD)
    if found is None:
        return None
    head, identity = found
    end = head.find(b"}}")
    if head.startswith(b'{"_meta"') and end > 0:
        return _meta_of(parse_tables(head[: end + 2] + b"}", path)[META], path), identity
    whole = read_snapshot(path)
    return None if whole is None else (whole.meta, whole.identity)


def _read(path: Path, size: int = -1) -> tuple[bytes, Identity] | None:
    try:
        data, status = read_file(path, size)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise of_os_error(error, path) from error
    return data, identity_of(status)


def write_snapshot(path: Path, meta: Meta, tables: Tables, permissions: Permissions) -> Identity:
    """Replace the snapshot, durably; its new identity."""
    return write_whole(path, msgspec.json.encode({META: {"1": msgspec.to_builtins(meta)}, **tables}), permissions)


def write_whole(path: Path, data: bytes, permissions: Permissions) -> Identity:
    """Replace the file by `data`, wholly or not at all, and durably."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with os_errors(path):
        temporary.unlink(missing_ok=True)  # of a process that was killed, or planted
        try:
            fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions.file_mode)
            try:
                permissions.settle_file(fd)
                write_all(fd, data)
                os.fsync(fd)
                identity = identity_of(os.fstat(fd))
            finally:
                os.close(fd)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    return identity


def sync_directory(directory: Path) -> None:
    """Make the names in the directory durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def parse_tables(data: bytes, path: Path) -> Tables:
    """The tables of a TinyDB file."""
    try:
        return msgspec.json.decode(data, type=Tables) if data.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = "put it back from a backup, or run `gputui state repair`; nothing was changed"
        raise StoreFormatError(f"it cannot be read: {error}", where=str(path), hint=hint) from None


def new_store_id() -> str:
    """Return a random id for a new queue."""
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(12))


def _meta_of(table: Table, path: Path) -> Meta:
    try:
        meta = msgspec.convert(table.get("1", {}), Meta)
    except msgspec.ValidationError as error:
        raise StoreFormatError(
            f"not a queue of gputui: {error}", where=str(path), hint="name another state directory"
        ) from None
    check_schema(meta.schema, path)
    return meta
