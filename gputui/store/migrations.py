"""How files of older schemas become those of today. A file of any schema ever released loads for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gputui.domain.errors import StoreNewerError

Tables = dict[str, dict[str, Any]]

SCHEMA = 2
"""Raised only when an older gputui could no longer read the files rightly; a new key alone is no reason."""


def check_schema(schema: int, path: Path) -> None:
    """Raise StoreNewerError for the files of a newer gputui."""
    if schema > SCHEMA:
        raise StoreNewerError(
            f"it has schema {schema}, and this gputui knows those up to {SCHEMA}",
            where=str(path),
            hint="upgrade gputui",
        )


def migrate(tables: Tables, schema: int) -> None:
    """Turn tables of an older schema into today's, in place."""
    for step in range(schema, SCHEMA):
        MIGRATIONS[step](tables)


def _priority_in_full(tables: Tables) -> None:
    """Schema 1 called the priority `prio`, on the job and in its spec."""
    for document in tables.get("jobs", {}).values():
        spec = document.get("spec") if isinstance(document, dict) else None  # by hand anything may be there
        for holder in (document, spec):
            if isinstance(holder, dict) and "prio" in holder:
                holder["priority"] = holder.pop("prio")


MIGRATIONS: Mapping[int, Callable[[Tables], None]] = {1: _priority_in_full}
"""By the schema each leads away from."""
