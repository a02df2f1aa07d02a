"""`gputui cluster`: what the nodes of a Slurm cluster need, and whether they have it."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import click

from gputui.cli import cluster_check
from gputui.cli.offered_files import agreed, changes, listing, write
from gputui.domain.text import plain

EPILOGS = "/etc/slurm/epilog.d"
_NAME = "50-gputui"


@click.group("cluster")
def command() -> None:
    """Prepare and check the nodes of a Slurm cluster."""


command.add_command(cluster_check.command)


@command.command("install")
@click.option("--dry-run", is_flag=True, help="Print the epilog and the line of slurm.conf, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--epilog-dir", default=EPILOGS, metavar="DIR", help=f"Directory of the epilogs; {EPILOGS} by default.")
def install(dry_run: bool, yes: bool, epilog_dir: str) -> int:
    """Write the epilog that removes the containers of ended jobs.

    Slurm runs it on each node after each job. Without it containers stay where a batch script is killed, and on a node
    that was cut off and came back. It is needed on every node, at the same path; it never fails, so it drains no node.
    Prints the changes, asks, and prints the line of slurm.conf.
    """
    wanted = {Path(epilog_dir).absolute() / _NAME: epilog()}
    if dry_run:
        click.echo(listing(wanted))
        click.echo(_lines(epilog_dir, "#"))
        return 0
    changed = changes(wanted)
    if not changed:
        click.echo(f"the epilog in {plain(epilog_dir)} is up to date")
        return 0
    if not agreed(changed, "cluster install", yes=yes):
        return 1
    with suppress(OSError):  # writing tells
        Path(epilog_dir).mkdir(parents=True, exist_ok=True)
    write(changed, option="--epilog-dir", mode=0o755)
    click.echo(_lines(epilog_dir, "now:"))
    return 0


def epilog() -> str:
    """Return the program that nodes run after each job."""
    return (files("gputui") / "cluster" / "slurm" / "epilog.sh").read_text(encoding="utf-8")


def _lines(directory: str, mark: str) -> str:
    place = plain(str(Path(directory).absolute()))
    return (
        f"{mark} copy it to the same path on every node, and have this line in slurm.conf on every machine:\n"
        f"Epilog={place}/*\n"
        f"{mark} then run scontrol reconfigure"
    )
