"""`gputui requeue`: run jobs again."""

from __future__ import annotations

import click

from gputui import bootstrap
from gputui.cli.confirmation import changed, confirm, jobs_of, named, quiet_option
from gputui.cli.job_ids import Named, ids_argument, resolve_all
from gputui.cli.session import Session, pass_session
from gputui.domain.action import Requeue
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.dependency import cancelled_with
from gputui.domain.state import JobState
from gputui.domain.verbs import JOB_VERB
from gputui.ports import JobStore

_LEFT_ALONE = frozenset({JobState.PENDING, JobState.COMPLETED})
"""States of elements that stay as they are if their whole array is named, unless all have completed."""


@click.command("requeue", help=JOB_VERB["requeue"].shell_help)
@ids_argument
@click.option("--failed", is_flag=True, help="Only those that failed, timed out or ran out of memory.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print which jobs would run again, and which would start earlier or later; change nothing.",
)
@quiet_option
@pass_session
def command(session: Session, ids: tuple[tuple[Named, ...], ...], failed: bool, dry_run: bool, quiet: bool) -> None:
    """Run jobs again, and report on stderr which elements of arrays were left alone because they completed."""
    names = [each for some in ids for each in some]
    with session.store() as store:
        asked = _failed(store, names) if failed else resolve_all(store, names, _suits, with_ended=True)
        if not asked:
            confirm("nothing was changed: none of these jobs has failed", quiet=quiet)
        elif dry_run:
            _show(session, store, asked)
        else:
            done = bootstrap.actions(store, session.options).act(Requeue(tuple(asked))).ids
            again = jobs_of(store, done)
            confirm(changed("requeue", again), quiet=quiet)
            if stay := cancelled_with(again, store.jobs().values()):
                ids_of = " ".join(job.shown_id for job in stay)
                confirm(f"cancelled when it failed, and still so: {named(stay)} (gputui requeue {ids_of})", quiet=quiet)
        if not failed and (left := _left(store, names, asked)):
            click.echo(f"left alone, because they completed: {named(left)}; name them to run them again", err=True)


def _suits(job: Job) -> bool:
    return job.state not in _LEFT_ALONE


def _failed(store: JobStore, names: list[Named]) -> list[JobId]:
    """Return the ids of those jobs that failed."""
    found = jobs_of(store, resolve_all(store, names, lambda job: job.state.is_failure, with_ended=True))
    return [job_id for job in found if job.state.is_failure for job_id in job.ids]


def _left(store: JobStore, names: list[Named], asked: tuple[JobId, ...] | list[JobId]) -> list[Job]:
    """Return the completed elements of whole arrays that are not run again."""
    every = resolve_all(store, names, with_ended=True)
    return [job for job in jobs_of(store, set(every).difference(asked)) if job.state is JobState.COMPLETED]


def _show(session: Session, store: JobStore, ids: tuple[JobId, ...] | list[JobId]) -> None:
    from msgspec.structs import replace

    from gputui.cli import start_times  # imports the policy, which the change itself does not need
    from gputui.domain.policy.whatif import change_of
    from gputui.domain.snapshot import Snapshot

    jobs = [job for job in jobs_of(store, ids) if JOB_VERB["requeue"].may(job)]

    def change(snapshot: Snapshot) -> Snapshot:
        known = start_times.entries(snapshot)
        past = tuple(job for job in jobs if job.id not in known)
        return change_of(Requeue(tuple(ids)), bootstrap.clock().now())(replace(snapshot, jobs=(*snapshot.jobs, *past)))

    first = f"would run again: {named(jobs)}" if jobs else "nothing would be changed"
    start_times.print_shifts(session, store, change, first)
