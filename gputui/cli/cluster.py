"""`gputui cluster`: what a cluster needs, and whether it has it: an epilog of Slurm, or rights in Kubernetes."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from gputui.bootstrap import clusters
from gputui.cli import completing, output, terminal
from gputui.cli.main import CommandGroup
from gputui.cli.offered_files import agreed, changes, listing, write
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.cluster import ENGINES, parse_engine
from gputui.domain.errors import CapabilityError
from gputui.domain.gpu import index_ranges, short_names
from gputui.domain.node_readings import NodeCheck, Verdict
from gputui.domain.text import plain, plural
from gputui.request import job_values

COLUMNS = (
    output.TextColumn("NODE", 24, least=4),
    output.TextColumn("RESULT"),
    output.TextColumn("GPUS"),
    output.TextColumn("CONTAINER SAW", 60, least=13),
    output.TextColumn("DOCKER", 12),
    output.TextColumn("CLEANED"),
    output.TextColumn("FINDINGS"),
)


@click.command("check")
@click.option("--image", metavar="IMAGE", help="Image of the container; by default that of cluster.check_image.")
@click.option("--wait", "waits", is_flag=True, help="Check all GPUs of each node, and wait for those that are busy.")
@click.option(
    "--timeout", default="5m", metavar="DURATION", help="Cancel jobs that have not ended by then; 5m by default."
)
@click.option("--json", "as_json", is_flag=True, help="Print an array of nodes as JSON.")
@click.argument("nodes", nargs=-1, metavar="[NODE...]", shell_complete=completing.nodes)
@pass_session
def check(session: Session, image: str | None, waits: bool, timeout: str, as_json: bool, nodes: tuple[str, ...]) -> int:
    """Run a probe job on each node that takes jobs, which must see exactly the GPUs that Slurm gives it.

    The job asks for all GPUs of its node that are free. Its containers, one with all of these GPUs and one with each,
    must see these and no others. It also tells whether users and Docker are there as jobs need them, and leaves a
    container behind, which the epilog has to remove. Needs no rights beyond those to submit jobs.

    The exit code is 1 if a node is faulty, or none could be checked. Nodes that are down, drained or busy are not
    checked. Ctrl-C cancels the jobs.

    Of Kubernetes it prints what a job with a GPU is there, with the template of the settings, and whether the API
    server takes it; nothing runs.
    """
    patience = job_values.duration(timeout, "--timeout")
    if draft := clusters.checked_draft(session.options, nodes, image):
        terminal.write(draft)
        return 0
    checks = clusters.check_nodes(session.options, nodes, patience, image=image, waits=waits, tell=terminal.tell)
    if as_json:
        print_json([{"node": check.node, "result": str(check.verdict), **asdict(check)} for check in checks])
    else:
        known = {uuid for check in checks for uuid in (*check.expected, *(check.seen or ()))}
        names = short_names(sorted(known))
        lines = output.lines(COLUMNS, [_row(check, names) for check in checks], terminal.width())
        for check in checks:
            lines += [plain(f"{check.node}: {fault}") for fault in check.faults]
        terminal.write("\n".join(lines) + "\n")
    verdicts = {check.verdict for check in checks}
    return 0 if Verdict.OK in verdicts and Verdict.FAULTY not in verdicts else 1


def _row(check: NodeCheck, names: Any) -> tuple[str, ...]:
    has_run = bool(check.allocated)
    seen = "-" if check.seen is None else " ".join(names[uuid] for uuid in check.seen) or "no GPU"
    cleaned = "-" if check.is_cleaned is None else "yes" if check.is_cleaned else "no"
    busy = check.gpus - len(check.allocated)
    partly = f"{plural(busy, 'GPU')} busy, not checked" if busy > 0 else ""
    findings = plural(len(check.faults), "fault") if check.faults else check.why_not or partly
    gpus = index_ranges(check.allocated) if has_run else "-"
    return (check.node, str(check.verdict), gpus, seen, check.container_engine or "-", cleaned, findings)


EPILOGS = "/etc/slurm/epilog.d"
_NAME = "50-gputui"


@click.group("cluster", cls=CommandGroup)
def command() -> None:
    """Prepare and check a cluster: Slurm's nodes, or rights in Kubernetes."""


command.add_command(check)


@command.command("install")
@click.option("--dry-run", is_flag=True, help="Print the epilog and the line of slurm.conf, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--epilog-dir", default=EPILOGS, metavar="DIR", help=f"Directory of the epilogs; {EPILOGS} by default.")
@pass_session
def install(session: Session, dry_run: bool, yes: bool, epilog_dir: str) -> int:
    """Write the epilog that removes the containers of ended jobs.

    Slurm runs it on each node after each job. Without it containers stay where a batch script is killed, and on a node
    that was cut off and came back. It is needed on every node, at the same path; it never fails, so it drains no node.
    Prints the changes, asks, and prints the line of slurm.conf.
    """
    engine = parse_engine(session.options.settings.cluster.engine)
    if engine is not None and engine.kind != "slurm":  # nodes need no settings for this
        hint = "gputui cluster rbac prints the roles that users need; gputui doctor says what is missing"
        raise CapabilityError(f"{ENGINES[engine.kind]} needs nothing on its nodes: the epilog is Slurm's", hint=hint)
    wanted = {Path(epilog_dir).absolute() / _NAME: epilog()}
    if dry_run:
        terminal.echo(listing(wanted))
        terminal.echo(_lines(epilog_dir, "#"))
        return 0
    changed = changes(wanted)
    if not changed:
        terminal.echo(f"the epilog in {plain(epilog_dir)} is up to date")
        return 0
    if not agreed(changed, "cluster install", yes=yes):
        return 1
    with suppress(OSError):  # writing tells
        Path(epilog_dir).mkdir(parents=True, exist_ok=True)
    write(changed, option="--epilog-dir", mode=0o755)
    terminal.echo(_lines(epilog_dir, "now:"))
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
    from gputui.bootstrap import clusters

    named = {"User": user, "Group": group, "ServiceAccount": service_account}
    given = [(kind, name) for kind, name in named.items() if name]
    if len(given) != 1:
        raise click.UsageError("name one of --user, --group and --service-account")
    place = namespace or session.options.settings.cluster.namespace or ""
    terminal.echo(clusters.kubernetes_rbac(place, *given[0], is_operator=operator, is_wide=not own_namespace), nl=False)


def epilog() -> str:
    return (files("gputui") / "cluster" / "slurm" / "epilog.sh").read_text(encoding="utf-8")


def _lines(directory: str, mark: str) -> str:
    place = plain(str(Path(directory).absolute()))
    return (
        f"{mark} copy it to the same path on every node, and have this line in slurm.conf on every machine:\n"
        f"Epilog={place}/*\n"
        f"{mark} then run scontrol reconfigure"
    )
