"""Figures of a report by group, as columns and lines of text, and waits that other policies would have given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from gputui.cli import output
from gputui.cli.output import TextColumn
from gputui.cli.session import Session
from gputui.domain.accounting import (
    CANCELLED,
    END_UNKNOWN,
    FAILED,
    OUTCOMES,
    PREEMPTED,
    JobRecord,
    Period,
    UsageAccount,
    UsageAccounts,
    account,
)
from gputui.domain.as_json import Json
from gputui.domain.errors import InputError
from gputui.domain.job import Job
from gputui.domain.settings import ReportSettings
from gputui.domain.text import format_duration, plural
from gputui.request import times

if TYPE_CHECKING:
    from gputui.replay.simulation import Figures

USUAL = timedelta(days=30)
"""Period without `--since`."""
HOUR = 3600.0
JOULES_PER_KWH = 3_600_000.0
GpuIndices: TypeAlias = Mapping[str, int]
"""Indices of the present GPUs, by UUID."""


class Report(Struct, frozen=True):
    """Accounts of a period, with all data needed to show them."""

    period: Period
    by: str
    accounts: UsageAccounts
    rates: ReportSettings
    jobs: tuple[JobRecord, ...]
    """Jobs in the report, kept to group them in other ways."""
    now: datetime
    gpus: GpuIndices

    def grouped(self, by: str) -> UsageAccounts:
        return self.accounts if by == self.by else account(self.jobs, self.period, by, self.now)

    def name_of(self, by: str, group: str) -> str:
        """Return a group's name as shown: `2 GPU-5f1c0d2a` of a GPU."""
        if by != "gpu":
            return group
        index = self.gpus.get(group)
        return short_name(group) if index is None else f"{index} {short_name(group)}"


def short_name(uuid: str) -> str:
    """Return the beginning of a UUID, up to the first dash of its number."""
    return "-".join(uuid.split("-")[: 3 if uuid.startswith("MIG-GPU") else 2])


def period(since: str | None, until: str | None, now: datetime) -> Period:
    """Return the period meant; it ends at the latest now."""
    end = min(now, times.past(until, "--until", now)) if until is not None else now
    begin = times.past(since, "--since", now) if since is not None else end - USUAL
    if begin >= end:
        raise InputError(
            "the period is empty: it does not end after it begins", where="--since", hint="write --since -7d"
        )
    return Period(begin, end)


def report(
    jobs: Iterable[JobRecord], chosen: Period, by: str, rates: ReportSettings, now: datetime, gpus: GpuIndices
) -> Report:
    known = tuple(jobs)
    return Report(chosen, by, account(known, chosen, by, now), rates, known, now, gpus)


def order(by: str) -> Callable[[tuple[str, UsageAccount]], tuple[float, str]]:
    """Return the sort order of groups: days by date, others by GPU time, largest first."""
    return lambda row: (0.0 if by == "day" else -row[1].allocated, row[0])


def gpu_cost(sums: UsageAccount, rates: ReportSettings) -> float | None:
    """Return the price of the GPU time; None without a rate."""
    return None if rates.gpu_hour is None else sums.allocated / HOUR * rates.gpu_hour


def energy_cost(sums: UsageAccount, rates: ReportSettings) -> float | None:
    """Return the price of the energy as far as it is known; None if it is unknown or has no rate."""
    return None if rates.kwh is None or sums.energy is None else sums.energy / JOULES_PER_KWH * rates.kwh


def cost(sums: UsageAccount, rates: ReportSettings) -> float | None:
    """Return the price of GPU time and energy, as far as it is known."""
    parts = [part for part in (gpu_cost(sums, rates), energy_cost(sums, rates)) if part is not None]
    return sum(parts) if parts else None


def as_json(found: Report) -> Json:
    groups = sorted(found.accounts.groups.items(), key=order(found.by))
    return {
        "since": _time(found.period.since),
        "until": _time(found.period.until),
        "by": found.by,
        "currency": found.rates.currency or None,
        "total": row(found.accounts.total, found.rates),
        "groups": [
            {"group": name, "name": found.name_of(found.by, name), **row(sums, found.rates)} for name, sums in groups
        ],
    }


def row(sums: UsageAccount, rates: ReportSettings) -> Json:
    """Return the figures of an account; None: not known."""
    return {
        "jobs": sums.jobs,
        "attempts": sums.attempts,
        "jobs_started": len(sums.waits),
        **{f"jobs_{end}": sums.ended.get(end, 0) for end in ("completed", "failed", "cancelled", END_UNKNOWN)},
        "gpu_hours": _hours(sums.allocated),
        "gpu_hours_busy": _hours(sums.busy),
        "gpu_hours_idle": _hours(sums.idle),
        "gpu_hours_unknown": _hours(sums.unknown),
        "gpu_hours_suspended": _hours(sums.suspended),
        **{f"gpu_hours_{each}": _hours(sums.gpu_time.get(each, 0.0)) for each in OUTCOMES},
        "wait_mean": _rounded(sums.wait_mean, 3),
        "wait_p95": _rounded(sums.wait_p95, 3),
        "energy_kwh": None if sums.energy is None else _rounded(sums.energy / JOULES_PER_KWH),
        "gpu_hours_without_energy": _hours(max(0.0, sums.allocated - sums.powered)),
        "cost_gpu_hours": _rounded(gpu_cost(sums, rates), 4),
        "cost_energy": _rounded(energy_cost(sums, rates), 4),
        "cost": _rounded(cost(sums, rates), 4),
    }


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else _rounded(seconds / HOUR)


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)


def _time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


UNKNOWN = "?"
"""Placeholder for a figure that was not measured."""


class FigureColumn(Struct, frozen=True):
    title: str
    value: Callable[[UsageAccount, ReportSettings], float | None]
    show: Callable[[float | None], str]
    help: str
    is_shown: Callable[[UsageAccount, ReportSettings], bool] = lambda total, rates: True
    """Returns whether the column has anything to show, given the sums of all jobs."""

    def cell(self, sums: UsageAccount, rates: ReportSettings) -> str:
        return self.show(self.value(sums, rates))


def hours(seconds: float | None) -> str:
    """Return GPU-hours with one decimal, or two below ten."""
    return _decimal(None if seconds is None else seconds / HOUR)


def money(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"


def wait(seconds: float | None) -> str:
    """Return a wait; `-` where no job started."""
    return "-" if seconds is None else format_duration(timedelta(seconds=seconds))


def energy(sums: UsageAccount) -> str:
    return _decimal(_kwh(sums))


def _kwh(sums: UsageAccount) -> float | None:
    return None if sums.energy is None else sums.energy / JOULES_PER_KWH


def _decimal(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def _count(value: float | None) -> str:
    return f"{value or 0:,.0f}"


def _of_outcome(name: str) -> Callable[[UsageAccount, ReportSettings], float | None]:
    return lambda sums, rates: sums.gpu_time.get(name, 0.0)


COLUMNS = (
    FigureColumn("JOBS", lambda sums, rates: sums.jobs, _count, "jobs that ran or ended in the period"),
    FigureColumn("GPU-H", lambda sums, rates: sums.allocated, hours, "GPU-hours held"),
    FigureColumn("BUSY", lambda sums, rates: sums.busy, hours, "GPU-hours weighted with utilization"),
    FigureColumn("IDLE", lambda sums, rates: sums.idle, hours, "GPU-hours in which the GPU was idle"),
    FigureColumn(
        "UNKNOWN",
        lambda sums, rates: sums.unknown,
        hours,
        "GPU-hours without a measurement of use",
        lambda total, rates: total.unknown >= 1,
    ),
    FigureColumn(
        "SUSPENDED",
        lambda sums, rates: sums.suspended,
        hours,
        "GPU-hours held by suspended jobs",
        lambda total, rates: total.suspended > 0,
    ),
    FigureColumn("FAILED", _of_outcome(FAILED), hours, "GPU-hours of attempts that failed"),
    FigureColumn("PREEMPTED", _of_outcome(PREEMPTED), hours, "GPU-hours of attempts that were preempted"),
    FigureColumn("CANCELLED", _of_outcome(CANCELLED), hours, "GPU-hours of attempts cancelled or requeued"),
    FigureColumn("WAIT", lambda sums, rates: sums.wait_mean, wait, "mean wait of the jobs that started"),
    FigureColumn("P95", lambda sums, rates: sums.wait_p95, wait, "95th percentile of these waits"),
    FigureColumn("KWH", lambda sums, rates: _kwh(sums), _decimal, "energy of the GPUs, as far as known"),
    FigureColumn(
        "COST",
        cost,
        money,
        "at the rates of the settings",
        lambda total, rates: rates.gpu_hour is not None or rates.kwh is not None,
    ),
)
"""Columns of a report, in table and page."""


def shown_columns(found: Report) -> list[FigureColumn]:
    return [column for column in COLUMNS if column.is_shown(found.accounts.total, found.rates)]


def lines(found: Report, total: int | None) -> list[str]:
    """Return the lines of the report, no wider than `total` cells."""
    figures = shown_columns(found)
    columns = [TextColumn(found.by.upper(), 40, least=8), *(TextColumn(each.title, right=True) for each in figures)]
    named = [
        (found.name_of(found.by, name), sums)
        for name, sums in sorted(found.accounts.groups.items(), key=order(found.by))
    ]
    rows = [
        (name, *(each.cell(sums, found.rates) for each in figures))
        for name, sums in (*named, ("TOTAL", found.accounts.total))
    ]
    notes = notes_of(found)
    return [heading(found), "", *output.lines(columns, rows, total), *(["", *notes] if notes else [])]


def heading(found: Report) -> str:
    begin, end = (at.astimezone() for at in (found.period.since, found.period.until))
    return f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, by {found.by}"


def notes_of(found: Report) -> list[str]:
    """Return sentences about unknown figures, and about the currency."""
    sums = found.accounts.total
    notes = []
    if unseen := sums.ended.get(END_UNKNOWN, 0):
        spent = hours(sums.gpu_time.get(END_UNKNOWN, 0.0))
        notes.append(f"The exit code of {plural(unseen, 'job')} ({spent} GPU-hours) was not recorded.")
    if sums.allocated and sums.unknown >= 1:
        notes.append(f"Use of the GPUs is not known for {hours(sums.unknown)} of {hours(sums.allocated)} GPU-hours.")
    if sums.allocated and sums.powered < sums.allocated * 0.999:
        left = hours(sums.allocated - sums.powered)
        notes.append(f"Energy is not known for {left} of {hours(sums.allocated)} GPU-hours.")
    if found.rates.currency and cost(sums, found.rates) is not None:
        notes.append(f"COST is in {found.rates.currency}.")
    return notes


class Replayed(Struct, frozen=True):
    """Figures by policy, with sentences that explain them."""

    jobs: int
    gpus: int
    figures: Mapping[str, Figures]
    told: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return a table as `gputui replay` prints it."""
        from gputui.cli import replay_report  # a report alone needs no policies

        head = f"What if: {self.jobs:,} of these jobs, replayed on {self.gpus} GPUs"
        return ["", head, *replay_report.policies(self.figures, ()), *replay_report.wrapped(self.told)]

    def as_json(self) -> Json:
        policies = {name: asdict(each) for name, each in self.figures.items()}
        return {"jobs": self.jobs, "gpus": self.gpus, "policies": policies, "notes": list(self.told)}


def replay_jobs(session: Session, found: Report) -> Replayed:
    """Replay the jobs that first started in the period and have ended."""
    from gputui.cli import replay, replay_report

    with session.backend() as backend:
        known = [*backend.queue.jobs().values(), *backend.queue.past(found.period.since)]
    source = replay.of_history(session, _started(known, found.period))
    prepared = replay.Replay.of(source, None, None, None, None, None)
    base = replay_report.changed(source.settings, ())
    figures = prepared.figures(replay.POLICY_NAMES, base, [])
    told = replay_report.told(source.own, figures, prepared.offered, prepared.limits) if source.own else []
    return Replayed(len(prepared.jobs), prepared.site.gpus, figures, tuple(told))


def _started(jobs: Iterable[Job], period: Period) -> Iterator[Job]:
    for job in jobs:
        first = next((attempt.started_at for attempt in job.attempts if attempt.started_at), None)
        if first is not None and period.since <= first < period.until:
            yield job
