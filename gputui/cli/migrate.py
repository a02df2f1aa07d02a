"""`gputui migrate`: move this server's waiting jobs to the configured cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from gputui.cli import table
from gputui.cli.job_ids import JobIds, Named, check_known, flat
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
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
    submitted twice. The exit code is 1 if a job stays.
    """
    from gputui.bootstrap import moving

    with session.local_store() as store, moving.migration(session.options, store) as migration:
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
        click.echo("no job waits here")
        return
    going = "would move" if dry_run else ""
    columns = [table.TextColumn(title) for title in ("JOB", "NAME", engine.upper(), "NOTE")]
    rows = [(move.words, move.jobs[0].spec.name, _new(move), _note(move) or going) for move in moves]
    for line in table.lines(columns, rows, table.terminal_width()):
        click.echo(line)


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
