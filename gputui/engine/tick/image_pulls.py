"""Images that jobs wait for: one check and one pull of each image, however many jobs want it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct, field

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import NotFoundError, RuntimeFault, StoreError
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.retry import backoff, conclude
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from gputui.engine.tick.start_protocol import given_back, with_wait_ended
from gputui.engine.tick.worker_pools import Pools, WorkKind
from gputui.ports import JobStore, Runtime, SteadyClock, Transaction

log = logging.getLogger(__name__)

ImageKey: TypeAlias = tuple[str, str]
"""Runtime name and image."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
"""Shortest and longest pause after a request for an image that the engine did not answer."""
QUEUED = "waiting for other images to be pulled"


class ImagePull(Struct, eq=False):
    """Image that is being pulled."""

    runtime: Runtime
    image: str
    wanted: set[JobId]
    """Jobs that wait for the image."""
    is_pulling: bool = False
    """True if the image is being pulled, or will be once a worker is free."""
    words: str = QUEUED
    """Progress, in words."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when no job wants the image any more."""
    always: dict[JobId, int] = field(default_factory=dict)
    """Jobs that want a pull even if the image is present, each with its attempt's number."""

    @property
    def key(self) -> ImageKey:
        """Runtime name and image."""
        return self.runtime.name, self.image


class ImagePulls:
    """Registry of images that are present or being pulled. Its public methods never block."""

    def __init__(
        self,
        store: JobStore,
        pools: Pools,
        clock: SteadyClock,
        settings: SchedulerSettings,
        changed: Callable[[str], None],
    ) -> None:
        self._store = store
        self._pools = pools
        self._clock = clock
        self._settings = settings
        self._changed = changed
        self._lock = threading.Lock()
        self._here: set[ImageKey] = set()
        self._fresh: dict[JobId, int] = {}
        """Attempts with `--pull always` whose image has been pulled."""
        self._pulls: dict[ImageKey, ImagePull] = {}
        self._ending: list[ImagePull] = []
        """Pulls that have ended and are not recorded in the store yet."""
        self._unanswered: dict[ImageKey, int] = {}
        """Number of requests in a row, by image, that the engine did not answer."""

    def is_here(self, runtime: Runtime, job_id: JobId, image: str | None, always: int | None = None) -> bool:
        """Return whether the image is known to be present; if not, check for it, and pull it if it is missing.

        `always`: the number of the attempt for which it is pulled even if present.
        """
        if image is None:
            return True
        key = (runtime.name, image)
        with self._lock:
            if self._fresh.get(job_id) == always if always is not None else key in self._here:
                return True
            if any(job_id in each.wanted for each in self._ending):
                return False  # or another pull would fail the job once more before this failure has its pause
            pull = self._pulls.get(key)
            if pull is not None:
                if always is not None:
                    pull.always[job_id] = always
                if job_id in pull.wanted:
                    return False
                pull.wanted.add(job_id)
                if not pull.is_pulling:
                    return False
        if pull is None:
            pull = ImagePull(runtime, image, {job_id}, always={} if always is None else {job_id: always})
            with self._lock:
                self._pulls[key] = pull
            self._pools(WorkKind.LOOK, runtime.name).submit(self._look, pull)
        else:
            self._pools(WorkKind.LOOK, runtime.name).submit(self._join, pull, job_id)
        return False

    def forget(self, runtime: Runtime, image: str | None) -> None:
        """Forget that the image is present, after it was removed."""
        with self._lock:
            self._here.discard((runtime.name, image or ""))

    def is_wanted_by(self, job_id: JobId) -> bool:
        """Return whether the job waits for an image that is being pulled."""
        with self._lock:
            return any(job_id in pull.wanted for pull in (*self._pulls.values(), *self._ending))

    @property
    def progress(self) -> dict[JobId, str]:
        """Progress of each job's pull, in words."""
        with self._lock:
            pulls = [pull for pull in self._pulls.values() if pull.is_pulling]
            return {job_id: pull.words for pull in pulls for job_id in pull.wanted}

    def keep_wanted(self, jobs: Mapping[JobId, Job]) -> None:
        """End the pulls that no job wants any more."""
        with self._lock:
            for key, pull in list(self._pulls.items()):
                pull.wanted = {job_id for job_id in pull.wanted if _wants(jobs.get(job_id), pull.image)}
                if not pull.wanted:
                    self._cancel(key)

    def close(self) -> None:
        """End all pulls; the next scheduler begins them again."""
        with self._lock:
            for key in list(self._pulls):
                self._cancel(key)

    def _cancel(self, key: ImageKey) -> None:
        pull = self._pulls.pop(key)
        pull.wanted = set()
        pull.cancelled.set()

    def _look(self, pull: ImagePull) -> None:
        """Check whether the image is present, and pull it if not."""
        try:
            is_here, fault = pull.runtime.has_image(pull.image), None
        except RuntimeFault as error:
            is_here, fault = False, error
        except Exception as error:  # noqa: BLE001 - the border of a worker
            is_here, fault = False, _unexpected(pull.image, error)
        with self._lock:
            pull.is_pulling = fault is None and (not is_here or bool(pull.always))
            jobs = sorted(pull.wanted)
        if not pull.is_pulling:
            self._end(pull, fault)
            return
        if self._begin(pull, jobs):
            self._pools(WorkKind.PULL, pull.runtime.name).submit(self._pull, pull)

    def _join(self, pull: ImagePull, job_id: JobId) -> None:
        """Record in the store that one more job waits for a current pull."""
        with self._lock:
            is_under_way = job_id in pull.wanted
        if is_under_way:
            self._begin(pull, [job_id])

    def _begin(self, pull: ImagePull, jobs: list[JobId]) -> bool:
        """Make the jobs CONFIGURING; if the store refuses, they request the image again at the next tick."""
        try:
            begin_pull(self._store, jobs, self._clock.now())
        except StoreError as error:
            log.warning("image %s for %d jobs: %s", pull.image, len(jobs), error)
        except Exception:  # the border of a worker
            log.exception("beginning to pull %s", pull.image)
        else:
            return True
        with self._lock:
            pull.wanted -= set(jobs)
            if not pull.wanted and self._pulls.get(pull.key) is pull:
                self._cancel(pull.key)
        return False

    def _pull(self, pull: ImagePull) -> None:
        def tell(words: str) -> None:
            pull.words = words

        if pull.cancelled.is_set():
            return
        fault = None
        tell("pulling")
        try:
            pull.runtime.pull(pull.image, tell, pull.cancelled)
        except RuntimeFault as error:
            fault = error
        except Exception as error:  # noqa: BLE001 - the border of a worker
            fault = _unexpected(pull.image, error)
        self._end(pull, fault)

    def _end(self, pull: ImagePull, fault: RuntimeFault | None) -> None:
        """Put the jobs back in the queue, or record the failed attempt if the image cannot be pulled."""
        if pull.cancelled.is_set():
            log.info("the pull of %s was ended: no job wants it", pull.image)
            return
        with self._lock:
            if self._pulls.get(pull.key) is pull:
                del self._pulls[pull.key]
            if fault is None:
                self._here.add(pull.key)
                self._fresh |= pull.always if pull.is_pulling else {}
            self._ending.append(pull)
            jobs = sorted(pull.wanted)
            is_lost = fault is not None and fault.cause.code is CauseCode.RUNTIME_UNAVAILABLE
            lost = self._unanswered.pop(pull.key, 0) + is_lost
            if is_lost:
                self._unanswered[pull.key] = lost
        if fault is not None and lost <= 1:
            log.warning("image %s: %s", pull.image, fault)
        try:
            end_pull(self._store, jobs, fault, self._clock.now(), self._settings, lost)
        except StoreError as error:  # the jobs return to the queue once the store can be written again
            log.warning("image %s for %d jobs: %s", pull.image, len(jobs), error)
        except Exception:  # the border of a worker
            log.exception("ending the pull of %s", pull.image)
        finally:
            with self._lock:
                self._ending.remove(pull)
        self._changed(pull.runtime.name)


def _wants(job: Job | None, image: str) -> bool:
    """Return whether a job still waits for the image; False once it was cancelled, edited or removed."""
    if job is None or job.spec.image != image or job.cancel_requested:
        return False
    has_container = job.attempt is not None and not job.attempt.is_over
    return not has_container and job.state in {JobState.PENDING, JobState.CONFIGURING}


def _unexpected(image: str, error: Exception) -> RuntimeFault:
    log.error("fetching %s", image, exc_info=error)
    return RuntimeFault(Cause(CauseCode.PULL_FAILED, f"cannot pull {image}: {type(error).__name__}: {error}"))


def begin_pull(store: JobStore, jobs: Iterable[JobId], now: datetime) -> None:
    """Make the jobs that still wait CONFIGURING while their image is pulled, without assigning GPUs."""
    with store.transaction() as transaction:
        for job in _found(transaction, jobs):
            if _waits(job, now):
                transaction.put(job.to(JobState.CONFIGURING))


def end_pull(
    store: JobStore,
    jobs: Iterable[JobId],
    fault: RuntimeFault | None,
    now: datetime,
    settings: SchedulerSettings,
    lost: int = 0,
) -> None:
    """Put the jobs back in the queue, or record the failed attempt if the image cannot be pulled.

    `lost`: how many requests in a row the engine did not answer. That costs no attempt, but a pause.
    """
    with store.transaction() as transaction:
        for job in _found(transaction, jobs):
            is_fetching = job.state is JobState.CONFIGURING and (job.attempt is None or job.attempt.is_over)
            if not (is_fetching or _waits(job, now)):
                continue
            if fault is not None and lost:
                pause = backoff(_FIRST_PAUSE, lost, _LONGEST_PAUSE, f"{job.id}:{lost}")
                back = given_back(job) if is_fetching else job
                transaction.put(back.evolve(not_before=now + pause, cause=fault.cause))
            elif fault is not None:
                transaction.put(_failed_pull(job, fault.cause, now, settings))
            elif is_fetching:
                transaction.put(given_back(job))


def _waits(job: Job, now: datetime) -> bool:
    """Return whether the job waits, and is not in the pause after a failure.

    A tick that has not seen the failure yet may ask for its image again; that must not cost another attempt.
    """
    return job.state is JobState.PENDING and (job.not_before is None or job.not_before <= now)


def _found(transaction: Transaction, jobs: Iterable[JobId]) -> Iterator[Job]:
    """Yield the jobs that still exist."""
    for job_id in jobs:
        try:
            yield transaction.get(job_id)
        except NotFoundError:
            continue


def _failed_pull(job: Job, cause: Cause, now: datetime, settings: SchedulerSettings) -> Job:
    attempt = Attempt(job.next_attempt, (), claimed_at=now)
    job = with_wait_ended(job, now)
    configuring = job if job.state is JobState.CONFIGURING else job.to(JobState.CONFIGURING)
    return conclude(configuring.evolve(attempts=(*job.attempts, attempt)), cause, None, now, settings)
