"""A report as a table in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from msgspec import Struct

from gputui.cli import table
from gputui.cli.report_figures import HOUR, JOULES_PER_KWH, Report, cost, order
from gputui.cli.table import TextColumn
from gputui.domain.accounting import CANCELLED, FAILED, PREEMPTED, UsageAccount
from gputui.domain.settings import ReportSettings
from gputui.domain.units import format_duration

UNKNOWN = "?"
"""Placeholder for a figure that was not measured."""


class FigureColumn(Struct, frozen=True):
    """Column of a figure."""

    title: str
    value: Callable[[UsageAccount, ReportSettings], float | None]
    show: Callable[[float | None], str]
    help: str
    is_shown: Callable[[UsageAccount, ReportSettings], bool] = lambda total, rates: True
    """Returns whether the column has anything to show, given the sums of all jobs."""

    def cell(self, sums: UsageAccount, rates: ReportSettings) -> str:
        """Return the figure as shown."""
        return self.show(self.value(sums, rates))


def hours(seconds: float | None) -> str:
    """Return GPU-hours with one decimal, or two below ten."""
    return _decimal(None if seconds is None else seconds / HOUR)


def money(value: float | None) -> str:
    """Return a price."""
    return UNKNOWN if value is None else f"{value:,.2f}"


def wait(seconds: float | None) -> str:
    """Return a wait; `-` where no job started."""
    return "-" if seconds is None else format_duration(timedelta(seconds=seconds))


def energy(sums: UsageAccount) -> str:
    """Return kilowatt-hours."""
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
    """Return the columns that have anything to show."""
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
    return [heading(found), "", *table.lines(columns, rows, total), *_notes(found)]


def heading(found: Report) -> str:
    """Return the sentence about period and jobs."""
    begin, end = (at.astimezone() for at in (found.period.since, found.period.until))
    return f"{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, by {found.by}"


def _notes(found: Report) -> Sequence[str]:
    notes = notes_of(found)
    return ["", *notes] if notes else []


def notes_of(found: Report) -> list[str]:
    """Return sentences about unknown figures, and about the currency."""
    sums = found.accounts.total
    notes = []
    if sums.allocated and sums.unknown >= 1:
        notes.append(f"Use of the GPUs is not known for {hours(sums.unknown)} of {hours(sums.allocated)} GPU-hours.")
    if sums.allocated and sums.powered < sums.allocated * 0.999:
        left = hours(sums.allocated - sums.powered)
        notes.append(f"Energy is not known for {left} of {hours(sums.allocated)} GPU-hours.")
    if found.rates.currency and cost(sums, found.rates) is not None:
        notes.append(f"COST is in {found.rates.currency}.")
    return notes
