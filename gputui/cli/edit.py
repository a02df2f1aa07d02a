"""`gputui edit`: change what a job asks for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import click

from gputui import bootstrap
from gputui.cli import completing, terminal
from gputui.cli.job_ids import Named, OneJobId, is_live, resolve_all
from gputui.cli.output import confirm, dry_run_option, jobs_of, named, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.cli.submit import with_elements
from gputui.cli.terminal import print_done
from gputui.cli.verbs import show_shifts
from gputui.domain.action import Edit, EditJobs
from gputui.domain.as_json import json_text
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.job_spec import Submission
from gputui.domain.policy.waits import asks_for_more
from gputui.domain.spec_values import check_gpus
from gputui.domain.state import JobState
from gputui.domain.text import local_time, quoted
from gputui.engine.actions.actions import check_editable
from gputui.request import draft as drafts
from gputui.request import edits
from gputui.request.draft import YES
from gputui.request.job_options import BY_NAME, JobOption, OptionKind
from gputui.request.submitter import Submitter, unsigned

_SHOWN = 40
"""Characters of a changed value that the confirmation shows."""
_EPILOG = """\b
Options that are not given stay as they are. Variables and labels are added to those of the job; other options that
may be repeated replace all former values.
Without options the job opens in $EDITOR as a job file; changes there are changes of the job.
"""


@click.command("edit", epilog=_EPILOG)
@completing.with_options
@click.option("--image", metavar="IMAGE", help="Image of the container.")
@click.option(
    "--unset", multiple=True, metavar="NAME", help="Remove an option from the job; its name, such as time-limit."
)
@click.option("--editor", is_flag=True, help="Open the job in $EDITOR.")
@click.option("--anyway", is_flag=True, help="Accept GPUs that this server does not have.")
@click.option("--json", "as_json", is_flag=True, help="Print the id and the changes as JSON.")
@dry_run_option
@quiet_option
@click.argument("ids", type=OneJobId(), metavar="ID")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@pass_session
def command(
    session: Session,
    /,
    image: str | None,
    unset: tuple[str, ...],
    editor: bool,
    anyway: bool,
    as_json: bool,
    dry_run: bool,
    quiet: bool,
    ids: tuple[Named, ...],
    words: tuple[str, ...],
    **given: Any,
) -> None:
    """Change a waiting job, or limit and comment of a running one. The options are those of submit.

    \b
    --time-limit 4h sets the limit, +2h and -30m change it. While a job runs its submitter may shorten it, and may
    extend it as far as the site allows; operators may go further. The job keeps running, and is warned again before
    its limit.

    Of an array named as a whole (7, not 7_0) all elements that wait are changed, and their limit while they run.

    A waiting job keeps its wait, unless it asks for more GPUs, for more of a GPU or for more time.
    """
    asked = {name: value for name, value in given.items() if value not in (None, (), False)}
    is_bare = not (editor or asked or unset or words or image is not None)
    if is_bare and not (terminal.is_tty(terminal.IN) and terminal.is_tty(terminal.OUT)):
        hint = "such as --priority 70; on a terminal the job opens in $EDITOR"
        raise InputError("no change given", where="edit", hint=hint)
    asked = with_elements(session, asked)
    by = Submitter(bootstrap.actor().user, bootstrap.clock().now())
    with session.backend() as backend:
        found = jobs_of(backend.queue, resolve_all(backend.queue, ids[:1], is_live))
        chosen = sorted(found, key=lambda job: job.state is not JobState.PENDING)
        job = backend.job(chosen[0].id)
        if backend.about().own_uid not in {None, job.submitted_uid}:
            backend.foresee(EditJobs((job.id,), Edit()))  # refused before its state, or an editor, says anything
        check_editable(job)
        edit = _edit_of(job, by, asked, unset, image, words, in_editor=editor or is_bare)
        jobs = [each for each in chosen if each.state is JobState.PENDING or edit.suits_running] or chosen
        ids_edited = tuple(job_id for each in jobs for job_id in each.ids)
        if dry_run:
            backend.foresee(EditJobs(tuple(each.id for each in jobs), edit))
            show_shifts(session, backend, EditJobs(ids_edited, edit))
            return
        spec = edit.apply(job.spec)
        if spec.gpus != job.spec.gpus and not anyway:
            check_gpus((Submission(spec),), backend.known_gpus)
        backend.act(EditJobs(ids_edited, edit, job if len(ids_edited) == 1 else None))  # one job only as it was seen
        if quiet and not as_json:
            return
        after = backend.job(job.id)
        if as_json:
            names = edits.changed(edits.draft_of(job, by.now), edits.draft_of(after, by.now))
            print_done(json_text({"id": job.id, "changed": list(names)}), f"job {job.id} is changed")
        else:
            plans = backend.about().caps.runs_jobs  # an engine counts waits in its own way
            confirm(_confirmation(job, after, by, named(jobs_of(backend.queue, ids_edited)), plans=plans))


def _edit_of(
    job: Job,
    by: Submitter,
    asked: Mapping[str, Any],
    unset: tuple[str, ...],
    image: str | None,
    command: tuple[str, ...],
    *,
    in_editor: bool,
) -> Edit:
    """Return the change that options and words ask for, and what the user changes further in an editor."""
    before = edits.draft_of(job, by.now)
    after = dict(before)
    for text in unset:
        name = text.removeprefix("--").replace("-", "_")
        if name not in BY_NAME:
            hint = "write one as time-limit or env"
            raise InputError(f"{quoted(text)} is not an option", where="--unset", hint=hint)
        after[name] = ""
    after |= {name: _text(BY_NAME[name], value, after.get(name, "")) for name, value in asked.items()}
    after |= {"image": image} if image is not None else {}
    after |= {"command": shlex.join(command)} if command else {}
    if in_editor:
        words = drafts.split_words(after.get("env", ""), "--env")
        typed = dict(word.partition("=")[::2] for word in words if "=" in word)
        hidden = dict(job.spec.options.env) | typed
        head = f"Job {job.id} takes over the changes that you save in this file; leave it as it is to change nothing."
        found = edits.Editor(head).edit(drafts.masked(after), by)
        after = drafts.revealed(found, hidden) if found is not None else dict(after)
    try:
        return edits.read(job, before, after, by)
    except InputError as error:
        where = error.where or ""
        shown = BY_NAME[where].option if where in BY_NAME else f"--{where}" if where == "image" else where.upper()
        raise InputError(error.what, where=shown or None, hint=error.hint) from error


def _confirmation(before: Job, after: Job, by: Submitter, who: str, *, plans: bool) -> str:
    """Return `edited job 12: time_limit 4h (was 2h)`; values of the environment are not shown."""
    was, now = (edits.draft_of(job, by.now) for job in (before, after))
    names = edits.changed(was, now)
    if not names:
        return f"nothing was changed: {who} {'were' if ':' in who else 'was'} like that already"
    was, now = drafts.masked(was), drafts.masked(now)

    def change(name: str) -> str:
        option, old, new = name.replace("_", "-"), was.get(name, ""), now.get(name, "")
        if old == new:  # another value behind the same mask
            return option
        if name == "begin":
            old, new = (local_time(datetime.fromisoformat(text), by.now) if text else "" for text in (old, new))
        else:
            old, new = (text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..." for text in (old, new))
        return f"{option} {new or 'none'} (was {old})" if old else f"{option} {new or 'none'}"

    anew = plans and asks_for_more(before.spec, after.spec) and after.state is JobState.PENDING
    rest = "; its wait starts again, because it asks for more" if anew else ""
    if "time_limit" in names and after.limit_at and ":" not in who:
        rest += f"; it ends by {local_time(after.limit_at, by.now)}"
    return f"edited {who}: {', '.join(map(change, names))}{rest}"


def _text(key: JobOption, value: Any, before: str) -> str:
    if key.kind is OptionKind.FLAG:
        return YES
    if key.kind is OptionKind.ONE:
        if not (text := unsigned(key, value).strip()):
            raise InputError("needs a value", where=key.option, hint=f"--unset {key.option[2:]} removes it")
        return text
    listed = [unsigned(key, text) for text in value]
    if key.kind is OptionKind.PAIRS:
        known = {word.partition("=")[0]: word for word in drafts.split_words(before, key.option)}
        listed = [*{**known, **{word.partition("=")[0]: word for word in listed}}.values()]
    return shlex.join(listed)
