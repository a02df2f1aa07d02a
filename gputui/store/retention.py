"""Retention: when finished jobs move from the queue to history, and how far back history and audit log reach.

Old months are removed whole. The oldest that is left is cut: a shorter copy takes its place. So a scheduler that is
killed leaves either file, and the next one continues. Each step removes or cuts one file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui.domain.decoding import json_decoder
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.kept_data import KeepLimits, KeptData
from gputui.domain.settings import StoreSettings
from gputui.store.codec import decode_job
from gputui.store.files import FileAccess, keep_ranges, open_file, os_errors, remove_lines


def jobs_to_archive(jobs: Iterable[Job], settings: StoreSettings, now: datetime) -> list[Job]:
    """Return the finished jobs to move to history, oldest first: too old, or beyond the number to keep.

    Elements of an array on which a waiting job depends stay, so that the scheduler sees the end of all of them.
    """
    known = list(jobs)
    awaited = {
        job_id
        for job in known
        if not job.state.is_terminal and (job.spec.after or job.spec.after_any)
        for job_id in job.spec.after + job.spec.after_any
    }
    finished = sorted(
        (job for job in known if job.has_ended and (job.array is None or job.array.id not in awaited)),
        key=lambda job: (job.end, job.id),
    )
    surplus = len(finished) - settings.keep_finished
    oldest_kept = now - settings.history_after
    return [job for place, job in enumerate(finished) if place < surplus or job.end < oldest_kept]


def month_of(moment: datetime) -> str:
    """Return the month in the notation of file names: `2026-03`."""
    return f"{moment:%Y-%m}"


def month_files(directory: Path, kind: str) -> list[Path]:
    """Return the files `KIND-YYYY-MM.jsonl`, oldest month first, and before one the `.json` of version 0.1."""
    found = [*directory.glob(f"{kind}-????-??.json"), *directory.glob(f"{kind}-????-??.jsonl")]
    return sorted(found, key=lambda path: (path.stem, path.suffix))


CHECK_EVERY = timedelta(hours=1)
SLACK = timedelta(days=1)
"""Time for which lines may stay beyond their age, so that a file is cut at most once a day."""
MOST_LINES = 50_000
"""Lines that are read in one step."""
_SPARE = 10
"""Part of the size, as a divisor, that is freed beyond the limit, so that it is not reached again at once."""


class LineFiles(Struct):
    """Files of a month each: `PREFIX-YYYY-MM.jsonl`, or of version 0.1 `PREFIX-YYYY-MM.json`."""

    directory: Path
    kind: str
    time_of: Callable[[bytes], datetime | None]
    """Returns the time of a line; None for a damaged one."""
    limits: KeepLimits

    def kept(self) -> KeptData:
        """Return size, number and oldest entry of the files, with their limits."""
        paths = month_files(self.directory, self.kind)
        oldest = self._first_time(paths[0]) if paths else None
        return KeptData(self.kind, sum(map(_size, paths)), len(paths), oldest, self.limits)

    def trim(self, access: FileAccess, now: datetime) -> bool:
        """Remove or cut the oldest file where a limit asks for it; return whether it did."""
        paths = month_files(self.directory, self.kind)
        if not paths or not self.limits.are_set:
            return False
        oldest, total = paths[0], sum(map(_size, paths))
        surplus = 0 if self.limits.max_age is None else self._too_old(oldest, self.limits.max_age, now)
        most = self.limits.max_size
        if most is not None and total > most:
            too_much = total - most + most // _SPARE
            if too_much < _size(oldest):
                too_much = self._length(oldest, lambda start, _: start < too_much)
            surplus = max(surplus, too_much)
        if surplus <= 0:
            return False
        if surplus >= _size(oldest) or oldest.suffix == ".json":
            remove_lines(oldest, access)
        else:
            keep_ranges(oldest, [(surplus, None)], access)
        return True

    def _too_old(self, path: Path, max_age: timedelta, now: datetime) -> int:
        """Return the bytes at the beginning of the file that are too old; all if its whole month is."""
        before = now - max_age
        if (_month(path) + timedelta(days=31)).replace(day=1) <= before:
            return _size(path)
        first = self._first_time(path)
        if path.suffix == ".json" or first is None or first >= before - min(SLACK, max_age / 10):
            return 0
        return self._length(path, lambda _, at: at < before)

    def _length(self, path: Path, is_surplus: Callable[[int, datetime], bool]) -> int:
        """Return the length of the lines at the beginning of which that is so; a damaged line goes with the one before.

        `is_surplus` gets the offset and the time of a line.
        """
        length = 0
        for start, line in islice(_lines(path), MOST_LINES):
            at = self.time_of(line)
            if at is not None and not is_surplus(start, at):
                break
            length = start + len(line)
        return length

    def _first_time(self, path: Path) -> datetime | None:
        """Return the time of the first line that can be read; of a file of 0.1 the beginning of its month."""
        if path.suffix == ".json":
            return _month(path)
        times = (self.time_of(line) for _, line in islice(_lines(path), 100))
        return next((at for at in times if at is not None), None)


class Trimmer(Struct):
    """Keeps history and audit log within their limits, one step at a time."""

    directory: Path
    settings: StoreSettings
    access: FileAccess
    _due: datetime | None = None
    _is_begun: bool = False

    def step(self, now: datetime) -> None:
        """Remove or cut at most one file of each kind; once an hour, and again at once while there is more to do."""
        if self._due is not None and self._due - CHECK_EVERY <= now < self._due:
            return
        if not self._is_begun:
            self._is_begun = True
            for path in self.directory.glob("*-????-??.jsonl.*.tmp"):
                with os_errors(path):  # only the scheduler trims, so nobody else writes a copy now
                    path.unlink(missing_ok=True)
        has_more = [files.trim(self.access, now) for files in line_files(self.directory, self.settings)]
        self._due = None if any(has_more) else now + CHECK_EVERY


def line_files(directory: Path, settings: StoreSettings) -> tuple[LineFiles, LineFiles]:
    history = KeepLimits(settings.history_max_age, settings.history_max_size)
    audit = KeepLimits(settings.audit_max_age, settings.audit_max_size)
    return (
        LineFiles(directory, "history", _time_of_job, history),
        LineFiles(directory, "audit", _time_of_entry, audit),
    )


class _TimedEntry(msgspec.Struct):
    at: datetime


class _TimedJob(msgspec.Struct):
    id: int
    job: dict[str, Any]


_ENTRY = json_decoder(_TimedEntry)
_JOB = json_decoder(_TimedJob)


def _time_of_entry(line: bytes) -> datetime | None:
    with suppress(msgspec.MsgspecError):
        return _ENTRY.decode(line).at
    return None


def _time_of_job(line: bytes) -> datetime | None:
    """Return when the job of a line ended; None for a damaged line."""
    with suppress(msgspec.MsgspecError, GputuiError):
        found = _JOB.decode(line)
        return decode_job(found.id, found.job).end
    return None


_LONGEST = 64 * 1024**2
"""Bytes."""


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield offset and content of each line, up to one that is longer than any of ours."""
    start = 0
    with os_errors(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        while (line := file.readline(_LONGEST)) and len(line) < _LONGEST:
            yield start, line
            start += len(line)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _month(path: Path) -> datetime:
    """Return the beginning of the month of a file."""
    year, month = path.stem.split("-")[-2:]
    return datetime(int(year), int(month), 1, tzinfo=UTC)
