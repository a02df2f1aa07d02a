"""What workers do for the scheduler, off its thread: each function talks to a runtime and then tells the store.

All are safe to be killed in at any point: `reconcile` finds out from the containers how far they came.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeAlias

from gputui.domain.cause import Cause, CauseCode
from gputui.domain.container import ContainerRecord, ContainerState, Launch
from gputui.domain.errors import NotFoundError, RuntimeFault, WarrantError
from gputui.domain.job import Attempt, BootTime, Job, JobId, JobSpec, Placement, PublishedPort
from gputui.domain.policy import gpu_memory
from gputui.domain.policy.retry import again, conclude
from gputui.domain.settings import RuntimeSettings, SchedulerSettings, Settings
from gputui.domain.state import JobState
from gputui.engine.logs import log_path
from gputui.engine.rivals import to_give_way_to
from gputui.engine.sharing import file_mode, folder_in, is_file, open_file
from gputui.ports import JobStore, Runtime, SteadyClock, Transaction

log = logging.getLogger(__name__)

_EXIT_CODES = {CauseCode.COMMAND_NOT_FOUND: 127, CauseCode.COMMAND_NOT_EXECUTABLE: 126}


Permit: TypeAlias = Callable[[Launch], Launch]
"""Returns the launch as the site allows it; raises RuntimeFault where it does not."""


def launch_of(store_id: str, job: Job, attempt: Attempt, gpu_names: tuple[str, ...] = ()) -> Launch:
    """Return the attempt as its runtime is to create it."""
    index = job.array.index if job.array else None
    return Launch(store_id, job.id, attempt.number, job.spec, attempt.gpus, index, gpu_names)


def start_attempt(
    store: JobStore,
    runtime: Runtime,
    launch: Launch,
    clock: SteadyClock,
    settings: Settings,
    permit: Permit = lambda launch: launch,
) -> RuntimeFault | None:
    """Steps (b) to (d) of the start protocol: create, start, and RUNNING in the store. The fault, if one came up.

    When the runtime stops answering in the middle, nobody knows whether the container runs: nothing is written, and
    the next listing tells.
    """
    try:
        # last of all, for it resolves links in mounts: what proves who submitted a spec is about the spec as submitted
        created = runtime.create(permit(_authorised(store, launch, settings.runtime)))
        if launch.gpus and (rival := to_give_way_to(runtime, created.id)):
            runtime.remove(created.id)
            _give_way(store, launch, rival)
            return None
        runtime.start(created.id)
        ports = _ports(runtime, launch, created.id)
    except RuntimeFault as fault:
        log.warning("job %d attempt %d did not start: %s", launch.job_id, launch.attempt, fault)
        if fault.cause.code is not CauseCode.RUNTIME_UNAVAILABLE:
            _record_failure(store, launch, fault.cause, clock.now(), settings.scheduler)
        return fault
    with store.transaction() as transaction:
        job = under_way(transaction, launch.job_id, launch.attempt)
        if job is not None and job.state is JobState.CONFIGURING:
            started = running(job, created.id, clock.now(), created.notes, began=clock.boot_time())
            transaction.put(started.with_attempt(ports=ports))
    return None


def _ports(runtime: Runtime, launch: Launch, container_id: str) -> tuple[PublishedPort, ...]:
    """Return the ports that the container publishes, of which the engine may have chosen some a moment ago."""
    options = launch.spec.options
    if not options.publish and not options.publish_all:
        return ()
    record = runtime.inspect(container_id)
    return record.ports if record else ()


def _authorised(store: JobStore, launch: Launch, settings: RuntimeSettings) -> Launch:
    """Return the launch with the account it runs under; raises BAD_SPEC where nothing proves who submitted it."""
    if not launch.spec.is_host and not settings.run_as_submitter:
        return launch
    try:
        return replace(launch, run_as=store.voucher(launch.spec))
    except WarrantError as error:
        raise RuntimeFault(Cause(CauseCode.BAD_SPEC, str(error))) from error


def proven_submitter(store: JobStore, spec: JobSpec) -> int | None:
    """Return the uid of who wants just that run; None where nothing proves it."""
    try:
        return store.voucher(spec).uid
    except WarrantError:
        return None


def _give_way(store: JobStore, launch: Launch, rival: ContainerRecord) -> None:
    """Put the job back in the queue, since another scheduler was faster."""
    log.info("job %d gives way to container %s of another scheduler", launch.job_id, rival.id[:12])
    with store.transaction() as transaction:
        job = under_way(transaction, launch.job_id, launch.attempt)
        if job is not None and job.state is JobState.CONFIGURING:
            transaction.put(given_back(job))


def running(
    job: Job,
    container_id: str,
    started_at: datetime,
    notes: tuple[str, ...] = (),
    began: BootTime | None = None,
) -> Job:
    """Return the job, whose attempt's container has been started."""
    started = job.with_attempt(
        container_id=container_id, started_at=started_at, notes=notes, clock_moved=timedelta(), began=began
    )
    return started.to(JobState.RUNNING, started_at=started_at, not_before=None, exit_code=None, cause=None)


def adopted(job: Job, record: ContainerRecord, now: datetime) -> Job:
    """The job, taken over with the container found running for it."""
    started_at = record.started_at or now
    if job.state is JobState.PENDING:  # its start outlived the scheduler that began it
        attempt = Attempt(record.attempt, record.gpus, claimed_at=started_at)
        job = job.to(JobState.CONFIGURING, attempts=(*job.attempts, attempt))
    return running(job.with_attempt(gpus=record.gpus, ports=record.ports), record.id, started_at)


def given_back(job: Job) -> Job:
    """The job back in the queue as if its interrupted start had never been: the number is free again."""
    attempt = job.attempt
    kept = job.attempts[:-1] if attempt is not None and not attempt.is_over else job.attempts
    return again(job.evolve(attempts=kept), job.not_before).evolve(cancel_requested=job.cancel_requested)


def finished(job: Job, record: ContainerRecord, now: datetime, settings: SchedulerSettings, sign: str = "") -> Job:
    """The job after its container ended; `sign` is the line that tells of a GPU out of memory."""
    at = record.ended_at or now
    attempt = job.attempts[-1]
    # the runtime's own time: ours was taken when the start was answered, by when a short job may have ended
    started_at = record.started_at + attempt.clock_moved if record.started_at else attempt.started_at
    job = job.with_attempt(
        container_id=record.id, started_at=started_at, log_path=log_path(job.id, attempt.number)
    ).evolve(started_at=started_at)
    cause = gpu_memory.cause_of(sign, record.exit_code) if sign else record.cause
    return conclude(job, cause, record.exit_code, at, settings)


def vanished(job: Job, now: datetime, settings: SchedulerSettings) -> Job:
    """Return the job after its container was found gone; a host job may go on without its directory, or be done."""
    if job.spec.is_host:
        cause = Cause(CauseCode.END_UNKNOWN, "its directory in attempts/ is gone, so nobody knows how it ended")
    else:
        cause = Cause(CauseCode.CONTAINER_LOST, "its container is gone: removed by somebody, or lost by the engine")
    return conclude(job, cause, None, now, settings)


def sign_of_gpu_memory(runtime: Runtime, record: ContainerRecord) -> str:
    """The line of its output that tells of a GPU out of memory; empty when none does, or nobody can tell."""
    try:
        stream = runtime.logs(record.id, tail=gpu_memory.TAIL)
    except RuntimeFault as fault:
        log.warning("job %d: its last lines cannot be read: %s", record.job_id, fault)
        return ""
    try:
        return gpu_memory.sign_in(stream)
    except RuntimeFault as fault:
        log.warning("job %d: its last lines could not be read to the end: %s", record.job_id, fault)
        return ""
    finally:
        stream.close()


def under_way(transaction: Transaction, job_id: JobId, number: int) -> Job | None:
    """The job, if that attempt of it is still under way in the store."""
    try:
        job = transaction.get(job_id)
    except NotFoundError:
        return None
    attempt = job.attempt
    current = attempt is not None and not attempt.is_over and attempt.number == number
    return job if current and job.state.is_active else None


def unwarn(store: JobStore, key: tuple[JobId, int]) -> None:
    """Let the attempt be warned again: the signal did not reach it."""
    with store.transaction() as transaction:
        job = under_way(transaction, *key)
        if job is not None:
            transaction.put(job.with_attempt(warned_at=None))


def _record_failure(store: JobStore, launch: Launch, cause: Cause, now: datetime, settings: SchedulerSettings) -> None:
    with store.transaction() as transaction:
        job = under_way(transaction, launch.job_id, launch.attempt)
        if job is None:
            return
        may_pull = launch.spec.options.pull != "never"
        if cause.code is CauseCode.IMAGE_NOT_FOUND and may_pull:  # it was there a moment ago: fetch it, then try again
            transaction.put(given_back(job))
            return
        transaction.put(conclude(job, cause, _EXIT_CODES.get(cause.code), now, settings))


def begin_pull(store: JobStore, jobs: Iterable[JobId]) -> None:
    """Make the jobs that still wait CONFIGURING while their image is pulled, without giving them any GPU."""
    with store.transaction() as transaction:
        for job in _found(transaction, jobs):
            if job.state is JobState.PENDING:
                transaction.put(job.to(JobState.CONFIGURING))


def end_pull(
    store: JobStore, jobs: Iterable[JobId], fault: RuntimeFault | None, now: datetime, settings: SchedulerSettings
) -> None:
    """Put the jobs back in the queue with their image, or write down the attempt that failed for want of it."""
    with store.transaction() as transaction:
        for job in _found(transaction, jobs):
            is_fetching = job.state is JobState.CONFIGURING and (job.attempt is None or job.attempt.is_over)
            if fault is None or fault.cause.code is CauseCode.RUNTIME_UNAVAILABLE:
                if is_fetching:
                    transaction.put(given_back(job))
            elif is_fetching or job.state is JobState.PENDING:
                transaction.put(_failed_pull(job, fault.cause, now, settings))


def _found(transaction: Transaction, jobs: Iterable[JobId]) -> Iterator[Job]:
    """Yield those of the jobs that are still there."""
    for job_id in jobs:
        try:
            yield transaction.get(job_id)
        except NotFoundError:
            continue


def _failed_pull(job: Job, cause: Cause, now: datetime, settings: SchedulerSettings) -> Job:
    attempt = Attempt(job.next_attempt, (), claimed_at=now)
    configuring = job if job.state is JobState.CONFIGURING else job.to(JobState.CONFIGURING)
    return conclude(configuring.evolve(attempts=(*job.attempts, attempt)), cause, None, now, settings)


def clean_up(runtime: Runtime, record: ContainerRecord, directory: Path) -> None:
    """Save the output of a container whose attempt is over, then remove it."""
    if record.state is ContainerState.EXITED:
        place, _, name = log_path(record.job_id, record.attempt).rpartition("/")
        with folder_in(directory, place) as folder:
            if not is_file(folder / name):
                (folder / name).unlink(missing_ok=True)  # a link that somebody planted
                if not _save(runtime, record, folder / name):
                    return
            with suppress(PermissionError):  # another member saved it, and closed it to us
                os.close(open_file(folder / name, os.O_RDONLY, file_mode(directory)))
    runtime.remove(record.id)


def _save(runtime: Runtime, record: ContainerRecord, path: Path) -> bool:
    """Save its output; False when it was removed before that could be done."""
    try:
        runtime.save_log(record.id, path)
    except RuntimeFault:
        if runtime.inspect(record.id) is not None:
            raise
        log.warning("job %d: the output of attempt %d was removed with its container", record.job_id, record.attempt)
        return False
    return True


def claimed(job: Job, start: Placement, now: datetime) -> Job:
    """Step (a) of the start protocol: the job with its next attempt and GPUs."""
    attempt = Attempt(job.next_attempt, start.gpus, claimed_at=now, gpu_share=start.gpu_share)
    return job.to(JobState.CONFIGURING, attempts=(*job.attempts, attempt), topped_at=None)
