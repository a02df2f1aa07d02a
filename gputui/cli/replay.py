"""`gputui replay`: what this scheduler and others would have made of a trace of jobs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputui.cli import table
from gputui.cli.output import print_json
from gputui.domain.errors import InputError
from gputui.domain.text import plain
from gputui.domain.units import parse_duration

if TYPE_CHECKING:
    from gputui.replay.metrics import Figures

LIMITS = ("exact", "bucket", "none")
POLICY_NAMES = ("plan", "fifo", "greedy", "static-equal", "static-proportional", "host-lease")
BAR = 20

COLUMNS = (
    table.Column("POLICY", 20, least=8),
    table.Column("ALLOCATED", right=True),
    table.Column("", BAR, least=4),
    table.Column("WAIT", right=True),
    table.Column("P95", right=True),
    table.Column("MAX", right=True),
    table.Column("SLOWDOWN", right=True),
    table.Column("MAKESPAN", right=True),
)


@click.command("replay")
@click.argument("trace", metavar="[TRACE.csv]", required=False)
@click.option("--gpus", metavar="N", type=click.IntRange(1, 65536), default=8, help="How many GPUs there are. [8]")
@click.option(
    "--gpus-per-node", metavar="N", type=click.IntRange(1, 1024), default=8, help="How many of them a node has. [8]"
)
@click.option(
    "--load",
    metavar="X",
    type=click.FloatRange(0.01, 100),
    help="Stretch the submissions to this load: work over what there is. [as they came]",
)
@click.option(
    "--limits",
    metavar="exact|bucket|none",
    type=click.Choice(LIMITS),
    default="bucket",
    help="What users say their jobs take: the truth, a round figure, or nothing. [bucket]",
)
@click.option("--max-time", metavar="TIME", default="72h", help="Longer jobs are cut to this. [72h]")
@click.option(
    "-p",
    "--policy",
    "policies",
    metavar="NAME[,…]",
    multiple=True,
    help="Only these: plan (this scheduler), fifo, greedy, static-equal, static-proportional, host-lease.",
)
@click.option(
    "--synthetic", metavar="JOBS", type=click.IntRange(2, 1_000_000), help="So many made-up jobs instead of a trace."
)
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**31), default=0, help="Which made-up jobs. [0]")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON, times in seconds.")
def command(
    trace: str | None,
    gpus: int,
    gpus_per_node: int,
    load: float | None,
    limits: str,
    max_time: str,
    policies: tuple[str, ...],
    synthetic: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Run the scheduler's own decision over a trace, beside what people do without it.

    TRACE.csv has the columns submit_time_s, duration_s, gpus and vc (the tenant).
    """
    from gputui.replay import generator
    from gputui.replay import trace as traces
    from gputui.replay.measure import measure

    names, site = parse_policies(policies), traces.Site(gpus, min(gpus, gpus_per_node))
    if (trace is None) == (synthetic is None):
        raise InputError("expected a trace or --synthetic, one of the two", where="TRACE.csv")
    if trace is not None:
        raw, digest = traces.read(Path(trace))
    else:
        raw = generator.generate(synthetic or 0, seed)
        digest = generator.digest(raw)
    seconds = parse_duration(max_time, where="--max-time").total_seconds()
    if seconds <= 0:
        raise InputError("expected a duration above 0", where="--max-time")
    jobs = traces.prepare(raw, site, load, limits, seconds)
    offered = traces.offered(jobs, site)
    found = {name: measure(name, jobs, site) for name in names}
    head = {
        "trace_sha256": digest,
        "gpus": gpus,
        "gpus_per_node": gpus_per_node,
        "load": load if load is not None else (offered if offered < float("inf") else None),
        "limits": limits,
        "jobs": len(jobs),
    }
    if as_json:
        print_json({**head, "policies": {name: dataclasses.asdict(each) for name, each in found.items()}})
    else:
        sys.stdout.write("\n".join(report(head, found)) + "\n")


def parse_policies(texts: Sequence[str]) -> list[str]:
    """The policies named, each once; all when none is."""
    named = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in named:
        if name not in POLICY_NAMES:
            raise InputError(f"{plain(name, 40)!r} is no policy", where="--policy", hint=", ".join(POLICY_NAMES))
    return list(dict.fromkeys(named)) or list(POLICY_NAMES)


def report(head: Mapping[str, Any], found: Mapping[str, Figures]) -> Iterator[str]:
    """What was replayed, then a line with a bar for each policy."""
    load = "all at once" if head["load"] is None else f"load {head['load']:.2f}"
    yield f"{head['jobs']} jobs on {head['gpus']} GPUs, {load}, {head['limits']} limits"
    yield f"trace sha256 {head['trace_sha256']}"
    yield ""
    yield from table.lines(COLUMNS, (_row(name, each) for name, each in found.items()), table.terminal_width())


def _row(name: str, found: Figures) -> tuple[str, ...]:
    return (
        name,
        f"{found.allocation_ratio:.1%}",
        "#" * round(BAR * found.allocation_ratio),
        _hours(found.wait_mean),
        _hours(found.wait_p95),
        _hours(found.wait_max),
        f"{found.bounded_slowdown_mean:.1f}",
        _hours(found.makespan),
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}h"
