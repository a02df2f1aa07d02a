"""`gputui replay`: what this scheduler and others would have made of a trace of jobs."""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gputui.cli import own_history, table
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.errors import InputError
from gputui.domain.settings import PolicySettings
from gputui.domain.text import plain
from gputui.domain.units import format_duration, parse_duration

if TYPE_CHECKING:
    from gputui.replay.history import History
    from gputui.replay.metrics import Figures
    from gputui.replay.trace import TraceJob

LIMITS = ("exact", "bucket", "none")
POLICY_NAMES = ("plan", "fifo", "greedy", "static-equal", "static-proportional", "host-lease")
BAR, SHORT_BAR, WIDE = 20, 5, 100
"""Cells of a whole bar: on a terminal from so many columns on, and on a narrower one."""

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
@click.option("--history", is_flag=True, help="The jobs that ended on this server instead of a trace.")
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(1, 65536),
    help="How many GPUs there are. [8; with --history as many as this server has]",
)
@click.option(
    "--gpus-per-node",
    metavar="N",
    type=click.IntRange(1, 1024),
    help="How many of them a node has. [8; with --history all]",
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
    help="What users say their jobs take, where it is not known: the truth, a round figure, or nothing. [bucket]",
)
@click.option("--max-time", metavar="TIME", help="Longer jobs are cut to this. [72h; with --history none are]")
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
@pass_session
def command(
    session: Session,
    trace: str | None,
    history: bool,
    gpus: int | None,
    gpus_per_node: int | None,
    load: float | None,
    limits: str,
    max_time: str | None,
    policies: tuple[str, ...],
    synthetic: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Run the scheduler's own decision over a trace, beside what people do without it.

    TRACE.csv has the columns submit_time_s, duration_s, gpus and vc (the tenant). With --history the trace is what
    ended on this server, by its own settings: what a static split of its GPUs would have given.
    """
    from gputui.replay import trace as traces
    from gputui.replay.measure import measure

    names, longest = parse_policies(policies), parse_max_time(max_time)
    if (trace is not None) + (synthetic is not None) + history != 1:
        raise InputError("expected a trace, --synthetic or --history, one of the three", where="TRACE.csv")
    source = of_history(session) if history else of_trace(trace, synthetic, seed)
    count = gpus or source.gpus
    site = traces.Site(count, min(count, gpus_per_node or (count if history else 8)))
    jobs = traces.prepare(source.jobs, site, load, limits, longest or source.longest)
    offered = traces.offered(jobs, site)
    as_they_came = gpus is None and load is None and longest is None
    found = own_history.as_it_was(source.own, jobs, count) if source.own and as_they_came else {}
    found |= {name: measure(name, jobs, site, source.settings) for name in names}
    head: dict[str, Any] = {
        "trace_sha256": source.digest,
        "gpus": count,
        "gpus_per_node": site.per_node,
        "load": load if load is not None else (offered if offered < float("inf") else None),
        "limits": limits,
        "jobs": len(jobs),
    }
    told = own_history.told(source.own, found, offered, limits) if source.own else []
    if source.own is not None:
        head |= {"history": own_history.as_json(source.own), "notes": told}
    if as_json:
        print_json({**head, "policies": {name: dataclasses.asdict(each) for name, each in found.items()}})
    else:
        sys.stdout.write("\n".join([*report(head, found), *wrapped(told)]) + "\n")


@dataclass(frozen=True)
class Source:
    """What is replayed."""

    jobs: Sequence[TraceJob]
    digest: str
    gpus: int = 8
    longest: float = 72 * 3600.0
    """Seconds to which durations are cut, unless told otherwise."""
    settings: PolicySettings | None = None
    own: History | None = None


def of_trace(trace: str | None, synthetic: int | None, seed: int) -> Source:
    """The trace of that file, or made-up jobs."""
    from gputui.replay import generator
    from gputui.replay import trace as traces

    if trace is not None:
        return Source(*traces.read(Path(trace)))
    made = generator.generate(synthetic or 0, seed)
    return Source(made, generator.digest(made))


def of_history(session: Session) -> Source:
    """What ended on this server."""
    from gputui.replay.generator import digest

    own, gpus, settings = own_history.read(session)
    longest = max(max(job.duration, job.stated or 0.0, Source.longest) for job in own.jobs)
    return Source(own.jobs, digest(own.jobs), gpus, longest, settings, own)


def parse_max_time(text: str | None) -> float | None:
    """Seconds; None when nothing is said."""
    seconds = None if text is None else parse_duration(text, where="--max-time").total_seconds()
    if seconds is not None and seconds <= 0:
        raise InputError("expected a duration above 0", where="--max-time")
    return seconds


def parse_policies(texts: Sequence[str]) -> list[str]:
    """The policies named, each once; all when none is."""
    named = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in named:
        if name not in POLICY_NAMES:
            raise InputError(f"{plain(name, 40)!r} is no policy", where="--policy", hint=", ".join(POLICY_NAMES))
    return list(dict.fromkeys(named)) or list(POLICY_NAMES)


def wrapped(told: Sequence[str]) -> Iterator[str]:
    """What is told of the history, below the table and no wider than the terminal."""
    columns = table.terminal_width() or 120
    yield from [""] if told else []
    for sentence in told:
        yield from textwrap.wrap(sentence, columns, subsequent_indent="  ")


def report(head: Mapping[str, Any], found: Mapping[str, Figures]) -> Iterator[str]:
    """What was replayed, then a line with a bar for each policy."""
    load = "all at once" if head["load"] is None else f"load {head['load']:.2f}"
    yield f"{head['jobs']} jobs on {head['gpus']} GPUs, {load}, {head['limits']} limits"
    yield f"trace sha256 {head['trace_sha256']}"
    yield ""
    columns = table.terminal_width()
    bar = BAR if columns is None or columns >= WIDE else SHORT_BAR
    yield from table.lines(COLUMNS, (_row(name, each, bar) for name, each in found.items()), columns)


def _row(name: str, found: Figures, bar: int) -> tuple[str, ...]:
    return (
        name,
        f"{found.allocation_ratio:.1%}",
        "#" * round(bar * found.allocation_ratio),
        _hours(found.wait_mean),
        _hours(found.wait_p95),
        _hours(found.wait_max),
        f"{found.bounded_slowdown_mean:.1f}",
        _hours(found.makespan),
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}h" if seconds >= 3600 else format_duration(timedelta(seconds=seconds))
