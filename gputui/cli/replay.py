"""`gputui replay`: compare schedulers on a trace of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from gputui.cli import replay_report, terminal
from gputui.cli.output import FiniteRange, print_json
from gputui.cli.replay_report import Variant
from gputui.cli.session import Session, pass_session
from gputui.domain.errors import InputError
from gputui.domain.policy.planning_context import LONGEST
from gputui.domain.settings import PolicySettings
from gputui.domain.text import format_duration, parse_time_span, plain, plural

if TYPE_CHECKING:
    from gputui.domain.job import Job
    from gputui.replay.simulation import Figures
    from gputui.replay.trace import JobHistory, Site, TraceJob

MANY = 5000
"""Number of jobs from which a replay takes long enough to show its progress."""
LIMITS = ("exact", "bucket", "none")
PLAN = "plan"
POLICY_NAMES = (PLAN, "fifo", "easy", "saf", "greedy", "static-equal", "static-proportional", "host-lease")


@click.command("replay")
@click.argument("trace", metavar="[TRACE.csv]", required=False)
@click.option("--history", is_flag=True, help="Replay the jobs that ended on this server instead of a trace.")
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(1, 65536),
    help="Number of GPUs. [8; with --history as many as this server has]",
)
@click.option(
    "--gpus-per-node",
    metavar="N",
    type=click.IntRange(1, 1024),
    help="GPUs per node. [8; with --history all]",
)
@click.option(
    "--load",
    metavar="X",
    type=FiniteRange(0.01, 100),
    help="Stretch the submit times to this load: work over capacity. [as in the trace]",
)
@click.option(
    "--limits",
    metavar="exact|bucket|none",
    type=click.Choice(LIMITS),
    help="Time limits of jobs without one in the trace: exact, rounded, or none. [bucket; with --history none]",
)
@click.option("--max-time", metavar="TIME", help="Cut longer jobs to this duration. [72h; with --history none]")
@click.option(
    "-p",
    "--policy",
    "policies",
    metavar="NAME[,…]",
    multiple=True,
    help="Policies: plan (this scheduler), fifo, easy, saf, greedy, static-equal, static-proportional, host-lease.",
)
@click.option(
    "--set",
    "changes",
    metavar="SETTING=VALUE",
    multiple=True,
    help="Replay with a setting of [policy] changed, such as half_life=3d; may be repeated.",
)
@click.option(
    "--compare",
    "comparison",
    metavar="SETTING=A,B[,…]",
    multiple=True,
    help="Replay with each of these values and with the current settings; repeated: all combinations.",
)
@click.option(
    "--synthetic",
    metavar="JOBS",
    type=click.IntRange(2, 1_000_000),
    help="Generate this number of jobs instead of reading a trace.",
)
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**31), default=0, help="Seed of the generated jobs. [0]")
@click.option("--json", "as_json", is_flag=True, help="Print an object as JSON, times in seconds.")
@pass_session
def command(
    session: Session,
    trace: str | None,
    history: bool,
    gpus: int | None,
    gpus_per_node: int | None,
    load: float | None,
    limits: str | None,
    max_time: str | None,
    policies: tuple[str, ...],
    changes: tuple[str, ...],
    comparison: tuple[str, ...],
    synthetic: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Simulate this scheduler and others on a trace of jobs, and compare waits and GPU use.

    TRACE.csv has the columns submit_time_s, duration_s and gpus, and may have vc (the tenant), priority, name, limit
    and preemptible. With --history the trace is the jobs that ended on this server, with its settings. How to read the
    figures: docs/replay.md.
    """
    names, longest = parse_policies(policies), parse_max_time(max_time)
    source = _source(session, trace, synthetic, seed, history=history)
    base = replay_report.changed(source.settings, changes)
    tried = replay_report.compared(base.settings, comparison)
    replay = Replay.of(source, gpus, gpus_per_node, load, limits, longest)
    if tried and not policies:
        names = [PLAN]
    found = replay.figures(names, base, tried)
    told = [*replay.cut(), *replay.unheeded([base, *tried])]
    told += replay_report.told(source.own, found, replay.offered, replay.limits) if source.own else []
    if as_json:
        print_json(replay.as_object(base, tried, told, found))
        return
    lines = replay_report.header(replay.head(), base)
    lines += [] if tried and not policies else replay_report.policies(found, {each.name for each in tried})
    lines += replay_report.comparison(base, tried, found) if tried else []
    terminal.write("\n".join([*lines, *replay_report.wrapped(told)]) + "\n")


def _source(session: Session, trace: str | None, synthetic: int | None, seed: int, *, history: bool) -> ReplaySource:
    """Return the jobs that the command names; raise InputError unless it names one source of them."""
    if (trace is not None) + (synthetic is not None) + history != 1:
        raise InputError("expected a trace, --synthetic or --history, one of the three", where="TRACE.csv")
    return of_history(session) if history else of_trace(trace, synthetic, seed)


LONGEST_LIMIT = 72 * 3600.0
"""Seconds to which the durations of jobs are cut, unless told otherwise."""


class ReplaySource(Struct, frozen=True):
    """Jobs to replay, with the defaults that go with them."""

    jobs: Sequence[TraceJob]
    digest: str
    gpus: int = 8
    longest: float = LONGEST_LIMIT
    unlimited: float | None = None
    """Seconds that a job without a limit is planned to run at most; None: the cap of the durations."""
    settings: PolicySettings = PolicySettings()
    limits: str = "bucket"
    own: JobHistory | None = None
    """The history of this server, if the jobs are from there."""


@contextmanager
def progress(count: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows on a terminal which replay is running; the line is removed at the end."""
    names: list[str] = []

    def tell(name: str) -> None:
        names.append(name)
        if is_shown:
            terminal.write(f"\r\x1b[K{len(names)} of {count}: {name[:60]}", err=True)
            terminal.flush_err()

    is_shown = count > 0 and terminal.is_tty(terminal.ERR)
    try:
        yield tell
    finally:
        if is_shown:
            terminal.write("\r\x1b[K", err=True)


def of_trace(trace: str | None, synthetic: int | None, seed: int) -> ReplaySource:
    """Return the trace of that file, or generated jobs."""
    from gputui.replay import trace as traces

    if trace is not None:
        return ReplaySource(*traces.read(Path(trace)))
    made = traces.generate(synthetic or 0, seed)
    return ReplaySource(made, traces.digest(made))


def of_history(session: Session, jobs: Iterable[Job] | None = None) -> ReplaySource:
    """Return the jobs that ended on this server (or those among `jobs`), with its settings."""
    from gputui.replay.trace import digest

    own, gpus, settings = replay_report.read(session, jobs)
    longest = max(max(job.duration, job.stated or 0.0, LONGEST_LIMIT) for job in own.jobs)
    policy = replace(settings.policy, max_time=settings.policy.max_time or settings.scheduler.max_time)
    return ReplaySource(own.jobs, digest(own.jobs), gpus, longest, LONGEST.total_seconds(), policy, "none", own)


class Replay(Struct, frozen=True):
    """Jobs ready to be replayed, with the servers and settings to replay them on."""

    source: ReplaySource
    jobs: Sequence[TraceJob]
    site: Site
    limits: str
    longest: float
    """Seconds to which the durations were cut."""
    load: float | None
    """Load asked for with `--load`; None: submit times as in the trace."""
    offered: float
    is_as_it_was: bool
    """True if jobs, times and GPUs are those of the history, so that the real figures can be compared."""

    @classmethod
    def of(
        cls,
        source: ReplaySource,
        gpus: int | None,
        gpus_per_node: int | None,
        load: float | None,
        limits: str | None,
        longest: float | None,
    ) -> Replay:
        """Prepare the jobs by the options, with the source's defaults for those not given."""
        from gputui.replay import trace as traces

        count = gpus or source.gpus
        site = traces.Site(count, min(count, gpus_per_node or (count if source.own else 8)))
        limits = limits or source.limits
        most = longest or source.longest
        jobs = traces.prepare(source.jobs, site, load, limits, most, source.unlimited)
        as_it_was = source.own is not None and gpus is None and load is None and longest is None
        return cls(source, jobs, site, limits, most, load, traces.offered(jobs, site), as_it_was)

    def figures(self, names: Sequence[str], base: Variant, tried: Sequence[Variant]) -> dict[str, Figures]:
        """Return the figures by name: of the real past, of the policies and of the variants."""
        from gputui.replay.policies import measure

        found = {}
        if self.source.own is not None and self.is_as_it_was:
            found = replay_report.as_it_was(self.source.own, self.jobs, self.site.gpus)
        rules = {PLAN: base} | {each.name: each for each in tried}
        wanted = [*names, *([PLAN] if tried and PLAN not in names else []), *(each.name for each in tried)]
        with progress(len(wanted) if len(self.jobs) >= MANY else 0) as tell:
            for name in wanted:
                tell(name)
                variant = rules.get(name)
                passable = replay_report.passable(variant.settings, self.jobs) if variant else None
                found[name] = measure(PLAN if variant else name, self.jobs, self.site, passable)
        return found

    def cut(self) -> list[str]:
        """Return a sentence each for jobs that are too wide or too long to be replayed as they were."""
        wide = sum(job.gpus > self.site.gpus for job in self.source.jobs)
        long = sum(job.duration > self.longest for job in self.source.jobs)
        there = plural(self.site.gpus, "GPU")
        longest = format_duration(timedelta(seconds=self.longest))
        told = {
            f"{plural(wide, 'job')} that asked for more GPUs than there are: replayed with {there}.": wide,
            f"{plural(long, 'job')} that ran longer than {longest}: replayed with that.": long,
        }
        return [sentence for sentence, count in told.items() if count]

    def unheeded(self, tried: Sequence[Variant]) -> list[str]:
        """Return a sentence for each changed setting that affects none of these jobs."""
        keys = {key for each in tried for key in each.changes}
        sentences = []
        if "policy.preemption" in keys and not any(job.preemptible for job in self.jobs):
            sentences.append("No job here may be preempted, so policy.preemption changes nothing.")
        if "policy.predict" in keys and all(job.is_limited or not job.name for job in self.jobs):
            sentences.append("No job here has a name and no limit, so policy.predict changes nothing.")
        return sentences

    def head(self) -> dict[str, Any]:
        """Return the description of the replay, by the keys of the JSON output."""
        return {
            "trace_sha256": self.source.digest,
            "gpus": self.site.gpus,
            "gpus_per_node": self.site.per_node,
            "load": self.load if self.load is not None else (self.offered if self.offered < float("inf") else None),
            "limits": self.limits,
            "jobs": len(self.jobs),
        }

    def as_object(
        self, base: Variant, tried: Sequence[Variant], told: Sequence[str], found: dict[str, Figures]
    ) -> dict[str, Any]:
        head = self.head() | {"settings": replay_report.settings_json(base.settings, base.changes)}
        if self.source.own is not None:
            head |= {"history": replay_report.history_json(self.source.own)}
        if told or self.source.own is not None:
            head |= {"notes": list(told)}
        if tried:
            head["variants"] = {each.name: replay_report.settings_json(each.settings, each.changes) for each in tried}
        return head | {"policies": {name: asdict(each) for name, each in found.items()}}


def parse_max_time(text: str | None) -> float | None:
    """Return the seconds; None when the option is not given."""
    return None if text is None else parse_time_span(text, where="--max-time").total_seconds()


def parse_policies(texts: Sequence[str]) -> list[str]:
    """Return the policies named, each once; all when none is."""
    named = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in named:
        if name not in POLICY_NAMES:
            raise InputError(f"{plain(name, 40)!r} is not a policy", where="--policy", hint=", ".join(POLICY_NAMES))
    return list(dict.fromkeys(named)) or list(POLICY_NAMES)
