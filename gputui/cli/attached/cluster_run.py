"""`gputui run` over a cluster: the wait for the job's start, its output, and its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gputui import bootstrap
from gputui.bootstrap import job_access
from gputui.cli import ends
from gputui.cli.attached.attendance import Status, waiting_words
from gputui.cli.logs import print_log, was_started
from gputui.domain.action import Cancel
from gputui.domain.errors import CapabilityError
from gputui.domain.state import JobState

if TYPE_CHECKING:
    from gputui.cli.session import Session
    from gputui.domain.job_spec import JobId
    from gputui.ports import JobStore

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
_LOOK_EVERY = 1.0
"""Seconds between two looks at a job that waits."""


def run(session: Session, store: JobStore, job_id: JobId, *, is_quiet: bool) -> int:
    """Show why the job waits, then its output; return its exit code. Ctrl-C cancels the job, a second one leaves."""
    status = Status(is_quiet=is_quiet)
    try:
        _follow(session, store, job_id, status)
        return _end(store, job_id, status, is_quiet=is_quiet)
    except KeyboardInterrupt:
        name = store.get(job_id).shown_id
        bootstrap.actions(store, session.options).act(Cancel((job_id,)))
        status.say(f"job {name} is stopping; Ctrl-C again leaves at once")
    try:
        _end(store, job_id, status, is_quiet=is_quiet)
    except KeyboardInterrupt:
        status.say(f"job {name} is still stopping: `gputui show {name}`")
    return INTERRUPTED


def _follow(session: Session, store: JobStore, job_id: JobId, status: Status) -> None:
    """Wait until the job has started, and print its output until its end, where the cluster shows it meanwhile."""
    job = store.get(job_id)
    while not was_started(job):
        snapshot = bootstrap.current_snapshot(session.options, store)
        words = waiting_words(snapshot, job, snapshot.expected_starts.get(job_id), bootstrap.clock().now())
        status.show(f"job {job.shown_id} {words}", is_passing=job.state is not JobState.PENDING)
        time.sleep(_LOOK_EVERY)
        job = store.get(job_id)
    status.clear()
    if job.attempt is not None:
        logs = job_access.open_logs(session.options, store)
        try:
            stream = logs.open(job_id, None, follow=True)
        except CapabilityError:  # the output is there at the end
            [_] = ends.wait_for(store, (job_id,))
            stream = logs.open(job_id)
        print_log(stream)


def _end(store: JobStore, job_id: JobId, status: Status, *, is_quiet: bool) -> int:
    """Wait for the end of the job, and say how it ended unless it completed; return its exit code."""
    [job] = ends.wait_for(store, (job_id,))
    if job.state is not JobState.COMPLETED and not is_quiet:
        status.say(ends.sentence(job))
    return ends.exit_code(job)
