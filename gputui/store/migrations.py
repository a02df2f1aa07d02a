"""Migrations from older schemas. Files of every released schema stay readable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gputui.domain.errors import StoreFormatError, StoreNewerError

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
