"""`gputui submit`: put a job, or a file of jobs, into the queue."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import click

from gputui import bootstrap
from gputui.cli import completing, terminal
from gputui.cli.session import Session, pass_session
from gputui.cli.terminal import print_done
from gputui.domain.cluster import array_of, is_element
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job_spec import DEFAULT_BACKOFF, JobId, JobSpec, Submission
from gputui.domain.spec_values import check_gpus
from gputui.domain.submit_action import SubmitJobs
from gputui.domain.text import format_duration, local_time, plain, ranges
from gputui.request import submitter
from gputui.request.caller import is_taken_over, not_utf8
from gputui.request.job_options import BY_NAME
from gputui.request.job_values import duration_text
from gputui.request.submitter import SubmitCommand

if TYPE_CHECKING:
    from datetime import datetime

    from gputui.ports.backend import DirectBackend

MOST_TOLD = 5
"""Maximum number of jobs of one file whose expected start is printed."""
_EPILOG = """\b
Options of docker run that do not affect a job are accepted, and a line on stderr explains them:
-d, --rm, --restart, -i, -t, -a. Flags also take a value: --privileged=true, --init=false.
Options after IMAGE belong to the job's own command. -h is docker run's --hostname.
A host process (--host) starts in the current directory, with PATH, LD_LIBRARY_PATH, VIRTUAL_ENV, CONDA_* and
locale of your environment; --env-all takes all of it, -e single variables. It has your umask and your soft
limits (ulimit -S), up to the hard limits of the scheduler; --ulimit sets others.
A job finds in its environment:
    GPUTUI_JOB_ID       its id
    GPUTUI_ARRAY_INDEX  its index, if it is an element of an array (--array, --sweep)
    GPUTUI_SWEEP_NAME   its value of that name, in capitals, if it is an element of a sweep (--sweep)
    GPUTUI_GPUS         how many GPUs it has
    GPUTUI_GPU_MEMORY   bytes it may use of each GPU, if it shares them (--share)
    GPUTUI_ATTEMPT      STORE:JOB:ATTEMPT; the attempt is 1 at the first try
    PYTHONUNBUFFERED    1, so that what Python prints is seen at once; -e PYTHONUNBUFFERED= turns that off
Times are in 2h, +1h30, 18:00, 9am, noon, tonight, tomorrow 09:00, Mon 14:00, next Monday, 1 Dec 9pm, 2026-12-01
and 2026-12-01T09:00+01:00, or with a zone behind: Mon 09:00 Europe/Berlin. A day alone is its beginning. A text with
two meanings is refused.
A sweep makes an array of all combinations of values, the last name varies fastest:
    gputui submit --sweep lr=1e-3,1e-4 --sweep seed=0-9 IMAGE train.py --lr {lr} --seed {seed}
Values are listed with commas, "in quotes" if they hold commas; 0-9, 0-10:2 and 00-09 are ranges. {lr}, {seed} and
{index} are replaced in the command, in values of -e and in --name when an element starts; other names in braces are
refused. {{word}} is {word}; all other braces, and ${NAME}, stay as they are.
A host process finds the UUIDs of its GPUs in CUDA_VISIBLE_DEVICES; a container sees no others.
"""


@click.command("submit", cls=SubmitCommand, epilog=_EPILOG, short_help="put a job, or a file of jobs, into the queue")
@completing.with_options
@click.option("--host", is_flag=True, help="Run COMMAND as a process on the host, without a container.")
@click.option("-f", "--file", metavar="FILE.toml", help="Submit every [[job]] of a file, or none.")
@click.option("--anyway", is_flag=True, help="Queue it even if this server does not have such GPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print the ids as JSON.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print when it would start and which jobs it would delay, or what Kubernetes would be given; submit nothing.",
)
@click.option("--quiet", is_flag=True, help="Print on stderr neither the times asked for nor the expected start.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="IMAGE [COMMAND...]")
@pass_session
@click.pass_context
def command(
    ctx: click.Context,
    session: Session,
    /,
    host: bool,
    file: str | None,
    anyway: bool,
    as_json: bool,
    dry_run: bool,
    quiet: bool,
    arguments: tuple[str, ...],
    **given: Any,
) -> None:
    """Put a job into the queue and print its id; on a terminal, also print on stderr when it should start.

    Takes docker run's own options: a docker run line works with the two words replaced.
    """
    found = submitter.tidied(ctx)
    submissions: Sequence[Submission]
    if file is None:
        given = with_elements(session, given)
        submissions = (submitter.submission_of(given, arguments, host, session.submitter(), found),)
        tell(found, submissions[0])
    else:
        submitter.raised(found.faults)
        # the file holds everything
        others = [BY_NAME[name].option for name, value in given.items() if value not in (None, (), False)]
        if others := [*others, *["--host"] * host, *["IMAGE"] * bool(arguments)]:
            raise InputError("cannot be combined with --file", where=others[0], hint="write it into the file")
        from gputui.request import job_file

        submissions = job_file.read_jobs(file, session.submitter())
    runtimes = bootstrap.runtime_names(session.options)
    for submission in submissions:
        check_runtime(submission, runtimes)
    with session.backend() as backend:
        if not anyway and not dry_run:
            check_gpus(submissions, backend.known_gpus)
        is_told = not (file or as_json or quiet)
        if dry_run:
            confirm_times("the new job", submissions[0].spec, quiet=not is_told)
            _show(session, backend, submissions, quiet=quiet)
            return
        try:
            done = backend.act(SubmitJobs(tuple(submissions)))
        except KeyboardInterrupt as stop:
            for words in stop.args:
                terminal.tell(words)
            raise
        if done.is_repeated:
            terminal.tell("note: the answer to the same submission was lost before: there is no second job")
        ids = done.ids
        first = accumulate((len(each.array) or 1 for each in submissions), initial=0)
        news = ((ids[place], each) for place, each in zip(first, submissions, strict=False))
        told = [(array_of(job_id) if is_element(job_id) else job_id, each) for job_id, each in news]
        named = tuple(job_id for job_id, _ in told) if is_element(max(ids)) else ids
        _print_ids(told, as_json, named)
        confirm_times(f"job {told[0][0]}", submissions[0].spec, quiet=not is_told)
        if done.notes:
            _tell_notes([f"job {job_id}" for job_id, _ in told], done.notes, quiet=quiet or as_json)
        if not quiet and terminal.is_tty(terminal.ERR):  # a forecast takes longer than the submission itself
            _tell_starts(session, backend, [job_id for job_id, _ in told])


def tell(found: submitter.Tidied, submission: Submission) -> None:
    notes = [found.note] if found.note else []
    spec = submission.spec
    if not spec.gpus.minimum and "NVIDIA_VISIBLE_DEVICES" in dict(spec.options.env):
        notes.append("-e NVIDIA_VISIBLE_DEVICES gives no GPU here: ask for them by --gpus N or --gpus all")
    if spec.image is None and (odd := sorted(filter(is_taken_over, not_utf8(terminal.environ())))):
        notes.append(f"{', '.join(odd)}: not UTF-8 text, and so not passed")
    if notes:
        terminal.tell(f"note: {'; '.join(notes)}")


def confirm_times(named: str, spec: JobSpec, *, quiet: bool) -> None:
    """Print on stderr the times that a job asks for, as they were understood, if there are any."""
    if not quiet and (times := times_understood(spec, bootstrap.clock().now())):
        from gputui.cli.output import confirm  # few jobs have times

        confirm(f"{named}: {times}")


def times_understood(spec: JobSpec, now: datetime) -> str:
    lengths = {
        "time limit {}": spec.time_limit,
        "signal {} before it": spec.warning.before if spec.warning else None,
        "idle timeout {}": spec.idle_timeout,
        "backoff {}": spec.backoff if spec.backoff != DEFAULT_BACKOFF else None,
    }
    told = [f"not before {local_time(spec.begin_at, now)}"] if spec.begin_at else []
    return "; ".join(told + [words.format(duration_text(each)) for words, each in lengths.items() if each is not None])


def _tell_notes(names: Iterable[str], notes: Iterable[str], *, quiet: bool) -> None:
    for name, note in zip(names, notes, strict=False) if not quiet else ():
        if note:
            terminal.tell(f"{name}: {note}")


def _show(session: Session, backend: DirectBackend, submissions: Sequence[Submission], *, quiet: bool) -> None:
    from gputui.cli import start_times  # the policy is not needed to submit
    from gputui.domain.policy.whatif import submitted

    done = backend.foresee(SubmitJobs(tuple(submissions)))
    if done.drafts:
        terminal.write("---\n".join(done.drafts))
        return
    if not done.starts:
        start_times.print_shifts(session, backend, submitted(*done.jobs))
    _tell_notes((f"job {each.spec.name}" for each in submissions), done.notes, quiet=quiet)
    for line in start_lines(submissions, done.starts, bootstrap.clock().now()):
        terminal.write(f"{plain(line)}\n")


def start_lines(submissions: Iterable[Submission], starts: Iterable[datetime | None], now: datetime) -> Iterator[str]:
    """Yield when each job would start if it were submitted now, as an engine tells; None: it cannot tell."""
    for submission, at in zip(submissions, starts, strict=False):
        when = "the engine cannot tell when it would start" if at is None else "would start now"
        if at is not None and at > now:
            when = f"would start at {at.astimezone():%Y-%m-%d %H:%M}, in {format_duration(at - now)}"
        yield f"job {submission.spec.name}: {when}"


def with_elements(session: Session, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options with dependencies on elements of arrays (`12_5`) replaced by the elements' ids."""
    named = {key: given[key] for key in ("after", "after_any") if any("_" in text for text in given.get(key) or ())}
    if not named:
        return given
    from gputui.cli.job_ids import as_ids

    with session.backend() as backend:
        ids = {
            key: tuple(as_ids(backend.queue, text, BY_NAME[key].option) for text in texts)
            for key, texts in named.items()
        }
    return {**given, **ids}


def check_runtime(submission: Submission, runtimes: Collection[str]) -> None:
    """Raise InputError for a job that no runtime here can run."""
    if submission.spec.runtime_in(runtimes):
        return
    if submission.spec.is_host:
        raise InputError("host jobs are switched off", where="--host", hint="the setting scheduler.host_jobs")
    hint = "submit --host -- COMMAND..., or leave out --runtime process"
    raise InputError("there is no engine here to run an image", where="IMAGE", hint=hint)


def _tell_starts(session: Session, backend: DirectBackend, ids: Sequence[JobId]) -> None:
    from gputui.cli import start_times  # the policy is not needed to submit

    with suppress(OSError, GputuiError):
        for sentence in start_times.expected_starts(session, backend, ids[:MOST_TOLD]):
            terminal.echo(sentence, err=True)
        if len(ids) > MOST_TOLD:
            terminal.echo(f"... and {len(ids) - MOST_TOLD} more jobs; gputui queue shows when they start", err=True)


def _print_ids(told: Sequence[tuple[JobId, Submission]], as_json: bool, ids: tuple[JobId, ...]) -> None:
    """Print one id per line, for an array its own, which names all its elements. A terminal also gets their number.

    `ids` are those of the new jobs, for the case that nothing can be printed.
    """
    if as_json:
        from gputui.domain.as_json import json_text

        text = json_text(_submitted_json(*told[0]) if len(told) == 1 else [_submitted_json(*each) for each in told])
    else:
        rows = []
        for job_id, each in told:  # `12  100000 elements, 12_0 to 12_99999`
            count, indices = len(each.array), each.array
            words = f"  {count} elements, {job_id}_{indices[0]} to {job_id}_{indices[-1]}" if count > 1 else ""
            words = f"  1 element, {job_id}_{indices[0]}" if count == 1 else words
            rows.append(f"{job_id}{words if terminal.is_tty(terminal.OUT) else ''}")
        text = "\n".join(rows)
    words = f"jobs {ranges(ids, ', ')} are" if len(ids) > 1 else f"job {ids[0]} is" if ids else "no job is"
    print_done(text, f"{words} in the queue")


def _submitted_json(job_id: JobId, submission: Submission) -> dict[str, Any]:
    indices = submission.array
    if not indices:
        return {"id": job_id}
    counts = {"count": len(indices), "first": indices[0], "last": indices[-1]}
    return {"id": job_id, "array": {**counts, "limit": submission.array_limit}}
