"""Workers that start, stop and clean up attempts, and the record of which attempts they are working on."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState, Launch
from gputui.domain.errors import Cause, CauseCode, NotFoundError, RuntimeFault, RuntimeUnavailableError, StoreError
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.retry import backoff, conclude, pause_end
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.state import JobState
from gputui.engine.actions.permissions import UserPermissions
from gputui.engine.files import folder_in, is_file, open_file
from gputui.engine.saved_logs import log_path
from gputui.engine.telemetry_files import AttemptKey, forget_input
from gputui.engine.tick.start_protocol import (
    NO_SIGNS,
    FailureSigns,
    given_back,
    read_signs,
    start_attempt,
    under_way,
    with_wait_ended,
)
from gputui.engine.tick.workers import Pools, Sequence, WorkKind
from gputui.ports import JobStore, Runtime, SteadyClock, Transaction
from gputui.ports.monitor import about

log = logging.getLogger(__name__)

ImageKey: TypeAlias = tuple[str, str]
"""Runtime name and image."""
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=1), timedelta(seconds=30)
"""Shortest and longest pause after a request for an image that the engine did not answer."""
QUEUED = "waiting for other images to be pulled"


# images that jobs wait for: one check and one pull of each image, however many jobs want it
class ImagePull(Struct, eq=False):
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
        return self.runtime.name, self.image


class ImagePulls(Struct, eq=False):
    """Registry of images that are present or being pulled. Its public methods never block."""

    _store: JobStore
    _pools: Pools
    _clock: SteadyClock
    _settings: SchedulerSettings
    _changed: Callable[[str], None]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _here: set[ImageKey] = field(default_factory=set)
    _fresh: dict[JobId, int] = field(default_factory=dict)
    """Attempts with `--pull always` whose image has been pulled."""
    _pulls: dict[ImageKey, ImagePull] = field(default_factory=dict)
    _ending: list[ImagePull] = field(default_factory=list)
    """Pulls that have ended and are not recorded in the store yet."""
    _unanswered: dict[ImageKey, int] = field(default_factory=dict)
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
        with self._lock:
            self._here.discard((runtime.name, image or ""))

    def is_wanted_by(self, job_id: JobId) -> bool:
        with self._lock:
            return any(job_id in pull.wanted for pull in (*self._pulls.values(), *self._ending))

    @property
    def progress(self) -> dict[JobId, str]:
        with self._lock:
            pulls = [pull for pull in self._pulls.values() if pull.is_pulling]
            return {job_id: pull.words for pull in pulls for job_id in pull.wanted}

    def keep_wanted(self, jobs: Mapping[JobId, Job]) -> None:
        """Cancel the pulls that no job waits for: it was cancelled, edited or removed, or has a container."""

        def wants(job: Job | None, image: str) -> bool:
            if job is None or job.spec.image != image or job.cancel_requested:
                return False
            has_container = job.attempt is not None and not job.attempt.is_over
            return not has_container and job.state in {JobState.PENDING, JobState.CONFIGURING}

        with self._lock:
            for key, pull in list(self._pulls.items()):
                pull.wanted = {job_id for job_id in pull.wanted if wants(jobs.get(job_id), pull.image)}
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
        elif self._begin(pull, jobs):
            self._pools(WorkKind.PULL, pull.runtime.name).submit(self._pull, pull)

    def _join(self, pull: ImagePull, job_id: JobId) -> None:
        with self._lock:
            is_under_way = job_id in pull.wanted
        if is_under_way:
            self._begin(pull, [job_id])

    def _begin(self, pull: ImagePull, jobs: list[JobId]) -> bool:
        """Make the jobs CONFIGURING; if the store refuses, they request the image again at the next tick."""
        try:
            begin_pull(self._store, jobs, self._clock.now(), self._settings)
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
        if pull.cancelled.is_set():
            return
        fault, pull.words = None, "pulling"
        try:
            pull.runtime.pull(pull.image, partial(setattr, pull, "words"), pull.cancelled)
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


def _unexpected(image: str, error: Exception) -> RuntimeFault:
    log.error("fetching %s", image, exc_info=error)
    return RuntimeFault(Cause(CauseCode.PULL_FAILED, f"cannot pull {image}: {type(error).__name__}: {error}"))


def begin_pull(store: JobStore, jobs: Iterable[JobId], now: datetime, settings: SchedulerSettings) -> None:
    """Make the jobs that still wait CONFIGURING while their image is pulled, without assigning GPUs."""
    with store.transaction() as transaction:
        for job in _found(transaction, jobs):
            if _waits(job, now, settings):
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
            if not (is_fetching or _waits(job, now, settings)):
                continue
            if fault is not None and lost:
                pause = backoff(_FIRST_PAUSE, lost, _LONGEST_PAUSE, f"{job.id}:{lost}")
                back = given_back(job) if is_fetching else job
                transaction.put(back.evolve(not_before=now + pause, cause=fault.cause))
            elif fault is not None:
                attempts = (*job.attempts, Attempt(job.next_attempt, (), claimed_at=now))
                job = with_wait_ended(job, now)
                configuring = job if job.state is JobState.CONFIGURING else job.to(JobState.CONFIGURING)
                transaction.put(conclude(configuring.evolve(attempts=attempts), fault.cause, None, now, settings))
            elif is_fetching:
                transaction.put(given_back(job))


def _waits(job: Job, now: datetime, settings: SchedulerSettings) -> bool:
    """Return whether the job waits, and is not in the pause after a failure.

    A tick that has not seen the failure yet may ask for its image again; that must not cost another attempt.
    """
    return job.state is JobState.PENDING and pause_end(job, now, settings.backoff_cap) is None


def _found(transaction: Transaction, jobs: Iterable[JobId]) -> Iterator[Job]:
    for job_id in jobs:
        try:
            yield transaction.get(job_id)
        except NotFoundError:
            continue


RETRY_CLEANING = timedelta(seconds=30)
REMEMBERED = 8192
"""Number of attempts whose last work is remembered."""


class AttemptWorkers(Struct, eq=False):
    """Runs blocking runtime calls in worker pools. Its own methods never block; `changed` is called after each call."""

    _store: JobStore
    _pools: Pools
    _clock: SteadyClock
    _settings: Settings
    _changed: Callable[[str], None]
    pulls: ImagePulls
    _directory: Path
    _sequence: Sequence
    _permissions: UserPermissions | None = None
    _before_start: Callable[[JobId], None] = lambda job_id: None
    """Called in a worker for an interactive job whose container is about to start."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _busy: set[AttemptKey] = field(default_factory=set)
    _worked_on: dict[AttemptKey, int] = field(default_factory=dict)
    _signalled: dict[AttemptKey, str] = field(default_factory=dict)
    _failure_signs: dict[AttemptKey, FailureSigns] = field(default_factory=dict)
    _cleaned_at: dict[str, datetime] = field(default_factory=dict)
    _cleaning: set[str] = field(default_factory=set)
    _kept: dict[str, str] = field(default_factory=dict)
    """Reasons for keeping containers, by container id; each has been logged."""
    _signalling: set[AttemptKey] = field(default_factory=set)
    _suspending: set[AttemptKey] = field(default_factory=set)

    def is_busy(self, key: AttemptKey) -> bool:
        """Return whether a worker is working on that attempt; number 0 means the pull of the job's image."""
        job_id, number = key
        if not number:
            return self.pulls.is_wanted_by(job_id)
        with self._lock:
            return key in self._busy

    def last_worked_on(self, key: AttemptKey) -> int:
        """Returns the sequence number of this process's last work on that attempt; 0 for none."""
        with self._lock:
            return self._worked_on.get(key, 0)

    def note_given_back(self, key: AttemptKey) -> None:
        """Remember that this attempt's number was released, in case its container appears late."""
        with self._lock:
            self._note(key)

    def start(self, runtime: Runtime, launch: Launch) -> None:
        """Create and start the container of a claimed attempt."""
        key = (launch.job_id, launch.attempt)

        def start() -> None:
            is_known = False
            """True if the store knows how the start ended. Else the next regular listing shows it: one requested now
            would repeat the start without a pause."""
            try:
                rules = self._permissions
                permit = None
                if rules:
                    rules = replace(rules, engine_url=lambda: runtime.status().address)
                    permit = partial(rules.permitted, runtime.root_directory, follow=runtime.real_path)
                fault = start_attempt(
                    self._store, runtime, launch, self._clock, self._settings, permit, self._before_start
                )
                if fault is not None and fault.cause.code is CauseCode.IMAGE_NOT_FOUND:
                    self.pulls.forget(runtime, launch.spec.image)
                is_known = fault is None or fault.cause.code is not CauseCode.RUNTIME_UNAVAILABLE
            except StoreError as error:  # reconciliation records RUNNING once the store can be written again
                is_known = True
                log.warning("job %d was started, but the store cannot say so: %s", launch.job_id, error)
            except Exception:  # the border of a worker: the next listing shows how far it got
                log.exception("starting job %d", launch.job_id, extra=about(*key, launch.gpus))
            finally:
                self._finish_work(key, runtime.name, tell=is_known)

        with self._lock:
            self._busy.add(key)
            self._signalled.pop(key, None)
        self._pools(WorkKind.START, runtime.name).submit(start)

    def signal_end(self, runtime: Runtime, key: AttemptKey, container_id: str, how: str) -> None:
        """Signal the container to end, once for each `how`: `terminate`, or any other word for SIGKILL.

        While a signal is being sent no further one is queued: the next tick asks again.
        """

        def signal() -> None:
            is_sent = False
            try:
                (runtime.terminate if how == "terminate" else runtime.kill)(container_id)
                is_sent = True
            except RuntimeFault as fault:
                log.warning("could not %s %s: %s", how, container_id[:12], fault)
            except Exception:  # the border of a worker: the next tick asks again
                log.exception("could not %s %s", how, container_id[:12])
            finally:
                with self._lock:
                    self._signalling.discard(key)
                    if not is_sent:
                        self._signalled.pop(key, None)

        with self._lock:
            if key in self._signalling or self._signalled.get(key) == how:
                return
            self._signalled[key] = how
            self._signalling.add(key)
            _forget_oldest(self._signalled)
        self._pools(WorkKind.STOP, runtime.name).submit(signal)

    def failure_signs(self, runtime: Runtime, record: ContainerRecord, job: Job) -> FailureSigns | None:
        """Return the cause as the end of the failed attempt's output tells it; None while a worker reads it."""
        key = (record.job_id, record.attempt)

        def read() -> None:
            signs = NO_SIGNS
            try:
                signs = read_signs(runtime, record, job)
            except Exception:  # the border of a worker: unreadable output shows nothing
                log.exception("looking at the output of job %d", record.job_id, extra=about(*key))
            finally:
                with self._lock:
                    self._failure_signs[key] = signs
                self._finish_work(key, runtime.name)

        with self._lock:
            begin = key not in self._failure_signs and key not in self._busy
            if begin:
                self._busy.add(key)
        if begin:
            self._pools(WorkKind.EXIT, runtime.name).submit(read)
        with self._lock:
            return self._failure_signs.get(key)

    def known_failure_signs(self, record: ContainerRecord) -> FailureSigns:
        with self._lock:
            return self._failure_signs.get((record.job_id, record.attempt), NO_SIGNS)

    def forget_failure_signs(self, recorded: Iterable[ContainerRecord]) -> None:
        """Forget the signs of attempts whose ends are in the store; without them a worker reads the output again."""
        with self._lock:
            for record in recorded:
                self._failure_signs.pop((record.job_id, record.attempt), None)

    def warn(self, runtime: Runtime, key: AttemptKey, container_id: str, number: int) -> None:
        """Send the signal that warns of the time limit; the store has recorded it already."""

        def warn() -> None:
            try:
                runtime.signal(container_id, number)
            except Exception as fault:  # the border of a worker
                unknown = None if isinstance(fault, RuntimeFault) else fault
                log.warning("could not warn %s of its time limit: %s", container_id[:12], fault, exc_info=unknown)
                if not isinstance(fault, RuntimeUnavailableError):  # any other would come again, in the next tick
                    return
                try:  # the warning was not sent, so it is retried
                    with self._store.transaction() as transaction:
                        job = under_way(transaction, *key)
                        if job is not None:
                            transaction.put(job.with_attempt(warned_at=None))
                except Exception as error:  # noqa: BLE001 - the border of a worker
                    log.warning("job %d will not be warned of its time limit: %s", key[0], error, extra=about(*key))

        self._pools(WorkKind.STOP, runtime.name).submit(warn)

    def is_suspending(self, key: AttemptKey) -> bool:
        with self._lock:
            return key in self._suspending

    def set_suspended(self, runtime: Runtime, key: AttemptKey, container_id: str, *, is_suspended: bool) -> None:
        """Suspend the attempt or let it continue; while a request is active no further one is queued."""

        def work() -> None:
            is_done = False
            try:
                (runtime.suspend if is_suspended else runtime.unsuspend)(container_id)
                is_done = True
            except Exception as fault:  # the border of a worker: the tick after the next regular listing asks again
                unknown = None if isinstance(fault, RuntimeFault) else fault
                word = "suspended" if is_suspended else "woken"
                log.warning("job %d could not be %s: %s", key[0], word, fault, exc_info=unknown)
            finally:
                with self._lock:
                    self._note(key)
                    self._suspending.discard(key)
                if is_done:
                    self._changed(runtime.name)

        with self._lock:
            if key in self._suspending:
                return
            self._suspending.add(key)
        self._pools(WorkKind.STOP, runtime.name).submit(work)

    def send_signals(self, runtime: Runtime, key: AttemptKey, container_id: str, numbers: tuple[int, ...]) -> None:
        """Send signals that users requested, in order; the store has already recorded them as sent."""

        def send() -> None:
            left = list(numbers)
            try:
                while left:
                    runtime.signal(container_id, left[0])
                    del left[0]
            except RuntimeUnavailableError as fault:
                log.warning("job %d: signals are sent when it answers again: %s", key[0], fault, extra=about(*key))
                try:
                    with self._store.transaction() as transaction:
                        if job := under_way(transaction, *key):
                            transaction.put(job.evolve(signals=(*left, *job.signals)))
                except Exception as error:  # noqa: BLE001 - the border of a worker
                    log.warning("job %d: its signals are lost: %s", key[0], error, extra=about(*key))
            except Exception as fault:  # the border of a worker
                unknown = None if isinstance(fault, RuntimeFault) else fault
                log.warning("job %d: its signal was not sent: %s", key[0], fault, exc_info=unknown)

        self._pools(WorkKind.STOP, runtime.name).submit(send)

    def clean(self, runtime: Runtime, record: ContainerRecord, now: datetime) -> None:
        """Save an ended container's output and remove it; one clean-up at a time, repeated after `RETRY_CLEANING`."""
        with self._lock:
            last = self._cleaned_at.get(record.id)
            if record.id in self._cleaning or (last is not None and last <= now < last + RETRY_CLEANING):
                return
            self._cleaned_at[record.id] = now
            self._cleaning.add(record.id)
        self._pools(WorkKind.CLEAN, runtime.name).submit(self._clean, runtime, record)

    def _clean(self, runtime: Runtime, record: ContainerRecord) -> None:
        is_clean = False
        try:
            clean_up(runtime, record, self._directory)
            is_clean = True
        except OSError as error:
            self._log_kept(record, f"its log cannot be saved: {error}")
        except RuntimeFault as fault:
            self._log_kept(record, str(fault))
        except Exception:  # the border of a worker
            log.exception("cleaning up %s", record.id[:12])
        finally:
            with self._lock:
                self._cleaning.discard(record.id)
                if is_clean:
                    self._cleaned_at.pop(record.id, None)
                    self._kept.pop(record.id, None)

    def _log_kept(self, record: ContainerRecord, why: str) -> None:
        if self._kept.get(record.id) != why:
            self._kept[record.id] = why
            name = record.id if record.id.startswith("gputui-") else record.id[:12]
            log.warning("container %s is kept: %s", name, why)

    def _finish_work(self, key: AttemptKey, runtime_name: str, *, tell: bool = True) -> None:
        with self._lock:
            self._note(key)
            self._busy.discard(key)
        if tell:
            self._changed(runtime_name)

    def _note(self, key: AttemptKey) -> None:
        """Note that the attempt was worked on just now. Call it with the lock held."""
        self._worked_on.pop(key, None)  # so that it becomes the youngest
        self._worked_on[key] = self._sequence.next()
        _forget_oldest(self._worked_on)


def _forget_oldest(book: dict[AttemptKey, Any]) -> None:
    """Drop the oldest entry of a growing record; listings are far younger than it."""
    if len(book) > REMEMBERED:
        del book[next(iter(book))]


def clean_up(runtime: Runtime, record: ContainerRecord, directory: Path) -> None:
    if record.state is ContainerState.EXITED:
        place, _, name = log_path(record.job_id, record.attempt).rpartition("/")
        with folder_in(directory, place) as folder:
            if not is_file(folder / name):
                (folder / name).unlink(missing_ok=True)  # a planted link
                try:
                    runtime.save_log(record.id, folder / name)
                except RuntimeFault:
                    if runtime.inspect(record.id) is not None:
                        raise
                    text = "job %d: the output of attempt %d was removed with its container"
                    log.warning(text, record.job_id, record.attempt)
                    return
            with suppress(PermissionError):  # another member saved it, with access for itself only
                os.close(open_file(folder / name, os.O_RDONLY))
            with suppress(OSError):  # the marks of standard error, which few logs have
                os.close(open_file((folder / name).with_suffix(".errors"), os.O_RDONLY))
    runtime.remove(record.id)
    forget_input(directory, record.job_id)
