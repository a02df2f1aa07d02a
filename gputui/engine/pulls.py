"""Images that jobs wait for: one look and one pull for each image, however many jobs want it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault, StoreError
from gputui.domain.job import Job, JobId
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from gputui.engine import work
from gputui.engine.pools import Pools, Work
from gputui.ports import JobStore, Runtime, SteadyClock

log = logging.getLogger(__name__)

Key: TypeAlias = tuple[str, str]
"""A runtime's name and an image."""
QUEUED = "waiting for other images to be pulled"


@dataclass(eq=False)
class Pull:
    """Image that is being pulled."""

    runtime: Runtime
    image: str
    wanted: set[JobId]
    """Jobs that want it."""
    is_pulling: bool = False
    """The image is not here: it is being pulled, or will be as soon as there is a free worker."""
    words: str = QUEUED
    """Its progress."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """No job wants it any more."""
    always: dict[JobId, int] = field(default_factory=dict)
    """Jobs that want it fetched even if it is here, each with the number of the attempt it is for."""

    @property
    def key(self) -> Key:
        """The runtime's name and the image."""
        return self.runtime.name, self.image


class Pulls:
    """Registry of images that are here or on their way. Its public methods never block."""

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
        self._here: set[Key] = set()
        self._fresh: dict[JobId, int] = {}
        """Attempts whose image was pulled for them because they always want it."""
        self._pulls: dict[Key, Pull] = {}
        self._ending: list[Pull] = []
        """Pulls that have ended, and whose jobs the store does not know of yet."""

    def is_here(self, runtime: Runtime, job_id: JobId, image: str | None, always: int | None = None) -> bool:
        """Return whether the image is known to be here; if not, have it looked for, and pulled where it is missing.

        `always`: the number of the attempt for which it is pulled even if it is here.
        """
        if image is None:
            return True
        key = (runtime.name, image)
        with self._lock:
            if self._fresh.get(job_id) == always if always is not None else key in self._here:
                return True
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
            pull = Pull(runtime, image, {job_id}, always={} if always is None else {job_id: always})
            with self._lock:
                self._pulls[key] = pull
            self._pools(Work.LOOK, runtime.name).submit(self._look, pull)
        else:
            self._pools(Work.LOOK, runtime.name).submit(self._join, pull, job_id)
        return False

    def forget(self, runtime: Runtime, image: str | None) -> None:
        """Look for the image again: it was here a moment ago, and is not any more."""
        with self._lock:
            self._here.discard((runtime.name, image or ""))

    def is_wanted_by(self, job_id: JobId) -> bool:
        """Return whether the job waits for an image that is on its way."""
        with self._lock:
            return any(job_id in pull.wanted for pull in (*self._pulls.values(), *self._ending))

    @property
    def progress(self) -> dict[JobId, str]:
        """Words on the progress of each job's pull."""
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
        """End all pulls: the next scheduler begins them anew."""
        with self._lock:
            for key in list(self._pulls):
                self._cancel(key)

    def _cancel(self, key: Key) -> None:
        pull = self._pulls.pop(key)
        pull.wanted = set()
        pull.cancelled.set()

    def _look(self, pull: Pull) -> None:
        """Pull the image unless it is here."""
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
            self._pools(Work.PULL, pull.runtime.name).submit(self._pull, pull)

    def _join(self, pull: Pull, job_id: JobId) -> None:
        """Have the store say that one more job waits for a pull under way."""
        with self._lock:
            is_under_way = job_id in pull.wanted
        if is_under_way:
            self._begin(pull, [job_id])

    def _begin(self, pull: Pull, jobs: list[JobId]) -> bool:
        """Make the jobs CONFIGURING; where the store refuses they want the image anew at the next tick."""
        try:
            work.begin_pull(self._store, jobs)
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

    def _pull(self, pull: Pull) -> None:
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

    def _end(self, pull: Pull, fault: RuntimeFault | None) -> None:
        """Put the jobs back in the queue, or write down the attempt that failed for want of the image."""
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
        if fault is not None:
            log.warning("image %s: %s", pull.image, fault)
        try:
            work.end_pull(self._store, jobs, fault, self._clock.now(), self._settings)
        except StoreError as error:  # the jobs are given back once the store can be written again
            log.warning("image %s for %d jobs: %s", pull.image, len(jobs), error)
        except Exception:  # the border of a worker
            log.exception("ending the pull of %s", pull.image)
        finally:
            with self._lock:
                self._ending.remove(pull)
        self._changed(pull.runtime.name)


def _wants(job: Job | None, image: str) -> bool:
    """Return whether a job still waits for the image: not once it was cancelled, edited or removed."""
    if job is None or job.spec.image != image or job.cancel_requested:
        return False
    has_container = job.attempt is not None and not job.attempt.is_over
    return not has_container and job.state in {JobState.PENDING, JobState.CONFIGURING}


def _unexpected(image: str, error: Exception) -> RuntimeFault:
    log.error("fetching %s", image, exc_info=error)
    return RuntimeFault(Cause(CauseCode.PULL_FAILED, f"cannot pull {image}: {type(error).__name__}: {error}"))
