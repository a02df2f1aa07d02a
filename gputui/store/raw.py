"""Documents as the bytes they were stored in, so that what this version cannot read is passed on unchanged."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import msgspec

from gputui.store.snapshot_file import META

RawTable = dict[str, msgspec.Raw]


class _Line(msgspec.Struct):
    t: dict[str, RawTable]


def raw_documents(snapshot: Path, journal: Path, table: str, keys: Collection[str]) -> RawTable:
    """The bytes of these documents of a table, each as it was written last."""
    found: RawTable = {}
    tables = msgspec.json.decode(snapshot.read_bytes(), type=dict[str, RawTable])
    _collect(found, tables.get(table, {}) if table != META else {}, keys)
    for line in journal.read_bytes().splitlines():
        with suppress(msgspec.MsgspecError, IndexError):  # a damaged line is nobody's document
            body = msgspec.json.decode(line.split(b" ", 2)[2], type=_Line)
            _collect(found, body.t.get(table, {}), keys)
    return found


def _collect(found: RawTable, table: RawTable, keys: Collection[str]) -> None:
    for key, document in table.items():
        if key in keys:
            found[key] = msgspec.Raw(bytes(document))
