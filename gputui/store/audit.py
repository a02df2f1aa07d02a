"""What was wished, month by month: files that are only ever appended to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from gputui.store.faults import os_errors
from gputui.store.files import open_file
from gputui.store.journal import Document
from gputui.store.lines import append_lines
from gputui.store.permissions import Permissions
from gputui.store.replica import AuditKey
from gputui.store.retention import month_of

_ESCAPED = re.compile(r"[^ !#-\[\]-~]|/")
"""What JSON may write in more than one way."""
KeyedEntry = tuple[AuditKey, Document]


class AuditFiles:
    """`audit-YYYY-MM.jsonl`, filled from the journal when it is folded.

    A crash in between leaves entries both here and in the journal, and then here twice; their keys tell.
    """

    def __init__(self, directory: Path, permissions: Permissions) -> None:
        self._directory = directory
        self._permissions = permissions

    def append(self, entries: Iterable[KeyedEntry]) -> None:
        """Write entries down, durably."""
        months: dict[str, list[bytes]] = {}
        for key, document in entries:
            month = month_of(datetime.fromisoformat(document["at"]))
            months.setdefault(month, []).append(msgspec.json.encode({"id": key, **document}) + b"\n")
        for month, lines in months.items():
            append_lines(self._directory / f"audit-{month}.jsonl", b"".join(lines), self._permissions)

    def read(self, target: str | None = None) -> Iterator[KeyedEntry]:
        """Yield all entries, each once, in the order of their months; with a target at least those about it."""
        word = b"" if target is None or _ESCAPED.search(target) else b'"%s"' % target.encode()
        for path in sorted(self._directory.glob("audit-????-??.jsonl")):
            yield from _once_each(_entries(path, word))


def _entries(path: Path, word: bytes) -> Iterator[KeyedEntry]:
    """Yield the entries whose lines have the word in them; the others are not decoded."""
    with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        for line in file:
            if word not in line:
                continue
            try:
                document: Document = msgspec.json.decode(line)
                generation, start, place = document.pop("id")
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # torn by a crash, or damaged: the others still count
            yield (generation, start, place), document


def _once_each(entries: Iterable[KeyedEntry]) -> Iterator[KeyedEntry]:
    """Without repetitions, which only ever stand within one generation."""
    seen: set[AuditKey] = set()
    generation = None
    for key, document in entries:
        if key[0] != generation:
            generation = key[0]
            seen.clear()
        if key not in seen:
            seen.add(key)
            yield key, document
