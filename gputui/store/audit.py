"""The audit log: who changed what and when, in monthly append-only files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from gputui.domain.audit import Actor, AuditEntry, target_of
from gputui.domain.decoding import convert, decode_json
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.units import plural
from gputui.store.documents import Document
from gputui.store.file_access import FileAccess
from gputui.store.files import append_lines, open_file, os_errors
from gputui.store.replica import AuditKey
from gputui.store.retention import month_of

_ESCAPED = re.compile(r"[^ !#-\[\]-~]|/")
"""Characters that JSON may write in more than one way."""
_UNKNOWN_MONTH = "1970-01"
KeyedEntry = tuple[AuditKey, Document]


class AuditFiles:
    """The files `audit-YYYY-MM.jsonl`, filled from the journal when it is folded.

    A crash during a fold may leave an entry here twice, or both here and in the journal. Keys identify duplicates.
    """

    def __init__(self, directory: Path, access: FileAccess) -> None:
        self._directory = directory
        self._access = access

    def append(self, entries: Iterable[KeyedEntry]) -> None:
        """Append entries to the files of their months, durably; one without a readable time follows the one before."""
        months: dict[str, list[bytes]] = {}
        month = _UNKNOWN_MONTH
        for key, document in entries:
            with suppress(KeyError, TypeError, ValueError, OverflowError):
                month = month_of(datetime.fromisoformat(document["at"]))
            months.setdefault(month, []).append(msgspec.json.encode({"id": key, **document}) + b"\n")
        for month, lines in months.items():
            append_lines(self._directory / f"audit-{month}.jsonl", b"".join(lines), self._access)

    def read(self, target: str | None = None) -> Iterator[KeyedEntry]:
        """Yield all entries once each, by month; with a target, at least those about that job or setting."""
        word = b"" if target is None or _ESCAPED.search(target) else b'"%s"' % target.encode()
        for path in sorted(self._directory.glob("audit-????-??.jsonl")):
            yield from _once_each(_entries(path, word))


def _entries(path: Path, word: bytes) -> Iterator[KeyedEntry]:
    """Yield the entries whose lines contain the word; the others are not decoded."""
    with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        for line in file:
            if word not in line:
                continue
            try:
                document: Document = decode_json(line, dict[str, Any])
                key: AuditKey = convert(document.pop("id"), AuditKey)
            except (ValueError, KeyError):
                continue  # torn by a crash, or damaged: the others still count
            yield key, document


def _once_each(entries: Iterable[KeyedEntry]) -> Iterator[KeyedEntry]:
    """Drop duplicates, which occur only within one generation."""
    seen: set[AuditKey] = set()
    generation = None
    for key, document in entries:
        if key[0] != generation:
            generation = key[0]
            seen.clear()
        if key not in seen:
            seen.add(key)
            yield key, document


def submission_entries(jobs: Iterable[Job], actor: Actor) -> Iterator[AuditEntry]:
    """Yield the audit entries of new jobs, one per array."""
    arrays: dict[JobId, list[Job]] = {}
    for job in jobs:
        arrays.setdefault(job.array.id if job.array else job.id, []).append(job)
    return (_entry(group, actor) for group in arrays.values())


def _entry(jobs: list[Job], actor: Actor) -> AuditEntry:
    job, count = jobs[0], sum(job.count for job in jobs)
    after = f"{job.state}: priority {job.priority}" + (", held" if job.held else "")
    after += f", {plural(count, 'element')}" if job.array else ""
    target = f"array {job.array.id}" if job.array else target_of(job)
    return AuditEntry(job.submitted_at, actor.uid, actor.user, "submit", target, "", after)
