"""`gputui migrate` and `gputui export`: this server's jobs in the configured cluster, and as files for one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputui.cli import output, terminal
from gputui.cli.job_ids import JobIds, Named, check_known, flat, ids_argument
from gputui.cli.output import confirm, jobs_of, print_json
from gputui.cli.session import Session, pass_session
from gputui.domain import arrays
from gputui.domain.errors import GputuiError, InputError, StoreBusyError
from gputui.domain.job import grouped, submission_of
from gputui.domain.runs import runs_of
from gputui.domain.runs import words as run_words

if TYPE_CHECKING:
    from gputui.engine.cluster.migration import JobMove

_MOST_INDICES = 24
"""Maximum number of characters of an array's indices in the table."""


class LocalJobIds(JobIds):
    """Parameter type for jobs of this server."""

    is_local = True


@click.command("migrate")
@click.argument("ids", nargs=-1, type=LocalJobIds(), metavar="[ID]...")
@click.option("--dry-run", is_flag=True, help="Print which jobs would move, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print an array of jobs as JSON.")
@click.pass_context
@pass_session
def command(
    session: Session, ctx: click.Context, ids: tuple[tuple[Named, ...], ...], dry_run: bool, as_json: bool
) -> None:
    """Move this server's waiting jobs, or those named, to the configured cluster, and print their old and new ids.

    A job is cancelled here only after the cluster has it. A job that the cluster cannot run stays, and so does one that
    waits for a job that stays, or that such a job waits for. If the command is interrupted, run it again: no job is
    submitted twice. The exit code is 1 if a job stays. Stop the scheduler first: it alone writes the queue while it
    runs. Running jobs go on.
    """
    from gputui import bootstrap
    from gputui.bootstrap import clusters

    if not dry_run and bootstrap.is_scheduled(local := session.options.local()):
        hint = "quit the console or stop `gputui serve`, and run gputui migrate again; running jobs go on"
        raise StoreBusyError("a scheduler has the queue and starts its jobs", where=str(local.state), hint=hint)
    with session.store(is_local=True) as store, clusters.migration(session.options, store) as migration:
        chosen = frozenset(flat(store, ids)) if ids else None
        check_known(store, chosen or ())
        moves = migration.plan(chosen) if dry_run else migration.run(chosen)
        engine = migration.cluster.caps.engine
    if as_json:
        print_json([_json(move) for move in moves])
    else:
        _print(moves, engine, dry_run=dry_run)
    ctx.exit(1 if any(move.why for move in moves) else 0)


def _print(moves: Sequence[JobMove], engine: str, *, dry_run: bool) -> None:
    if not moves:
        terminal.echo("no job waits here")
        return
    going = "would move" if dry_run else ""
    columns = [output.TextColumn(title) for title in ("JOB", "NAME", engine.upper(), "NOTE")]
    rows = [(move.words, move.jobs[0].spec.name, _new(move), _note(move) or going) for move in moves]
    for line in output.lines(columns, rows, terminal.width()):
        terminal.echo(line)


def _note(move: JobMove) -> str:
    return move.why if move.new_ids or not move.why else f"stays: {move.why}"


def _new(move: JobMove) -> str:
    """Return the new id, `101` or `101_[0-3]`; `-` if there is none."""
    if not move.new_ids:
        return "-"
    indices = move.new_indices
    return move.new_word + (f"_[{run_words(runs_of(0, indices), _MOST_INDICES)}]" if indices else "")


def _json(move: JobMove) -> dict[str, Any]:
    return {
        "id": move.words,
        "ids": sorted(move.ids),
        "name": move.jobs[0].spec.name,
        "new_id": move.new_word or None,
        "new_ids": list(move.new_ids),
        "reason": move.why or None,
    }


_SUFFIXES = {"slurm": "sbatch", "k8s": "yaml"}


@click.command("export")
@click.option("--to", "target", required=True, type=click.Choice(sorted(_SUFFIXES)), help="Scheduler to write for.")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Write a file for each job there.")
@ids_argument
@pass_session
def export(session: Session, target: str, directory: Path | None, ids: tuple[tuple[Named, ...], ...]) -> None:
    """Print jobs as batch scripts for sbatch, or as manifests for kubectl.

    They contain the values of the job's environment. The queue is not changed. Requests without a counterpart are
    listed on stderr. An array is one batch script, and a manifest for each element. Files that exist are not replaced.
    """
    from gputui.bootstrap import clusters

    with session.backend() as backend:
        groups = list(grouped(jobs_of(backend.queue, flat(backend.queue, ids, lambda _: True))))
        name = backend.queue.store_id
    if target == "slurm" and len(groups) > 1 and directory is None:
        raise InputError("a batch script is for one job or array", where="ID", hint="add --directory DIR")
    made, told = dict[int, str](), list[str]()
    for jobs in groups:
        word, first = arrays.id_word(jobs), jobs[0].id
        try:
            made[first], notes = clusters.exported(session.options, target, submission_of(jobs), f"{name}-{first}")
        except InputError as error:
            raise InputError(f"job {word} cannot be exported: {error}") from error
        told += [f"gputui: job {word}: left out {note}" for note in notes]
    for line in told:
        confirm(line)
    if directory is None:
        terminal.write("---\n".join(made.values()))
        return
    for job_id, text in made.items():
        # write a new file that its user may read: it may contain secrets of the job's environment
        path = directory / f"gputui-{job_id}.{_SUFFIXES[target]}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
        except OSError as error:
            raise GputuiError(f"cannot be written: {error.strerror}", where=str(path)) from error
        terminal.echo(str(path))
