"""`gputui edit`: change what a waiting job asks for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

import click

from gputui import bootstrap
from gputui.cli import completing
from gputui.cli.done import print_done
from gputui.cli.elements import Named, the_one
from gputui.cli.output import json_text
from gputui.cli.session import Session, pass_session
from gputui.cli.submit import check_gpus, with_elements
from gputui.cli.wishes import OneJobId
from gputui.domain.edit import Edit
from gputui.domain.errors import InputError
from gputui.domain.job import Job, JobId, Submission
from gputui.engine.edits import check_waits
from gputui.ports import JobStore
from gputui.request import draft as drafts
from gputui.request import edits, written
from gputui.request import submitter as request
from gputui.request.draft import YES, Draft
from gputui.request.keys import BY_NAME, Key, Kind
from gputui.request.options import unsigned
from gputui.request.submitter import Submitter
from gputui.request.texts import quoted

_EPILOG = """\b
What is not named stays as it is. Variables and labels given are added to those that the job has; of other things
that can be given several times, those given take the place of all.
Without options the job opens in $EDITOR, as a job file, and what is changed there is changed.
"""


@click.command("edit", epilog=_EPILOG)
@completing.with_options
@click.option("--image", metavar="IMAGE", help="The image of its container.")
@click.option("--unset", multiple=True, metavar="NAME", help="Ask for it no more: an option's name, as time-limit.")
@click.option("--editor", is_flag=True, help="Open the job in $EDITOR.")
@click.option("--anyway", is_flag=True, help="Also ask for GPUs that this server does not have.")
@click.option("--json", "as_json", is_flag=True, help="Print the id and what was changed as JSON.")
@click.option("--dry-run", is_flag=True, help="Print whose start would shift, and do nothing.")
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
    ids: tuple[Named, ...],
    words: tuple[str, ...],
    **given: Any,
) -> None:
    """Change what a waiting job asks for: the options are those of submit, and its place and its age are kept."""
    asked = {name: value for name, value in given.items() if value not in (None, (), False)}
    wants_editor = editor or _is_bare(image, unset, words, asked)
    asked = with_elements(session, asked)
    by = Submitter(bootstrap.actor().user, bootstrap.clock().now())
    with session.store() as store:
        job = store.get(the_one(store, ids[0]))
        check_waits(job)
        before = edits.draft_of(job, by.now)
        after = _changed(before, asked, unset)
        after |= {"image": image} if image is not None else {}
        after |= {"command": shlex.join(words)} if words else {}
        if wants_editor:
            after = _edited(job, after, by)
        edit = _read(job, before, after, by)
        if dry_run:
            _show(session, store, job.id, edit)
            return
        spec = edit.apply(job.spec)
        if spec.gpus != job.spec.gpus and not anyway:
            check_gpus((Submission(spec),), session.options)
        bootstrap.actions(store, session.options).edit(job.id, edit, job)
        if as_json:
            now = edits.draft_of(store.get(job.id), by.now)
            changed = {"id": job.id, "changed": list(edits.changed(before, now))}
            print_done(json_text(changed), f"job {job.id} is changed")


def _is_bare(image: str | None, unset: tuple[str, ...], words: tuple[str, ...], asked: Mapping[str, Any]) -> bool:
    """Whether nothing is named, so that the editor is meant; raises InputError where there is no terminal for one."""
    if asked or unset or words or image is not None:
        return False
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        hint = "such as --priority 70; on a terminal the job opens in $EDITOR"
        raise InputError("name what is to be changed", where="edit", hint=hint)
    return True


def _changed(before: Draft, asked: Mapping[str, Any], unset: tuple[str, ...]) -> dict[str, str]:
    """The draft as the options have it."""
    after = {**before, **{_unset_name(name): "" for name in unset}}
    return {**after, **{name: _text(BY_NAME[name], value, after.get(name, "")) for name, value in asked.items()}}


def _unset_name(text: str) -> str:
    name = text.removeprefix("--").replace("-", "_")
    if name not in BY_NAME:
        raise InputError(f"{quoted(text)} is no option", where="--unset", hint="write one as time-limit or env")
    return name


def _text(key: Key, value: Any, before: str) -> str:
    """What was given, as a draft has it."""
    if key.kind is Kind.FLAG:
        return YES
    if key.kind is Kind.ONE:
        if not (text := unsigned(key, value).strip()):
            raise InputError("wants a value", where=key.option, hint=f"--unset {key.option[2:]} takes it away")
        return text
    listed = [unsigned(key, text) for text in value]
    if key.kind is Kind.PAIRS:
        known = {word.partition("=")[0]: word for word in drafts.words(before, key.option)}
        listed = [*{**known, **{word.partition("=")[0]: word for word in listed}}.values()]
    return shlex.join(listed)


def _edited(job: Job, after: Draft, by: Submitter) -> dict[str, str]:
    """The draft as it came back from the user's editor, which is shown no value of the environment."""
    from gputui.request.editor import Editor

    hidden = {**written.hidden(job.spec), **dict(word.partition("=")[::2] for word in _env(after))}
    head = f"What you change and save is changed of job {job.id}; leave it as it is to change nothing."
    found = Editor(head).edit(drafts.masked(after), by)
    return drafts.revealed(found, hidden) if found is not None else dict(after)


def _env(draft: Draft) -> tuple[str, ...]:
    return tuple(word for word in drafts.words(draft.get("env", ""), "--env") if "=" in word)


def _read(job: Job, before: Draft, after: Draft, by: request.Submitter) -> Edit:
    """The edit; raises InputError that names the option."""
    try:
        return edits.read(job, before, after, by)
    except InputError as error:
        where = error.where or ""
        shown = BY_NAME[where].option if where in BY_NAME else f"--{where}" if where == "image" else where.upper()
        raise InputError(error.what, where=shown or None, hint=error.hint) from error


def _show(session: Session, store: JobStore, job_id: JobId, edit: Edit) -> None:
    from gputui.cli import dry_run  # the policy is not needed to wish
    from gputui.domain.policy.whatif import edited

    bootstrap.actions(store, session.options).rehearse_edit(job_id, edit)
    dry_run.show(session, store, edited(job_id, edit, bootstrap.clock().now()))
