"""Determines from the last lines of a failed attempt's output why it failed."""

from __future__ import annotations

import logging
from collections import deque

from msgspec import Struct

from gputui.domain.cause import Blame, Cause, CauseCode
from gputui.domain.container import ContainerRecord
from gputui.domain.error_line import TAIL, find_error_line
from gputui.domain.errors import RuntimeFault
from gputui.domain.job import Job
from gputui.domain.log_fields import about
from gputui.domain.policy.gpus.out_of_memory import find_sign, may_have_run_out
from gputui.ports import Runtime

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
    """Return the signs in the last lines of the output; empty if they cannot be read."""
    lines = _last_lines(runtime, record)
    memory = find_sign(lines) if may_have_run_out(job, record.cause) else ""
    return FailureSigns(memory, find_error_line(lines, job.spec.options.env))


def _last_lines(runtime: Runtime, record: ContainerRecord) -> list[bytes]:
    """Return the last lines, at most `TAIL`; none if they cannot be read."""
    try:
        stream = runtime.logs(record.id, tail=TAIL)
    except RuntimeFault as fault:
        _warn(record, "cannot be read", fault)
        return []
    try:
        return list(deque(stream, TAIL))
    except RuntimeFault as fault:
        _warn(record, "could not be read to the end", fault)
        return []
    finally:
        stream.close()


def _warn(record: ContainerRecord, words: str, fault: RuntimeFault) -> None:
    about_it = about(record.job_id, record.attempt)
    log.warning("job %d: its last lines %s: %s", record.job_id, words, fault, extra=about_it)
