"""Figures of a report: its period, and the accounts as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeAlias

from msgspec import Struct

from gputui.cli.output import Json
from gputui.domain.accounting import OUTCOMES, Period, UsageAccount, UsageAccounts, account
from gputui.domain.errors import InputError
from gputui.domain.job_record import JobRecord
from gputui.domain.settings import ReportSettings
from gputui.request import times

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
        """Return the accounts with another grouping."""
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
    """Return the report about these jobs."""
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
    """Return the report as JSON."""
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
        **{f"jobs_{end}": sums.ended.get(end, 0) for end in ("completed", "failed", "cancelled")},
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
