"""Append-only files of JSON lines, shared by the processes of one user: notes of submissions, and records of jobs."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.decoding import decode_json, json_decoder
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.telemetry import AttemptTelemetry

K = TypeVar("K")
T = TypeVar("T")
MOST_BYTES = 32 * 1024**2
"""Size above which the older half of a file is dropped."""


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Hold the lock of a file, which is created if missing; yields its descriptor."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


class Journal(Struct, Generic[T], eq=False):
    """A file with a value on each line. A line that cannot be read is left out: a crash may have torn it."""

    _path: Path
    _kind: type[T]
    _most: int = MOST_BYTES
    _file: tuple[int, int] | None = None
    _offset: int = 0
    _reading: Lock = field(default_factory=Lock)

    def mentions(self, text: bytes) -> bool:
        """Return whether the file has these bytes anywhere; much faster than to read its values."""
        try:
            return text in self._path.read_bytes()
        except FileNotFoundError:
            return False

    @property
    def may_lack_older(self) -> bool:
        """Return whether the file was so long that its older half may have been dropped."""
        return self._offset > self._most // 3

    def append(self, values: Iterable[T]) -> None:
        """Add values durably: they are on the disk when this returns."""
        lines = b"".join(msgspec.json.encode(value) + b"\n" for value in values)
        if not lines:
            return
        with locked(self._path.with_suffix(".lock")):
            self._shorten()
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                try:
                    rest = memoryview(b"\n" + lines if torn else lines)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
                    os.fsync(descriptor)
                except OSError as error:
                    os.ftruncate(descriptor, size)  # a full disk takes the beginning, which is none of the values
                    raise OSError(error.errno, error.strerror, str(self._path)) from error
            finally:
                os.close(descriptor)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # the file may be new
            finally:
                os.close(folder)

    def fresh(self) -> tuple[bool, list[T]]:
        """Return the values since the last call, and whether they replace all earlier ones."""
        with self._reading:
            try:
                with self._path.open("rb") as file:
                    status = os.fstat(file.fileno())
                    named = (status.st_dev, status.st_ino)
                    is_new = named != self._file or status.st_size < self._offset
                    if is_new:
                        self._file, self._offset = named, 0
                    file.seek(self._offset)
                    found = []
                    for line in file:  # never the whole file at once: each command reads it
                        if not line.endswith(b"\n"):
                            break
                        self._offset += len(line)
                        with suppress(msgspec.DecodeError, ValueError):
                            found.append(json_decoder(self._kind).decode(line))
                    return is_new, found
            except FileNotFoundError:
                is_new, self._file, self._offset = self._file is not None, None, 0
                return is_new, []

    def _shorten(self) -> None:
        try:
            if self._path.stat().st_size <= self._most:
                return
        except FileNotFoundError:
            return
        content = self._path.read_bytes()
        kept = content[content.index(b"\n", len(content) // 2) + 1 :]
        write_whole(self._path, kept, is_durable=True)


class Index(Generic[K, T]):
    """The last value of each key in a journal, in the order in which these were added."""

    def __init__(self, path: Path, kind: type[T], key: Callable[[T], K], most_bytes: int = MOST_BYTES) -> None:
        self.journal = Journal(path, kind, most_bytes)
        self._key = key
        self._last: dict[K, T] = {}
        self.add = self.journal.append
        """Adds values durably: the `append` of the journal."""

    def all(self) -> dict[K, T]:
        """Return the values by key, with those that other processes have added."""
        is_new, found = self.journal.fresh()
        if is_new:
            self._last = {}
        for each in found:
            key = self._key(each)
            self._last.pop(key, None)
            self._last[key] = each
        return self._last

    def of(self, key: K) -> T | None:
        return self.all().get(key)


def write_whole(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Replace a file, readable by its owner only; a reader sees the old or the new one.

    Without `is_durable` a power loss soon after may leave an empty one. The name is synced by the caller.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        if is_durable:
            file.flush()
            os.fsync(descriptor)
    draft.replace(path)


class Note(Struct, frozen=True, omit_defaults=True):
    """A step of a submission: first what is going to be submitted, then the jobs that it has become."""

    key: str
    at: datetime
    submission: Submission | None = None
    output: str = ""
    namespace: str = ""
    number: int | None = None
    uids: tuple[str, ...] = ()


class Submitted(Struct, frozen=True):
    key: str
    at: datetime
    submission: Submission
    output: str = ""
    """Pattern of the file with its output; in Slurm."""
    namespace: str = ""
    """Namespace of its jobs; in Kubernetes."""
    number: int | None = None
    """Slurm's number of the job or the array."""
    known_at: datetime | None = None
    """When its number, its uids or its refusal were noted."""
    uids: tuple[str, ...] = ()
    """Kubernetes' uids of its jobs, in the order of its indices; empty until the server has told all of them."""


class Submissions:
    """Specs of the jobs that were submitted from this state directory."""

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / "submissions.jsonl", Note)
        self._by_key: dict[str, Submitted] = {}
        self._by_job: dict[int | str, Submitted] = {}

    def intend(self, key: str, submission: Submission, *, output: str = "", namespace: str = "") -> None:
        """Note durably what is going to be submitted."""
        self._journal.append([Note(key, datetime.now(UTC), submission, output, namespace)])

    def note_jobs(self, key: str, number: int | None = None, uids: tuple[str, ...] = ()) -> None:
        """Note durably which jobs it has become, none if it was refused; a full disk leaves it to who sees the jobs."""
        with suppress(OSError):
            self._journal.append([Note(key, datetime.now(UTC), number=number, uids=uids)])

    def of_key(self, key: str) -> Submitted | None:
        if not self._journal.mentions(key.encode()):
            return None
        self.refresh()
        return self._by_key.get(key)

    def of_number(self, number: int) -> Submitted | None:
        self.refresh()
        return self._by_job.get(number)

    def all(self) -> Collection[Submitted]:
        self.refresh()
        return self._by_key.values()

    def of_uid(self, uid: str, key: str, namespace: str) -> Submitted | None:
        """Return the submission that became a job, as of the last `refresh`; others may give theirs any label."""
        found = self._by_job.get(uid)
        if found is None and (named := self._by_key.get(key)) is not None:
            found = named if not named.uids and named.namespace == namespace else None
        return found

    def refresh(self) -> None:
        """Read what other processes have noted."""
        is_new, notes = self._journal.fresh()
        if is_new:
            self._by_key, self._by_job = {}, {}
        for note in notes:
            if note.submission is not None:
                self._by_key[note.key] = Submitted(note.key, note.at, note.submission, note.output, note.namespace)
            elif (known := self._by_key.get(note.key)) is not None:
                settled = self._by_key[note.key] = replace(known, number=note.number, uids=note.uids, known_at=note.at)
                jobs: tuple[int | str, ...] = note.uids if note.number is None else (note.number,)
                self._by_job |= dict.fromkeys(jobs, settled)


_LASTS = timedelta(seconds=30)
"""Time after which idle GPUs that nobody has marked again are not marked any more."""
_AGAIN = timedelta(seconds=10)


class TelemetryRecord(Struct, frozen=True):
    job: JobId
    started: int
    """Second since 1970, which tells runs apart."""
    telemetry: AttemptTelemetry
    gpus: tuple[str, ...] = ()
    """GPUs that it had, as far as they were known."""


class EndNote(Struct, frozen=True):
    job: JobId
    started: int
    words: str


class IdleMarks(Struct, frozen=True):
    """GPUs that are idle, with the time since which they are."""

    at: datetime
    gpus: Mapping[str, datetime] = field(default_factory=dict)


class TelemetryRecords:
    """Telemetry by job and start, as long as the file keeps it; shared by the processes of one user."""

    def __init__(self, directory: Path) -> None:
        self._records = Index(directory / "telemetry.jsonl", TelemetryRecord, lambda each: (each.job, each.started))
        self._found: Mapping[tuple[JobId, int], TelemetryRecord] = {}
        self._ends = Index(directory / "ends.jsonl", EndNote, lambda each: (each.job, each.started))
        self._ended: Mapping[tuple[JobId, int], EndNote] = {}
        self._marks = directory / "idle.json"
        self._marked: IdleMarks | None = None

    @property
    def is_empty(self) -> bool:
        return not self._found and not self._marks.exists()

    def refresh(self) -> None:
        self._found, self._ended = self._records.all(), self._ends.all()

    def of(self, job_id: JobId, started_at: datetime) -> tuple[AttemptTelemetry, tuple[str, ...]] | None:
        found = self._found.get((job_id, int(started_at.timestamp())))
        return (found.telemetry, found.gpus) if found is not None else None

    def add(self, job_id: JobId, started_at: datetime, found: AttemptTelemetry, gpus: tuple[str, ...]) -> None:
        self._records.add([TelemetryRecord(job_id, int(started_at.timestamp()), found, gpus)])

    def note_end(self, job_id: JobId, started_at: datetime, words: str) -> None:
        self._ends.add([EndNote(job_id, int(started_at.timestamp()), words)])

    def end_of(self, job_id: JobId, started_at: datetime) -> str:
        found = self._ended.get((job_id, int(started_at.timestamp())))
        return found.words if found is not None else ""

    def idle(self, now: datetime) -> Mapping[str, datetime]:
        with suppress(OSError, msgspec.DecodeError):
            marks = decode_json(self._marks.read_bytes(), IdleMarks)
            if abs(now - marks.at) <= _LASTS:
                return marks.gpus
        return {}

    def mark(self, gpus: Mapping[str, datetime], now: datetime) -> None:
        before = self._marked
        if before is not None and before.gpus == gpus and (not gpus or now - before.at < _AGAIN):
            return
        self._marked = IdleMarks(now, dict(gpus))
        write_whole(self._marks, msgspec.json.encode(self._marked))


class AnnouncedEnd(Struct, frozen=True):
    event: str
    """Id of the event."""
    at: float
    """Second since 1970."""


class AnnouncedEnds:
    """Ids of the events that were told, as long as the file keeps them."""

    def __init__(self, directory: Path) -> None:
        self._announced = Index(directory / "told.jsonl", AnnouncedEnd, lambda each: each.event, 4 * 1024**2)

    def events(self) -> Collection[str]:
        return self._announced.all().keys()

    def add(self, events: Iterable[str]) -> None:
        now = time.time()
        self._announced.add(AnnouncedEnd(event, now) for event in events)
