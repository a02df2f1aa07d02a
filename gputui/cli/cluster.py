"""`gputui cluster`: what a cluster needs, and whether it has it: an epilog of Slurm, or rights in Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import click

from gputui.cli import cluster_check
from gputui.cli.lazy import CommandGroup
from gputui.cli.offered_files import agreed, changes, listing, write
from gputui.cli.session import Session, pass_session
from gputui.domain.text import plain

EPILOGS = "/etc/slurm/epilog.d"
_NAME = "50-gputui"


@click.group("cluster", cls=CommandGroup)
def command() -> None:
    """Prepare and check a cluster: Slurm's nodes, or rights in Kubernetes."""


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


@command.command("rbac")
@click.option("--user", metavar="NAME", help="User who gets the rights, as the cluster knows her.")
@click.option("--group", metavar="NAME", help="Group that gets the rights.")
@click.option("--service-account", metavar="NAMESPACE:NAME", help="Service account that gets the rights.")
@click.option("--namespace", metavar="NAME", help="Namespace of the jobs; that of the settings by default.")
@click.option("--operator", is_flag=True, help="Also the right to drain nodes.")
@click.option("--own-namespace", is_flag=True, help="Only the namespace: no jobs of others, no nodes and no GPUs.")
@pass_session
def rbac(
    session: Session,
    user: str | None,
    group: str | None,
    service_account: str | None,
    namespace: str | None,
    operator: bool,
    own_namespace: bool,
) -> None:
    """Print the roles that Kubernetes has to grant, with the least rights.

    An administrator reads them, and applies them: gputui cluster rbac --user ann --namespace lab | kubectl apply -f -
    They are made from the list of calls that gputui doctor checks. Users see the jobs of all namespaces and the nodes,
    and submit, cancel, hold and read the output of jobs in their own namespace.
    """
    from gputui.bootstrap import moving

    subject = _subject({"User": user, "Group": group, "ServiceAccount": service_account})
    place = namespace or session.options.settings.cluster.namespace or ""
    click.echo(moving.rbac(place, *subject, is_operator=operator, is_wide=not own_namespace), nl=False)


def _subject(named: Mapping[str, str | None]) -> tuple[str, str]:
    """Return kind and name of the one who gets the rights."""
    given = [(kind, name) for kind, name in named.items() if name]
    if len(given) != 1:
        raise click.UsageError("name one of --user, --group and --service-account")
    return given[0]


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
