"""`gputui replay`: compare schedulers on a trace of jobs."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from msgspec import Struct
from msgspec.structs import replace

from gputui.cli import output, terminal
from gputui.cli.output import FiniteRange, TextColumn, print_json
from gputui.cli.session import Session, pass_session
from gputui.config.settings_file import value_of_text
from gputui.domain.errors import GputuiError, InputError
from gputui.domain.policy.planning_context import LONGEST
from gputui.domain.settings import PolicySettings, TenantSettings
from gputui.domain.snapshot import effective_settings
from gputui.domain.text import fit, format_duration, format_limit, parse_time_span, plain, plural

if TYPE_CHECKING:
    from gputui.domain.job import Job
    from gputui.replay.simulation import Figures
    from gputui.replay.trace import JobHistory, Site, TraceJob


MOST = 64
"""Maximum number of variants in one comparison."""
NOT_REPLAYED = frozenset(
    {"allow", "extend", "forecast_jobs", "left_free", "operators", "patience"}
    | {"prefer", "reservation_grace", "reservations", "share", "share_jobs", "tenants"}
)
"""Settings without effect in a replay, since jobs of a trace ask for nothing but a number of GPUs."""
REPLAYED = [name for name in PolicySettings.__struct_fields__ if name not in NOT_REPLAYED]
_TABLE, _TENANT = "policy.", "tenants."
_SHOWN = 60


class Variant(Struct, frozen=True):
    name: str
    """Changes as typed: `age_unit=12h half_life=7d`."""
    changes: Mapping[str, str]
    """Text of the value by the setting's full name."""
    settings: PolicySettings


def changed(settings: PolicySettings, texts: Sequence[str]) -> Variant:
    """Return the policy with each `SETTING=VALUE` of `--set`; a later one overrides an earlier one."""
    pairs = [_pair(text, "--set") for text in texts]
    return _variant(settings, dict(pairs), "--set")


def compared(settings: PolicySettings, texts: Sequence[str]) -> list[Variant]:
    """Return the policy with each value of each `SETTING=A,B` of `--compare`, in all combinations."""
    pairs = [_pair(text, "--compare") for text in texts]
    choices = [[(key, value.strip()) for value in values.split(",")] for key, values in pairs]
    keys = [key for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise InputError(f"{twice[0]} is given twice", where="--compare", hint=f"{twice[0]}=A,B,C")
    count = math.prod(map(len, choices))
    if count > MOST:
        raise InputError(f"{count:,} combinations are more than {MOST}", where="--compare", hint="compare fewer values")
    return [_variant(settings, dict(each), "--compare") for each in product(*choices)] if choices else []


def values_of(settings: PolicySettings, keys: Iterable[str]) -> dict[str, Any]:
    found = {}
    for full in keys:
        key = full.removeprefix(_TABLE)
        name, _, field = key.removeprefix(_TENANT).rpartition(".")
        tenant = next((tenant for tenant in settings.tenants if tenant.name == name), TenantSettings(name))
        found[full] = getattr(tenant, field) if key.startswith(_TENANT) else getattr(settings, key)
    return found


def settings_json(settings: PolicySettings, keys: Iterable[str]) -> dict[str, Any]:
    values = values_of(settings, keys)
    return {key: value.total_seconds() if isinstance(value, timedelta) else value for key, value in values.items()}


def _pair(text: str, where: str) -> tuple[str, str]:
    """Return full name and value of `policy.SETTING=VALUE`; the table's name may be omitted."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        found = plain(text, _SHOWN)
        raise InputError(f"expected SETTING=VALUE, found {found!r}", where=where, hint="such as half_life=7d")
    return _TABLE + key.strip().removeprefix(_TABLE), value.strip()


def _variant(settings: PolicySettings, changes: Mapping[str, str], option: str) -> Variant:
    for full, text in changes.items():
        key = full.removeprefix(_TABLE)
        where = f"{option} {plain(key, _SHOWN)}"
        if key.startswith(_TENANT):
            name, _, field = key.removeprefix(_TENANT).rpartition(".")
            if not name or field not in ("weight", "gpus", "running"):
                hint = f"{_TENANT}NAME.weight, .gpus or .running"
                raise InputError("is not a setting of a tenant", where=where, hint=hint)
            known = {tenant.name: tenant for tenant in settings.tenants}
            value = value_of_text(TenantSettings, field, text, where)
            known[name] = replace(known.get(name, TenantSettings(name)), **{field: value})
            settings = replace(settings, tenants=tuple(known.values()))
        elif key in NOT_REPLAYED:
            hint = "those that do: " + ", ".join([*REPLAYED, f"{_TENANT}NAME.weight"])
            raise InputError("changes nothing in a replay", where=where, hint=hint)
        else:
            settings = replace(settings, **{key: value_of_text(PolicySettings, key, text, where, REPLAYED)})
    name = " ".join(f"{key.removeprefix(_TABLE)}={value}" for key, value in changes.items())
    return Variant(plain(name), changes, settings)


AS_IT_WAS = "as-it-was"


def passable(policy: PolicySettings, widest: Mapping[str, int]) -> PolicySettings:
    """Return the policy with caps raised where a past job exceeds them: such a cap is newer than the job.

    `widest` has the most GPUs of a past job, by tenant.
    """
    tenants = (
        replace(
            tenant,
            gpus=None if tenant.gpus is None else max(tenant.gpus, widest.get(tenant.name, 0)),
            running=None if tenant.running is None else max(tenant.running, 1),
        )
        for tenant in policy.tenants
    )
    return replace(policy, tenants=tuple(tenants))


def sentences(history: JobHistory, found: Mapping[str, Figures], offered: float, limits: str) -> list[str]:
    return [*filter(None, [meaning(found, history)]), *notes(history, offered, limits)]


def meaning(found: Mapping[str, Figures], history: JobHistory) -> str:
    """Return a sentence on the effect of a static split; empty unless that policy was replayed."""
    if PLAN not in found or "static-equal" not in found:
        return ""
    if len({job.tenant for job in history.jobs}) < 2:
        return "All jobs belong to one tenant: there is nothing to split."
    ours, split = found[PLAN], found["static-equal"]

    def wait(seconds: float) -> str:
        return format_duration(timedelta(seconds=seconds))

    waits = f"would have waited {wait(split.wait_mean)} on average, and {wait(ours.wait_mean)} under this scheduler"
    given = split.allocation_ratio / ours.allocation_ratio - 1 if ours.allocation_ratio else 0.0
    less = f"{abs(given):.0%} {'less' if given < 0 else 'more'}" if abs(given) >= 0.005 else "as much"
    return (
        f"With the GPUs split equally between the tenants these jobs {waits}; "
        f"by the last submission they would have been given {less} GPU time."
    )


def notes(history: JobHistory, offered: float, limits: str) -> Iterator[str]:
    count = len(history.jobs)
    if count < 100 or history.span < timedelta(days=7):
        over = f"{plural(count, 'job')} over {format_duration(history.span)}"
        yield f"{over} is a small sample: a week and some hundred jobs are better."
    if offered < 0.6:
        yield f"At load {offered:.2f} GPUs are mostly free, so that policies differ little."
    if history.failed:
        yield f"Counted with all their GPU time, although they did not complete: {plural(history.failed, 'job')}."
    if history.left_out:
        yield f"Left out, as they held no GPU: {plural(history.left_out, 'finished job')}."
    if history.shared:
        yield f"Counted as if alone on their GPUs, although these were shared: {plural(history.shared, 'job')}."
    unstated = sum(job.stated is None for job in history.jobs)
    if unstated and limits != "none":
        yield f"Given a time limit by --limits {limits}, as they had none: {plural(unstated, 'job')}."
    yield (
        "Each job arrives when it could have started; holds, reservations and caps of arrays are left out. "
        "With other waits, users would have submitted at other times."
    )


BAR, SHORT_BAR, WIDE = 20, 5, 100
"""Cells of a full bar on a wide and on a narrow terminal, and the columns from which a terminal is wide."""
PLAN = "plan"
_CLASSES = {"wait_mean_high": "HIGH WAIT", "wait_mean_normal": "NORMAL", "wait_mean_low": "LOW"}
_PREEMPTED = {"preemptions": "PREEMPTED", "gpu_seconds_lost": "LOST"}
_FORMATS: Mapping[str, Callable[[float], str]] = {
    "allocation_ratio": lambda value: f"{value:.1%}",
    "bounded_slowdown_mean": lambda value: f"{value:.1f}",
    "preemptions": lambda value: f"{value:.0f}",
    "gpu_seconds_lost": lambda value: f"{value / 3600:.1f} GPU-h",
}
"""Formats of the figures that are not durations."""
ReportRow: TypeAlias = tuple[str, ...]
_WAITS = ("wait_mean", "wait_p95", "wait_max")
_FIGURES = 64
"""Cells of the figures of a comparison, beside the names of its lines."""
_COMPARED = (*_WAITS, "bounded_slowdown_mean", "allocation_ratio", "worst_tenant_wait_mean")
_LEGEND = (
    "Below each figure is its difference from the first line of plan. One trace is one sample: differences of a "
    "few per cent say little."
)


def policy_table(found: Mapping[str, Figures], variants: Collection[str]) -> list[str]:
    """Return a table with a line and a bar for each policy, and one of waits by class where there are several."""
    shown = {name: each for name, each in found.items() if name not in variants}
    total = terminal.width()
    is_wide = total is None or total >= WIDE
    bar = BAR if is_wide else SHORT_BAR
    columns = [
        TextColumn("POLICY", 20, least=8),
        TextColumn("ALLOCATED", right=True),
        TextColumn("", bar, least=4),
        *(TextColumn(title, right=True) for title in ("WAIT", "P95", "MAX", "SLOWDOWN", "MAKESPAN")),
        *([TextColumn("WORST TENANT", right=True)] if is_wide else []),
    ]
    rows = [
        (
            name,
            _shown(each, "allocation_ratio"),
            "#" * round(bar * each.allocation_ratio),
            *(_shown(each, figure) for figure in (*_WAITS, "bounded_slowdown_mean", "makespan")),
            *([_shown(each, "worst_tenant_wait_mean")] if is_wide else []),
        )
        for name, each in shown.items()
    ]
    further = _further(
        "POLICY",
        shown,
        lambda figures: ((name, *(_shown(each, figure) for figure in figures)) for name, each in shown.items()),
    )
    return ["", *output.lines(columns, rows, total), *further]


def comparison_table(base: Variant, tried: Sequence[Variant], found: Mapping[str, Figures]) -> list[str]:
    """Return a table of the current settings and of each variant, with the differences below the figures."""
    titles = ("WAIT", "P95", "MAX", "SLOWDOWN", "ALLOCATED", "WORST TENANT")
    columns = [TextColumn("SETTINGS", 60, least=9), *(TextColumn(title, right=True) for title in titles)]
    own = [AS_IT_WAS] if AS_IT_WAS in found else []
    keys = list(dict.fromkeys(key for each in tried for key in each.changes))
    values = values_of(base.settings, keys)

    def word(value: object) -> str:
        if isinstance(value, timedelta):
            return format_limit(value) if value else "0"
        if isinstance(value, float):
            return f"{value:g}"
        return "none" if value is None else str(value).lower()

    now = " ".join(f"{key.partition('.')[2]}={word(value)}" for key, value in values.items())
    others = {each.name: each.name for each in tried if values_of(each.settings, keys) != values}
    names, key = _short({name: name for name in own} | {PLAN: f"{PLAN} ({now})"} | others, terminal.width())
    rows = list(_compared_rows(names, found, _COMPARED))
    further = _further("SETTINGS", found, lambda figures: _compared_rows(names, found, figures))
    return ["", *key, *output.lines(columns, rows, terminal.width()), *further, *wrapped([_LEGEND])]


def _short(names: dict[str, str], total: int | None) -> tuple[dict[str, str], list[str]]:
    """Return the names of the lines, and a key to the numbers that replace names too long for the terminal."""
    if total is None or max(map(len, names.values())) + _FIGURES <= total:
        return names, []
    tried = [key for key in names if key not in (PLAN, AS_IT_WAS)]
    numbers = {key: str(tried.index(key) + 1) if key in tried else key for key in names}
    key = [names[PLAN], *(f"{numbers[each]:>4} {names[each]}" for each in tried)]
    return numbers, [*(fit(line, total).rstrip() for line in key), ""]


def _compared_rows(
    names: Mapping[str, str], found: Mapping[str, Figures], figures: Sequence[str]
) -> Iterator[ReportRow]:
    def difference(key: str, figure: str) -> str:
        """Return the difference from the first line of plan in per cent; empty where that is not a number."""
        new, old = getattr(found[key], figure), getattr(found[PLAN], figure)
        if not old or new is None:
            return "=" if new == old else ""
        change = 100 * (new / old - 1)
        if abs(change) < 0.05:
            return "="
        return f"{change:+.1f}%" if abs(change) < 9.95 else f"{change:+.0f}%"

    for key, name in names.items():
        yield (name, *(_shown(found[key], figure) for figure in figures))
        if key not in (PLAN, AS_IT_WAS):
            yield ("", *(difference(key, figure) for figure in figures))


def _further(
    title: str, found: Mapping[str, Figures], rows: Callable[[Sequence[str]], Iterator[ReportRow]]
) -> list[str]:
    """Return a table of waits by class and of preemptions; empty if there is one class only and no preemption."""
    titles: dict[str, str] = {}
    if any(sum(getattr(each, name) is not None for name in _CLASSES) > 1 for each in found.values()):
        titles |= _CLASSES
    if any(each.preemptions for each in found.values()):
        titles |= _PREEMPTED
    if not titles:
        return []
    columns = [TextColumn(title, 60, least=16), *(TextColumn(each, right=True) for each in titles.values())]
    return ["", *output.lines(columns, rows(list(titles)), terminal.width())]


def _shown(found: Figures, figure: str) -> str:
    value = getattr(found, figure)
    if value is None:
        return "-"
    if figure in _FORMATS:
        return _FORMATS[figure](value)
    return f"{value / 3600:.1f}h" if value >= 3600 else format_duration(timedelta(seconds=value))


def wrapped(sentences: Sequence[str]) -> list[str]:
    cells = terminal.width() or 120
    lines = (line for sentence in sentences for line in textwrap.wrap(sentence, cells, subsequent_indent="  "))
    return [*([""] if sentences else []), *lines]


MANY = 5000
"""Number of jobs from which a replay takes long enough to show its progress."""
LIMITS = ("exact", "bucket", "none")
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
    "--gpus-per-node", metavar="N", type=click.IntRange(1, 1024), help="GPUs per node. [8; with --history all]"
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
    from gputui.replay import trace as traces

    names = parse_policies(policies)
    longest = None if max_time is None else parse_time_span(max_time, where="--max-time").total_seconds()
    if (trace is not None) + (synthetic is not None) + history != 1:
        raise InputError("expected a trace, --synthetic or --history, one of the three", where="TRACE.csv")
    if history:
        source = of_history(session)
    elif trace is not None:
        source = ReplaySource(*traces.read(Path(trace)))
    else:
        made = traces.generate(synthetic or 0, seed)
        source = ReplaySource(made, traces.digest(made))
    base = changed(source.settings, changes)
    tried = compared(base.settings, comparison)
    replay = Replay.of(source, gpus, gpus_per_node, load, limits, longest)
    if tried and not policies:
        names = [PLAN]
    found = replay.figures(names, base, tried)
    remarks = replay.notes([base, *tried])
    remarks += sentences(source.own, found, replay.offered, replay.limits) if source.own else []
    if as_json:
        print_json(replay.as_object(base, tried, remarks, found))
        return
    head = replay.head()
    at = "all at the same time" if head["load"] is None else f"load {head['load']:.2f}"
    of = f"{plural(head['jobs'], 'job')} on {plural(head['gpus'], 'GPU')}"
    lines = [f"{of}, {at}, {head['limits']} limits", f"trace sha256 {head['trace_sha256']}"]
    lines += [f"set: {base.name}"] if base.changes else []
    lines += [] if tried and not policies else policy_table(found, {each.name for each in tried})
    lines += comparison_table(base, tried, found) if tried else []
    terminal.write("\n".join([*lines, *wrapped(remarks)]) + "\n")


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
            terminal.flush(err=True)

    is_shown = count > 0 and terminal.is_tty(terminal.ERR)
    try:
        yield tell
    finally:
        if is_shown:
            terminal.write("\r\x1b[K", err=True)


def of_history(session: Session, jobs: Iterable[Job] | None = None) -> ReplaySource:
    """Return the jobs that ended on this server (or those among `jobs`), with its settings."""
    from gputui.replay.trace import digest, job_history

    with session.backend() as backend:
        moved = {job.id: job for job in backend.queue.past()} if jobs is None else {}
        own = job_history({**moved, **backend.queue.jobs()}.values() if jobs is None else jobs)
        settings = effective_settings(session.options.settings, backend.queue.controls())
        views = backend.snapshots().read().gpus
    if own is None:
        raise GputuiError("no finished job has held a GPU here yet", hint="gputui replay --synthetic 1000")
    gpus = max(sum(view.gpu.index >= 0 and not view.gpu.mig_enabled for view in views), own.gpus)
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
        gpus: int | None = None,
        gpus_per_node: int | None = None,
        load: float | None = None,
        limits: str | None = None,
        longest: float | None = None,
    ) -> Replay:
        from gputui.replay import trace as traces

        count = gpus or source.gpus
        site = traces.Site(count, min(count, gpus_per_node or (count if source.own else 8)))
        limits = limits or source.limits
        most = longest or source.longest
        jobs = traces.prepare(source.jobs, site, load, limits, most, source.unlimited)
        as_it_was = source.own is not None and gpus is None and load is None and longest is None
        return cls(source, jobs, site, limits, most, load, traces.offered(jobs, site), as_it_was)

    def figures(self, names: Sequence[str], base: Variant, tried: Sequence[Variant]) -> dict[str, Figures]:
        from gputui.replay.policies import measure
        from gputui.replay.simulation import figures

        found = {}
        if self.source.own is not None and self.is_as_it_was:
            found[AS_IT_WAS] = figures(self.source.own.as_it_was(self.jobs), self.site.gpus)
        widest: dict[str, int] = {}
        for job in self.jobs:
            widest[job.tenant] = max(job.gpus, widest.get(job.tenant, 0))
        rules = {PLAN: base} | {each.name: each for each in tried}
        wanted = [*names, *([PLAN] if tried and PLAN not in names else []), *(each.name for each in tried)]
        with progress(len(wanted) if len(self.jobs) >= MANY else 0) as tell:
            for name in wanted:
                tell(name)
                variant = rules.get(name)
                policy = passable(variant.settings, widest) if variant else None
                found[name] = measure(PLAN if variant else name, self.jobs, self.site, policy)
        return found

    def notes(self, tried: Sequence[Variant]) -> list[str]:
        """Return a sentence each for jobs that are cut to be replayed, and for changes that affect none of the jobs."""
        wide = sum(job.gpus > self.site.gpus for job in self.source.jobs)
        long = sum(job.duration > self.longest for job in self.source.jobs)
        there, longest = plural(self.site.gpus, "GPU"), format_limit(timedelta(seconds=self.longest))
        keys = {key for each in tried for key in each.changes}
        stays = "policy.preemption" in keys and not any(job.preemptible for job in self.jobs)
        unnamed = "policy.predict" in keys and all(job.is_limited or not job.name for job in self.jobs)
        remarks = {
            f"{plural(wide, 'job')} that asked for more GPUs than there are: replayed with {there}.": wide,
            f"{plural(long, 'job')} that ran longer than {longest}: replayed with that.": long,
            "No job here may be preempted, so policy.preemption changes nothing.": stays,
            "No job here has a name and no limit, so policy.predict changes nothing.": unnamed,
        }
        return [sentence for sentence, is_true in remarks.items() if is_true]

    def head(self) -> dict[str, Any]:
        return {
            "trace_sha256": self.source.digest,
            "gpus": self.site.gpus,
            "gpus_per_node": self.site.per_node,
            "load": self.load if self.load is not None else (self.offered if self.offered < float("inf") else None),
            "limits": self.limits,
            "jobs": len(self.jobs),
        }

    def as_object(
        self, base: Variant, tried: Sequence[Variant], remarks: Sequence[str], found: dict[str, Figures]
    ) -> dict[str, Any]:
        head = self.head() | {"settings": settings_json(base.settings, base.changes)}
        if self.source.own is not None:
            own = self.source.own
            head["history"] = {
                "since": own.since.isoformat(),
                "until": own.until.isoformat(),
                "tenants": len({job.tenant for job in own.jobs}),
                "failed": own.failed,
                "left_out": own.left_out,
                "shared": own.shared,
                "without_limit": sum(job.stated is None for job in own.jobs),
            }
        if remarks or self.source.own is not None:
            head |= {"notes": list(remarks)}
        if tried:
            head["variants"] = {each.name: settings_json(each.settings, each.changes) for each in tried}
        return head | {"policies": {name: asdict(each) for name, each in found.items()}}


def parse_policies(texts: Sequence[str]) -> list[str]:
    named = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in named:
        if name not in POLICY_NAMES:
            raise InputError(f"{plain(name, 40)!r} is not a policy", where="--policy", hint=", ".join(POLICY_NAMES))
    return list(dict.fromkeys(named)) or list(POLICY_NAMES)
