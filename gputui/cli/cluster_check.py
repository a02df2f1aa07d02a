"""`gputui cluster check`: a probe job on each node of a Slurm cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
from msgspec.structs import asdict

from gputui.bootstrap import clusters
from gputui.cli import completing, table
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.gpu import short_names
from gputui.domain.gpu_names import index_ranges
from gputui.domain.node_check import NodeCheck, Verdict
from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.request import job_values

COLUMNS = (
    table.TextColumn("NODE", 24, least=4),
    table.TextColumn("RESULT"),
    table.TextColumn("GPUS"),
    table.TextColumn("CONTAINER SAW", 60, least=13),
    table.TextColumn("DOCKER", 12),
    table.TextColumn("CLEANED"),
    table.TextColumn("FINDINGS"),
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
def command(
    session: Session, image: str | None, waits: bool, timeout: str, as_json: bool, nodes: tuple[str, ...]
) -> int:
    """Run a probe job on each node that takes jobs, which must see exactly the GPUs that Slurm gives it.

    The job asks for all GPUs of its node that are free. Its containers, one with all of these GPUs and one with each,
    must see these and no others. It also tells whether users and Docker are there as jobs need them, and leaves a
    container behind, which the epilog has to remove. Needs no rights beyond those to submit jobs.

    The exit code is 1 if a node is faulty, or none could be checked. Nodes that are down, drained or busy are not
    checked. Ctrl-C cancels the jobs.
    """
    patience = job_values.duration(timeout, "--timeout")
    checks = clusters.check_nodes(session.options, nodes, patience, image=image, waits=waits, tell=_tell)
    if as_json:
        print_json([_json(check) for check in checks])
    else:
        sys.stdout.write("\n".join(_lines(checks)) + "\n")
    verdicts = {check.verdict for check in checks}
    return 0 if Verdict.OK in verdicts and Verdict.FAULTY not in verdicts else 1


def _tell(sentence: str) -> None:
    click.echo(f"gputui: {plain(sentence)}", err=True)


def _json(check: NodeCheck) -> dict[str, Any]:
    return {"node": check.node, "result": str(check.verdict), **asdict(check)}


def _lines(checks: Sequence[NodeCheck]) -> list[str]:
    """Return the table, and all sentences about nodes with several faults."""
    known = {uuid for check in checks for uuid in (*check.expected, *(check.seen or ()))}
    names = short_names(sorted(known))
    lines = table.lines(COLUMNS, [_row(check, names) for check in checks], table.terminal_width())
    for check in checks:
        lines += [plain(f"{check.node}: {fault}") for fault in check.faults]
    return lines


def _row(check: NodeCheck, names: Any) -> tuple[str, ...]:
    has_run = bool(check.allocated)
    seen = "-" if check.seen is None else " ".join(names[uuid] for uuid in check.seen) or "no GPU"
    cleaned = "-" if check.is_cleaned is None else "yes" if check.is_cleaned else "no"
    findings = plural(len(check.faults), "fault") if check.faults else check.why_not or _partly(check)
    gpus = index_ranges(check.allocated) if has_run else "-"
    return (check.node, str(check.verdict), gpus, seen, check.container_engine or "-", cleaned, findings)


def _partly(check: NodeCheck) -> str:
    """Return that only some of a node's GPUs were free."""
    busy = check.gpus - len(check.allocated)
    return f"{plural(busy, 'GPU')} busy, not checked" if busy > 0 else ""
