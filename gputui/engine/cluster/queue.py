"""The queue of a cluster as the engine tells it: snapshots, jobs and history; and submissions without an answer."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from msgspec import Struct, field

from gputui.domain.errors import ClusterUnavailableError, LostAnswerError, NotFoundError

if TYPE_CHECKING:
    from gputui.domain.access import AuditEntry
    from gputui.domain.accounting import JobRecord
    from gputui.domain.arrays import Entries
    from gputui.domain.job import Job
    from gputui.domain.job_spec import JobId, Submission
    from gputui.domain.recurring import RecurringJob
    from gputui.domain.snapshot import Controls, Snapshot, Unreadable
    from gputui.engine.cluster.measurements import MeasuredJobs
    from gputui.ports import Cluster, StoreWatch

FRESH = 1.0
"""Seconds for which a snapshot is used before the cluster is asked again."""


class EngineQueue(Struct, eq=False):
    """Jobs of a cluster. Controls and recurring jobs are empty: the engine has its own.

    The modules about jobs are imported when they are first read: a submission reads none.
    """

    cluster: Cluster
    _monotonic: Callable[[], float] = time.monotonic
    directory: Path = Path()
    """Directory for what this user's processes keep about the cluster."""
    measured: Callable[[], MeasuredJobs] | None = None
    """Returns what adds telemetry to jobs."""
    _latest: tuple[Snapshot, Entries] | None = None
    _taken_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    on_refresh: Callable[[], None] = lambda: None
    """Called after each change of the cluster by this process."""

    def version(self) -> object:
        """Return a token that changes whenever the cluster would be asked again."""
        return int(self._monotonic() / (2 * FRESH))

    def read(self) -> Snapshot:
        """Return a snapshot that is at most a second old."""
        return self._read()[0]

    def _read(self) -> tuple[Snapshot, Entries]:
        from gputui.domain.arrays import Entries

        with self._lock:
            latest = self._latest
            if latest is None or self._monotonic() - self._taken_at > FRESH:
                snapshot = self.cluster.snapshot()
                if self.measured is not None:
                    snapshot = self.measured().joined(snapshot)
                jobs = sorted(snapshot.jobs, key=lambda job: job.id)
                self._latest = latest = snapshot, Entries({job.id: job for job in jobs})
                self._taken_at = self._monotonic()
            return latest

    def refresh(self) -> None:
        """Ask the cluster again at the next read, as after a change."""
        self._latest = None
        self.on_refresh()

    def jobs(self) -> Entries:
        return self._read()[1]

    def arrays(self) -> Mapping[JobId, Mapping[int, JobId]]:
        from gputui.domain.arrays import places_of

        return places_of(self.jobs().values())

    def get(self, job_id: JobId) -> Job:
        """Return a job; for an array, its first element. The first digits of a long number do, if no other has them.

        Of one that is not in the queue the cluster is asked anew.
        """
        if (job := self.jobs().get(job_id)) is not None:
            return job
        try:
            found = self.cluster.job(job_id)
        except NotFoundError:
            from gputui.domain.arrays import begun_by

            if (begun := begun_by(job_id, chain(self.jobs().values(), self.cluster.history()))) is None:
                raise
            found = begun
        if found.id not in self.jobs() and not found.state.is_terminal:  # it has just been submitted elsewhere
            self.refresh()
        return self.jobs().get(found.id) or next(self._with_telemetry((found,)))

    def whole_id(self, number: JobId) -> JobId:
        from gputui.domain.arrays import number_of

        if number in self.jobs() or number in self.arrays():
            return number
        job = self.get(number)
        return found if str(found := number_of(job)).startswith(str(number)) else job.id

    def past(self, since: datetime | None = None, until: datetime | None = None) -> Iterator[Job]:
        """Yield jobs that the engine has forgotten, the latest month of their end first."""
        return iter(sorted(self._forgotten(since), key=lambda job: f"{job.end:%Y-%m}", reverse=True))

    def records(self, since: datetime | None = None) -> Iterator[JobRecord]:
        from gputui.domain.accounting import record_of

        yield from map(record_of, self.jobs().values())
        yield from map(record_of, self._forgotten(since))

    def _forgotten(self, since: datetime | None) -> Iterator[Job]:
        jobs = self.jobs()
        return self._with_telemetry(job for job in self.cluster.history(since) if job.id not in jobs)

    def _with_telemetry(self, jobs: Iterable[Job]) -> Iterator[Job]:
        return iter(jobs) if self.measured is None else self.measured().jobs(jobs)

    @property
    def store_id(self) -> str:
        return self.cluster.name

    def controls(self) -> Controls:
        from gputui.domain.snapshot import Controls

        return Controls()

    def recurring(self) -> Mapping[JobId, RecurringJob]:
        return {}

    def audit_log(self, target: str | None = None) -> Iterator[AuditEntry]:
        """Yield nothing: the engine has its own log."""
        return iter(())

    def requests(self, uid: int) -> Iterator[tuple[str, tuple[JobId, ...]]]:
        return iter(())

    def watch(self) -> StoreWatch | None:
        """Return None: clusters are polled."""
        return None

    def check(self) -> None:
        """Do nothing: no file is read."""

    def unread(self) -> tuple[str, ...]:
        return ()

    def unreadable(self) -> tuple[Unreadable, ...]:
        return ()

    def close(self) -> None:
        self.cluster.close()


DIRECTORY = "submitting"
"""Directory of these files."""
_AGAIN = "submit the same again within an hour: the job is looked for first, and there is no second one"
_TOLD_WITHIN = 5.0
"""Seconds in which an answer is shown to the user."""
_LASTS = 3600.0
"""Seconds after which the same submission is a new one."""


class UnansweredSubmissions(Struct, eq=False):
    """Such submissions of this process and of earlier ones; without the directory nothing is kept."""

    _parent: Path
    _answered: list[tuple[Path, int]] = field(default_factory=list)

    @contextmanager
    def begun(self, submissions: Sequence[Submission]) -> Iterator[tuple[str, bool]]:
        """Yield the key to submit these with, and whether they are a repetition.

        They stay known until `told`, or some seconds after their answer: also after ClusterUnavailableError, or what
        is no Exception. KeyboardInterrupt gets words for the user.
        """
        self.told()
        if self._parent == Path() or not self._parent.is_dir():
            yield uuid4().hex, False
            return
        content, place = msgspec.json.encode(submissions), self._parent / DIRECTORY
        place.mkdir(mode=0o700, exist_ok=True)
        taken = _taken_over(place, content)
        path, descriptor = taken or _made(place / uuid4().hex, content)
        try:
            yield path.name, taken is not None
        except ClusterUnavailableError as error:
            os.close(descriptor)
            hint = _AGAIN if isinstance(error, LostAnswerError) else error.hint
            raise type(error)(error.what, where=error.where, hint=hint) from error
        except KeyboardInterrupt as stop:
            stop.args = (f"interrupted: whether a job was submitted is not known ({_AGAIN})",)
            raise
        except Exception:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        self._answered.append((path, descriptor))
        later = threading.Timer(_TOLD_WITHIN, self.told)
        later.daemon = True
        later.start()

    def told(self) -> None:
        """Forget those whose answers the user has got by now."""
        while self._answered:
            with suppress(IndexError, OSError):
                path, descriptor = self._answered.pop()
                path.unlink(missing_ok=True)
                os.close(descriptor)


def _made(path: Path, content: bytes) -> tuple[Path, int]:
    """Make the file of a new submission, and lock it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        os.write(descriptor, content)
    except OSError as error:
        path.unlink()
        os.close(descriptor)
        raise OSError(error.errno, f"{error.strerror}, so nothing is submitted", str(path.parent)) from error
    return path, descriptor


def _taken_over(place: Path, content: bytes) -> tuple[Path, int] | None:
    """Return the file of the same submission whose process waits no longer, locked; remove those that are too old."""
    for path in place.iterdir():
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            is_left = False  # nobody waits for the answer, and it has not come; the file is locked then
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(descriptor)
                is_left = status.st_nlink > 0 and time.time() - status.st_mtime < _LASTS
                if not is_left:
                    path.unlink(missing_ok=True)
            if is_left and path.read_bytes() == content:
                return path, descriptor
            os.close(descriptor)
    return None
