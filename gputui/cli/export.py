"""`gputui export`: jobs as batch scripts of Slurm or manifests of Kubernetes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gputui.cli.confirmation import confirm, jobs_of
from gputui.cli.job_ids import Named, flat, ids_argument
from gputui.cli.session import Session, pass_session
from gputui.domain import arrays
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.job import Job
from gputui.domain.resubmission import grouped, submission_of

if TYPE_CHECKING:
    from gputui.bootstrap.moving import Exported
    from gputui.config import Options

_SUFFIXES = {"slurm": "sbatch", "k8s": "yaml"}


@click.command("export")
@click.option("--to", "target", required=True, type=click.Choice(sorted(_SUFFIXES)), help="Scheduler to write for.")
@click.option("--directory", type=click.Path(path_type=Path), metavar="DIR", help="Write a file for each job there.")
@ids_argument
@pass_session
def command(session: Session, target: str, directory: Path | None, ids: tuple[tuple[Named, ...], ...]) -> None:
    """Print jobs as batch scripts for sbatch, or as manifests for kubectl.

    They contain the values of the job's environment. The queue is not changed. Requests without a counterpart are
    listed on stderr. An array is one batch script, and a manifest for each element. Files that exist are not replaced.
    """
    with session.backend() as backend:
        groups = list(grouped(jobs_of(backend.queue, flat(backend.queue, ids, lambda _: True))))
        name = backend.queue.store_id
    if target == "slurm" and len(groups) > 1 and directory is None:
        raise InputError("a batch script is for one job or array", where="ID", hint="add --directory DIR")
    made = [(jobs, _exported(session.options, target, jobs, f"{name}-{jobs[0].id}")) for jobs in groups]
    for jobs, exported in made:
        for note in exported.notes:
            confirm(f"gputui: job {arrays.id_word(jobs)}: left out {note}")
    if directory is None:
        sys.stdout.write("---\n".join(exported.text for _, exported in made))
        return
    for jobs, exported in made:
        _write(directory / f"gputui-{jobs[0].id}.{_SUFFIXES[target]}", exported.text)


def _exported(options: Options, target: str, jobs: tuple[Job, ...], key: str) -> Exported:
    from gputui.bootstrap import moving

    make: Callable[..., Exported] = moving.slurm if target == "slurm" else moving.kubernetes
    try:
        return make(options, submission_of(jobs), key)
    except InputError as error:
        raise InputError(f"job {arrays.id_word(jobs)} cannot be exported: {error}") from error


def _write(path: Path, text: str) -> None:
    """Write a new file that its user may read: it may contain secrets of the job's environment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")
    except OSError as error:
        raise GputuiError(f"cannot be written: {error.strerror}", where=str(path)) from error
    click.echo(str(path))
