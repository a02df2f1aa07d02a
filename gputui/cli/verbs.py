"""Commands of verbs: what users do to jobs, to GPUs and to the whole queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import click
from click.shell_completion import CompletionItem

from gputui import bootstrap
from gputui.cli import terminal
from gputui.cli.job_ids import JobIds, Named, check_known, flat, ids_argument, is_live, resolve_all
from gputui.cli.output import NAMED, changed, confirm, dry_run_option, jobs_of, named, once, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.domain import action as actions
from gputui.domain.errors import signal_name
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.policy.waits import cancelled_with
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState
from gputui.domain.text import listed, plain, plural
from gputui.domain.verbs import BY_NAME, JOB_VERB, PRIORITY_HELP, SIGNAL, SIGNALS, Verb
from gputui.ports.backend import DirectBackend
from gputui.request import job_values

_SUITS: Mapping[str, Callable[[Job], bool]] = {
    "hold": lambda job: job.state is JobState.PENDING,
    "suspend": BY_NAME["suspend"].may,
    "unsuspend": BY_NAME["unsuspend"].may,
}
"""Elements that a whole array stands for, by verb; of others those that have not ended."""


def command_of(name: str) -> click.Command:
    """Return the command of a verb: the one of its name below, or one made of its row in the table of verbs.

    The latter changes all named jobs, or none if one is refused.
    """
    if isinstance(found := globals().get(name), click.Command):
        return found
    verb, suits = BY_NAME[name], _SUITS.get(name, is_live)

    @click.command(verb.name, help=verb.shell_help)
    @ids_argument
    @quiet_option
    @pass_session
    def command(session: Session, ids: tuple[tuple[Named, ...], ...], quiet: bool, dry_run: bool = False) -> None:
        with session.backend() as backend:
            asked = flat(backend.queue, ids, suits)
            if dry_run:
                show_jobs(session, backend, verb, asked)
                return
            done = backend.act(verb.on(asked))
            if not quiet:
                confirm(changed(verb, jobs_of(backend.queue, done.ids), backend))

    return dry_run_option(command) if verb.wish.has_forecast else command


def show_jobs(session: Session, backend: DirectBackend, verb: Verb[Job], ids: tuple[JobId, ...]) -> None:
    check_known(backend.queue, ids)
    jobs = [job for job in jobs_of(backend.queue, ids) if verb.may(job)]
    first = f"would {verb.name}: {named(jobs)}" if jobs else "nothing would be changed"
    show_shifts(session, backend, verb.on(ids), first)


def show_shifts(session: Session, backend: DirectBackend, action: actions.Action, first: str = "") -> None:
    """Print a first line, and which jobs would start at another time."""
    from gputui.cli import start_times  # imports the policy, which the change itself does not need
    from gputui.domain.policy.whatif import change_of

    start_times.print_shifts(session, backend, change_of(action, bootstrap.clock().now()), first)


@click.command("cancel", help=JOB_VERB["cancel"].shell_help)
@ids_argument
@dry_run_option
@quiet_option
@pass_session
def cancel(session: Session, ids: tuple[tuple[Named, ...], ...], dry_run: bool, quiet: bool) -> None:
    with session.backend() as backend:
        asked = flat(backend.queue, ids)
        if dry_run:
            show_jobs(session, backend, JOB_VERB["cancel"], asked)
            return
        done = backend.act(actions.Cancel(asked)).ids
        if done and not quiet:
            confirm(changed(JOB_VERB["cancel"], jobs_of(backend.queue, done), backend))
        over = [job for job in jobs_of(backend.queue, set(asked).difference(done)) if job.state.is_terminal]
        count, more = (sum(job.count for job in each) for each in (over, over[NAMED:]))
        if count == 1:
            terminal.echo(f"job {over[0].shown_id} has ended already: it is {over[0].state}", err=True)
        elif over:
            names = [job.shown_id for job in over[:NAMED]] + ([f"{more} more"] if more else [])
            terminal.echo(f"{count} jobs have ended already: {listed(names)}", err=True)


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
def requeue(session: Session, ids: tuple[tuple[Named, ...], ...], failed: bool, dry_run: bool, quiet: bool) -> None:
    names = [each for some in ids for each in some]
    with session.backend() as backend:
        queue = backend.queue
        if failed:
            found = jobs_of(queue, resolve_all(queue, names, lambda job: job.state.is_failure, with_ended=True))
            asked = tuple(job_id for job in found if job.state.is_failure for job_id in job.ids)
        else:
            asked = resolve_all(queue, names, lambda job: job.state not in _LEFT_ALONE, with_ended=True)
        if not asked:
            confirm("nothing was changed: none of these jobs has failed", quiet=quiet)
        elif dry_run:
            from msgspec.structs import replace

            from gputui.cli import start_times  # imports the policy, which the change itself does not need
            from gputui.domain.policy.whatif import change_of

            jobs = [job for job in jobs_of(backend.queue, asked) if JOB_VERB["requeue"].may(job)]

            def change(snapshot: Snapshot) -> Snapshot:
                known = start_times.entries(snapshot)
                past = tuple(job for job in jobs if job.id not in known)
                return change_of(actions.Requeue(asked), bootstrap.clock().now())(
                    replace(snapshot, jobs=(*snapshot.jobs, *past))
                )

            first = f"would run again: {named(jobs)}" if jobs else "nothing would be changed"
            start_times.print_shifts(session, backend, change, first)
        else:
            again = jobs_of(queue, backend.act(actions.Requeue(asked)).ids)
            confirm(changed(JOB_VERB["requeue"], again, backend), quiet=quiet)
            if stay := cancelled_with(again, queue.jobs().values()):
                ids_of = " ".join(job.shown_id for job in stay)
                confirm(f"cancelled when it failed, and still so: {named(stay)} (gputui requeue {ids_of})", quiet=quiet)
        every = () if failed else resolve_all(queue, names, with_ended=True)
        if left := [job for job in jobs_of(queue, set(every).difference(asked)) if job.state is JobState.COMPLETED]:
            terminal.echo(f"left alone, because they completed: {named(left)}; name them to run them again", err=True)


@click.command("signal", help=SIGNAL.shell_help)
@ids_argument
@quiet_option
@click.argument("number", metavar="SIGNAL", shell_complete=lambda *_: [each.name for each in SIGNALS])
@pass_session
def signal(session: Session, ids: tuple[tuple[Named, ...], ...], quiet: bool, number: str) -> None:
    """Request the signal; for a whole array, the running elements get it."""
    wanted = job_values.signal_number(number, "SIGNAL")
    with session.backend() as backend:
        chosen = flat(backend.queue, ids, lambda job: job.state is JobState.RUNNING)
        done = backend.act(actions.Signal(chosen, wanted)).ids
        if not quiet:
            words = f"sending {signal_name(wanted)} to {named(jobs_of(backend.queue, done))}{once(backend)}"
            confirm(words if done else "nothing was changed")


@click.command("priority", help=PRIORITY_HELP, context_settings={"ignore_unknown_options": True})
@click.argument("names", type=JobIds(), metavar="ID[,ID…]")
@click.argument("value", metavar="VALUE|+N|-N|top")
@dry_run_option
@quiet_option
@pass_session
def priority(session: Session, names: tuple[Named, ...], value: str, dry_run: bool, quiet: bool) -> None:
    change = job_values.priority_change(value, "VALUE")
    with session.backend() as backend:
        ids = resolve_all(backend.queue, names, is_live)
        if dry_run:
            check_known(backend.queue, ids)
            alive = (job for job in jobs_of(backend.queue, ids) if not job.state.is_terminal)
            ids = tuple(job_id for job in alive for job_id in job.ids)
        action = actions.Top(ids) if change.top else actions.SetPriority(ids, change.value, change.relative)
        if dry_run:
            backend.foresee(action)
            show_shifts(session, backend, action)
            return
        done = backend.act(action).ids
        if not quiet:
            jobs = jobs_of(backend.queue, done)
            found = {job.priority for job in jobs}
            words = f"priority {'raised' if change.value > 0 else 'lowered'} by {abs(change.value)}: {named(jobs)}"
            if change.top:
                words = changed(JOB_VERB["top"], jobs, backend)
            elif not jobs:  # it was 0 or 100
                words = "nothing was changed: the priority was that already"
            elif len(found) == 1:
                words = f"priority is now {found.pop()}: {named(jobs)}"
            confirm(words)


@click.command("pause", help=BY_NAME["pause"].shell_help)
@click.argument("reason", nargs=-1)
@quiet_option
@pass_session
def pause(session: Session, reason: tuple[str, ...], quiet: bool) -> None:
    words = job_values.one_line(" ".join(reason), "REASON") if reason else ""
    with session.backend() as backend:
        backend.act(actions.Pause(words))
        if not quiet:
            running = sum(job.count for job in backend.queue.jobs().values() if job.state.is_active)
            rest = (
                f"; {plural(running, 'running job')} {'continues' if running == 1 else 'continue'}" if running else ""
            )
            confirm(f"paused: no new jobs start{rest}")


@click.command("unpause", help=BY_NAME["unpause"].shell_help)
@quiet_option
@pass_session
def unpause(session: Session, quiet: bool) -> None:
    with session.backend() as backend:
        backend.act(actions.Unpause())
        confirm(f"unpaused: jobs start again{once(backend)}", quiet=quiet)


def _drained(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    from gputui.cli import completing  # only a shell that completes a word needs it

    return completing.drained(ctx, param, incomplete)


@click.command("drain", help=BY_NAME["drain"].shell_help)
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=_drained)
@click.option("-r", "--reason", default="", metavar="TEXT", help="Reason, shown to all users.")
@dry_run_option
@quiet_option
@pass_session
def drain(session: Session, gpus: tuple[str, ...], reason: str, dry_run: bool, quiet: bool) -> None:
    from gputui.cli.gpus import find_gpus, gpu_names  # other verbs read no GPU

    words = job_values.one_line(reason, "--reason") if reason else ""
    with session.backend() as backend:
        uuids = find_gpus(backend, gpus)
        action = actions.DrainGpus(uuids, words)
        if dry_run:
            show_shifts(session, backend, action)
            return
        backend.act(action)
        if quiet:
            return
        names = gpu_names(backend.snapshots().read(), uuids)
        running = (job for job in backend.queue.jobs().values() if job.state.is_active)
        left = [
            job for job in running if job.attempt and not set(uuids).isdisjoint((*job.attempt.gpus, job.attempt.node))
        ]
        rest = f"; {named(left)} {'continues' if len(left) == 1 else 'continue'}" if left else ""
        confirm(f"drained {names}: no new jobs start there{rest}")


@click.command("resume", help=BY_NAME["resume"].shell_help)
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...", shell_complete=_drained)
@dry_run_option
@quiet_option
@pass_session
def resume(session: Session, gpus: tuple[str, ...], dry_run: bool, quiet: bool) -> None:
    from gputui.cli.gpus import find_gpus, gpu_names

    with session.backend() as backend:
        uuids = find_gpus(backend, gpus)
        if dry_run:
            show_shifts(session, backend, actions.ResumeGpus(uuids))
            return
        backend.act(actions.ResumeGpus(uuids))
        snapshot = backend.snapshots().read()
        confirm(f"resumed {gpu_names(snapshot, uuids)}: jobs start there again", quiet=quiet)
        for view in snapshot.gpus:
            is_sick = not view.health.is_schedulable and not view.is_stopped_by_xid
            if view.gpu.uuid in uuids and is_sick:
                health = plain(view.health.text)
                terminal.echo(f"GPU {view.gpu.index} is resumed, but no job starts there yet: {health}", err=True)
