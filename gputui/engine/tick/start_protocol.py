"""The start protocol: claim, create, start, confirm. A crash between any two steps loses no job and starts none twice.

1. Claim (`claimed`, called by `starts`): the job becomes CONFIGURING in the store, with its attempt and GPUs.
2. Create the container, under a name from store, job and attempt: an existing one is adopted.
3. Start it, unless another scheduler's container holds one of its GPUs.
4. Confirm: the job becomes RUNNING in the store.

`reconcile` determines from the containers how far an interrupted start got. Beside the protocol stand the jobs after
each later step of an attempt, and the lines of a failed attempt's output that say why it failed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.container import ContainerRecord, ContainerState, Launch
from gputui.domain.errors import Blame, Cause, CauseCode, InputError, NotFoundError, RuntimeFault, StoreError
from gputui.domain.job import Attempt, BootTime, Job, Placement, spec_at
from gputui.domain.job_spec import JobId, PublishedPort
from gputui.domain.log_errors import TAIL, find_error_line
from gputui.domain.policy.retry import again, conclude, find_sign, may_have_run_out
from gputui.domain.policy.waits import end_wait
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.state import JobState
from gputui.engine.saved_logs import log_path
from gputui.ports import JobStore, Runtime, SteadyClock, Transaction
from gputui.ports.monitor import about

log = logging.getLogger(__name__)


class FailureSigns(Struct, frozen=True):
    """Lines of an attempt's output that say why it failed; empty where there are none."""

    memory: str = ""
    """Line that shows a GPU out of memory."""
    error: str = ""
    """Line to show in place of the exit code."""


NO_SIGNS = FailureSigns()


def is_worth_reading(job: Job, cause: Cause | None) -> bool:
    """Return whether the output of its ended attempt may say why: it failed by itself, and was not told to end."""
    if cause is None or cause.blame is not Blame.JOB or job.stopping is not None:
        return False
    return cause.code is not CauseCode.OUT_OF_MEMORY


def read_signs(runtime: Runtime, record: ContainerRecord, job: Job) -> FailureSigns:
    """Return the signs in the last lines of the output, at most `TAIL`; empty if they cannot be read."""
    lines: list[bytes] = []
    words = "cannot be read"
    try:
        stream = runtime.logs(record.id, tail=TAIL)
        words = "could not be read to the end"
        try:
            lines = list(deque(stream, TAIL))
        finally:
            stream.close()
    except RuntimeFault as fault:
        fields = about(record.job_id, record.attempt)
        log.warning("job %d: its last lines %s: %s", record.job_id, words, fault, extra=fields)
    memory = find_sign(lines) if may_have_run_out(job, record.cause) else ""
    return FailureSigns(memory, find_error_line(lines, job.spec.options.env))


def running(
    job: Job, container_id: str, started_at: datetime, notes: tuple[str, ...] = (), began: BootTime | None = None
) -> Job:
    started = job.with_attempt(
        container_id=container_id, started_at=started_at, notes=notes, clock_moved=timedelta(), began=began
    )
    return started.to(JobState.RUNNING, started_at=started_at, not_before=None, exit_code=None, cause=None)


def adopted(job: Job, record: ContainerRecord, now: datetime) -> Job:
    started_at = record.started_at or now
    if job.state is JobState.PENDING:  # its start outlived the scheduler that began it
        attempt = Attempt(record.attempt, record.gpus, claimed_at=started_at)
        job = with_wait_ended(job, started_at).to(JobState.CONFIGURING, attempts=(*job.attempts, attempt))
    return running(job.with_attempt(gpus=record.gpus, ports=record.ports), record.id, started_at)


def with_wait_ended(job: Job, at: datetime) -> Job:
    """Return the job with its wait ended now; waits for other jobs do not count, since their ends are unknown here."""
    depends = job.spec.after or job.spec.after_any
    return end_wait(job, at if depends else None, at)


def given_back(job: Job) -> Job:
    """Return the job to the queue as if its interrupted start had never happened; frees the attempt's number."""
    attempt = job.attempt
    is_dropped = attempt is not None and not attempt.is_over
    kept = job.attempts[:-1] if is_dropped else job.attempts
    since = (attempt.claimed_at if attempt and is_dropped else None) or job.waiting_since
    back = again(job.evolve(attempts=kept), job.not_before, since)
    return back.evolve(cancel_requested=job.cancel_requested)


def finished(
    job: Job, record: ContainerRecord, now: datetime, settings: SchedulerSettings, signs: FailureSigns = NO_SIGNS
) -> Job:
    attempt = job.attempts[-1]
    # use the runtime's time: ours is from the answer to the start, when a short job may already have ended
    started_at = _began(record.started_at, attempt)
    at = max(record.ended_at or now, started_at or attempt.claimed_at or now)
    job = job.with_attempt(
        container_id=record.id,
        started_at=started_at,
        log_path=log_path(job.id, attempt.number),
        error=signs.error,
        notes=(*attempt.notes, *record.notes),
    ).evolve(started_at=started_at)
    cause = record.cause
    if signs.memory:
        words = f"out of GPU memory (exit code {record.exit_code}): {signs.memory}"
        cause = Cause(CauseCode.GPU_OUT_OF_MEMORY, words)
    return conclude(job, cause, record.exit_code, at, settings)


def _began(told: datetime | None, attempt: Attempt) -> datetime | None:
    """Return when it began, by the runtime; this machine's clock may have been set since, and not the engine's."""
    near, moved = attempt.started_at, attempt.clock_moved
    if told is None or near is None:
        return told or near
    return min(told, told + moved, key=lambda at: abs(at - near))


def vanished(job: Job, now: datetime, settings: SchedulerSettings) -> Job:
    """Return the job after its container was found gone: whether it had finished its work is unknown."""
    if job.spec.is_host:  # it may still run, without its directory
        words = "its directory in attempts/ is gone, so its end is unknown"
    else:
        words = "its container was removed or lost by the engine before its end was seen, so its end is unknown"
    return conclude(job, Cause(CauseCode.END_UNKNOWN, words), None, now, settings)


def under_way(transaction: Transaction, job_id: JobId, number: int) -> Job | None:
    """Return the job if that attempt is still active in the store; else None."""
    try:
        job = transaction.get(job_id)
    except NotFoundError:
        return None
    attempt = job.attempt
    current = attempt is not None and not attempt.is_over and attempt.number == number
    return job if current and job.state.is_active else None


CONFLICT_CHECKS = 60
CONFLICT_PAUSE = 0.05
"""Seconds between two checks; the other scheduler has `CONFLICT_CHECKS` of them to start its container or to yield."""
_EXIT_CODES = {CauseCode.COMMAND_NOT_FOUND: 127, CauseCode.COMMAND_NOT_EXECUTABLE: 126}

LaunchCheck: TypeAlias = Callable[[Launch, ExitStack], Launch]
"""Returns the launch with the site's rules applied, and with what it holds open until the stack is closed.

Raises RuntimeFault if the launch is not allowed.
"""


def claimed(job: Job, start: Placement, now: datetime, dependencies_ended_at: datetime | None = None) -> Job:
    """Return the job after step 1: CONFIGURING with its next attempt and GPUs; its wait is over."""
    attempt = Attempt(job.next_attempt, start.gpus, claimed_at=now, gpu_share=start.gpu_share)
    waited = end_wait(job, dependencies_ended_at, now)
    return waited.to(JobState.CONFIGURING, attempts=(*job.attempts, attempt), topped_at=None)


def launch_of(store_id: str, job: Job, attempt: Attempt, gpu_names: tuple[str, ...] = ()) -> Launch:
    index = job.array.index if job.array else None
    return Launch(
        store_id, job.id, attempt.number, job.spec, attempt.gpus, index, gpu_names, submitter=job.submitted_uid
    )


def start_attempt(
    store: JobStore,
    runtime: Runtime,
    launch: Launch,
    clock: SteadyClock,
    settings: Settings,
    permit: LaunchCheck | None = None,
    wait_for_viewer: Callable[[JobId], None] = lambda job_id: None,
) -> RuntimeFault | None:
    """Take steps 2 to 4 in a worker; return the fault that ended them, if any.

    If the runtime stops answering in between, it is unknown whether the container runs: nothing is written, and the
    next listing shows the result.
    """
    try:
        with ExitStack() as until_started:
            with _faults_of_preparation():
                # permit() comes last: it resolves links in mounts, and the proof of the submitter covers the spec as
                # submitted
                uid, as_submitter = store.run_as(launch.spec, launch.submitter), settings.runtime.run_as_submitter
                is_submitters = launch.spec.is_host or as_submitter or (as_submitter is None and uid != store.owner)
                wanted = _with_values(replace(launch, submitter=uid, run_as=uid if is_submitters else None))
                created = runtime.create(permit(wanted, until_started) if permit else wanted)
            if launch.gpus and (rival := conflicting_container(runtime, created.id)):
                runtime.remove(created.id)
                log.info("job %d gives way to container %s of another scheduler", launch.job_id, rival.id[:12])
                with store.transaction() as transaction:
                    job = under_way(transaction, launch.job_id, launch.attempt)
                    if job is not None and job.state is JobState.CONFIGURING:
                        transaction.put(given_back(job))
                return None
            if launch.spec.interactive is not None and not launch.spec.is_host:
                wait_for_viewer(launch.job_id)  # else the beginning of its output is lost
            runtime.start(created.id)
        options = launch.spec.options
        ports: tuple[PublishedPort, ...] = ()
        if options.publish or options.publish_all:  # the engine may have chosen some of them at the start
            record = runtime.inspect(created.id)
            ports = record.ports if record else ()
    except RuntimeFault as fault:
        fields = about(launch.job_id, launch.attempt, launch.gpus)
        log.warning("job %d attempt %d did not start: %s", launch.job_id, launch.attempt, fault, extra=fields)
        if fault.cause.code is not CauseCode.RUNTIME_UNAVAILABLE:
            _record_failure(store, launch, fault.cause, clock.now(), settings.scheduler)
        return fault
    with store.transaction() as transaction:
        job = under_way(transaction, launch.job_id, launch.attempt)
        if job is not None and job.state is JobState.CONFIGURING:
            started = running(job, created.id, clock.now(), created.notes, began=clock.boot_time())
            transaction.put(started.with_attempt(ports=ports))
    fields = about(launch.job_id, launch.attempt, launch.gpus)
    log.info("job %d attempt %d runs", launch.job_id, launch.attempt, extra=fields)
    return None


@contextmanager
def _faults_of_preparation() -> Iterator[None]:
    """Raise unexpected errors as RuntimeFaults: unrecorded, they would be repeated for ever, with the GPUs held."""
    try:
        yield
    except (RuntimeFault, StoreError):
        raise
    except InputError as error:
        raise RuntimeFault(Cause(CauseCode.BAD_SPEC, str(error))) from error
    except Exception as error:
        log.exception("preparing a start")
        text = f"its start could not be prepared: {type(error).__name__}: {error}"
        raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, text)) from error


def _with_values(launch: Launch) -> Launch:
    """Return the launch with the values of its sweep element, if it is one; raises BAD_SPEC for an unknown index."""
    if not launch.spec.sweep:
        return launch
    try:
        return replace(launch, spec=spec_at(launch.spec, -1 if launch.array_index is None else launch.array_index))
    except (IndexError, InputError) as error:
        cause = Cause(CauseCode.BAD_SPEC, f"its sweep has no values for index {launch.array_index}")
        raise RuntimeFault(cause) from error


def _record_failure(store: JobStore, launch: Launch, cause: Cause, now: datetime, settings: SchedulerSettings) -> None:
    with store.transaction() as transaction:
        job = under_way(transaction, launch.job_id, launch.attempt)
        if job is None:
            return
        may_pull = launch.spec.options.pull != "never"
        if cause.code is CauseCode.IMAGE_NOT_FOUND and may_pull:  # removed since it was found: pull it again
            transaction.put(given_back(job))
            return
        transaction.put(conclude(job, cause, _EXIT_CODES.get(cause.code), now, settings))


def conflicting_container(
    runtime: Runtime, container_id: str, pause: Callable[[float], None] = time.sleep
) -> ContainerRecord | None:
    """Return the other store's container that this one must yield to; None if this one may start.

    Two schedulers on one engine, each with its own queue, must not assign one GPU twice. A container is visible from
    its creation, so of two that want the same GPU at least the later one sees the other; and a container is started
    only if a listing after its creation shows no other. Of two that see each other the smaller id stays.
    """
    rival = None
    for _ in range(CONFLICT_CHECKS):
        ranked = sorted(
            runtime.rivals(container_id), key=lambda each: (each.state is not ContainerState.RUNNING, each.id)
        )
        rival = next(iter(ranked), None)
        if rival is None:
            return None
        if rival.state is ContainerState.RUNNING or rival.id < container_id:
            break
        pause(CONFLICT_PAUSE)
    mine = runtime.inspect(container_id)
    return rival if (mine is not None and mine.state is ContainerState.CREATED) else None
