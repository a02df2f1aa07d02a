"""`gputui report`: GPU-hours, waits, energy and cost of a period.

As HTML it is one page that needs no network: a chart as inline SVG, light and dark, sortable tables.
"""

from __future__ import annotations

import csv
import gc
import io
import math
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click
from msgspec import Struct
from msgspec.structs import replace

from gputui import __version__, bootstrap
from gputui.cli import output, terminal
from gputui.cli.output import TextColumn
from gputui.cli.session import Session, pass_session
from gputui.domain.accounting import (
    CANCELLED,
    END_UNKNOWN,
    FAILED,
    GROUPINGS,
    OUTCOMES,
    PREEMPTED,
    JobRecord,
    Period,
    UsageAccount,
    UsageAccounts,
    UseRecord,
    account,
    days_of,
)
from gputui.domain.as_json import Json, attributes, json_text
from gputui.domain.decoding import convert
from gputui.domain.errors import GputuiError, InputError, install_line
from gputui.domain.job import Job
from gputui.domain.settings import ReportSettings
from gputui.domain.text import format_duration, plain, plural
from gputui.request import times

if TYPE_CHECKING:
    from gputui.ports.backend import DirectBackend
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
        if by != "gpu":
            return group
        index = self.gpus.get(group)
        return short_name(group) if index is None else f"{index} {short_name(group)}"


def short_name(uuid: str) -> str:
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


def order(by: str) -> Callable[[tuple[str, UsageAccount]], tuple[float, str]]:
    """Return the sort order of groups: days by date, others by GPU time, largest first."""
    return lambda row: (0.0 if by == "day" else -row[1].allocated, row[0])


def gpu_cost(sums: UsageAccount, rates: ReportSettings) -> float | None:
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
        **attributes(found.period, "since until"),
        "by": found.by,
        "currency": found.rates.currency or None,
        "total": row(found.accounts.total, found.rates),
        "groups": [
            {"group": name, "name": found.name_of(found.by, name), **row(sums, found.rates)} for name, sums in groups
        ],
    }


def row(sums: UsageAccount, rates: ReportSettings) -> Json:
    def rounded(value: float | None, digits: int = 6, unit: float = 1.0) -> float | None:
        return None if value is None else round(value / unit, digits)

    in_hours = partial(rounded, unit=HOUR)
    return {
        "jobs": sums.jobs,
        "attempts": sums.attempts,
        "jobs_started": len(sums.waits),
        **{f"jobs_{end}": sums.ended.get(end, 0) for end in ("completed", "failed", "cancelled", END_UNKNOWN)},
        "gpu_hours": in_hours(sums.allocated),
        "gpu_hours_busy": in_hours(sums.busy),
        "gpu_hours_idle": in_hours(sums.idle),
        "gpu_hours_unknown": in_hours(sums.unknown),
        "gpu_hours_suspended": in_hours(sums.suspended),
        **{f"gpu_hours_{each}": in_hours(sums.gpu_time.get(each, 0.0)) for each in OUTCOMES},
        "wait_mean": rounded(sums.wait_mean, 3),
        "wait_p95": rounded(sums.wait_p95, 3),
        "energy_kwh": rounded(sums.energy, unit=JOULES_PER_KWH),
        "gpu_hours_without_energy": in_hours(max(0.0, sums.allocated - sums.powered)),
        "cost_gpu_hours": rounded(gpu_cost(sums, rates), 4),
        "cost_energy": rounded(energy_cost(sums, rates), 4),
        "cost": rounded(cost(sums, rates), 4),
    }


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
    return _decimal(None if seconds is None else seconds / HOUR)


def money(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.2f}"


def wait(seconds: float | None) -> str:
    """Return a wait; `-` where no job started."""
    return "-" if seconds is None else format_duration(timedelta(seconds=seconds))


def _kwh(sums: UsageAccount) -> float | None:
    return None if sums.energy is None else sums.energy / JOULES_PER_KWH


def _decimal(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.2f}" if value < 10 else f"{value:,.1f}"


def _of_outcome(name: str) -> Callable[[UsageAccount, ReportSettings], float | None]:
    return lambda sums, rates: sums.gpu_time.get(name, 0.0)


COLUMNS = (
    FigureColumn("JOBS", lambda sums, rates: sums.jobs, "{:,.0f}".format, "jobs that ran or ended in the period"),
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
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        from gputui.cli import replay

        head = f"What if: {self.jobs:,} of these jobs, replayed on {self.gpus} GPUs"
        return ["", head, *replay.policy_table(self.figures, ()), *replay.wrapped(self.notes)]

    def as_json(self) -> Json:
        policies = {name: asdict(each) for name, each in self.figures.items()}
        return {"jobs": self.jobs, "gpus": self.gpus, "policies": policies, "notes": list(self.notes)}


def replay_jobs(session: Session, found: Report) -> Replayed:
    from gputui.cli import replay

    def is_started(job: Job) -> bool:
        first = next((attempt.started_at for attempt in job.attempts if attempt.started_at), None)
        return first is not None and found.period.since <= first < found.period.until

    with session.backend() as backend:
        known = [*backend.queue.jobs().values(), *backend.queue.past(found.period.since)]
    source = replay.of_history(session, filter(is_started, known))
    prepared = replay.Replay.of(source)
    base = replay.changed(source.settings, ())
    figures = prepared.figures(replay.POLICY_NAMES, base, [])
    notes = replay.sentences(source.own, figures, prepared.offered, prepared.limits) if source.own else []
    return Replayed(len(prepared.jobs), prepared.site.gpus, figures, tuple(notes))


FORMATS = ("table", "csv", "json", "html")


@click.command("report")
@click.option("--since", metavar="TIME", help="Begin of the period, such as -7d, 'last monday', 2026-11-01. [-30d]")
@click.option("--until", metavar="TIME", help="End of the period; jobs count up to it. [now]")
@click.option(
    "--by",
    metavar="|".join(GROUPINGS),
    type=click.Choice(GROUPINGS),
    default="tenant",
    help="One line for each of these. [tenant]",
)
@click.option(
    "--format", "form", metavar="|".join(FORMATS), type=click.Choice(FORMATS), default="table", help="[table]"
)
@click.option("-o", "--output", metavar="FILE", help="Write it to this file.")
@click.option("--what-if", is_flag=True, help="Add the waits that other policies would have given these jobs.")
@pass_session
def command(
    session: Session, since: str | None, until: str | None, by: str, form: str, output: str | None, what_if: bool
) -> None:
    """Report the GPU-hours, waits, energy and cost of a period.

    Only the part of an attempt inside the period counts; a running attempt counts up to now. `?` means not
    measured. docs/accounting.md defines each figure.
    """
    gc.disable()  # a year of jobs is millions of objects, none of which is in a cycle
    found = read(session, since, until, by, with_gpus=form == "html")
    replayed = replay_jobs(session, found) if what_if else None
    text = _text(found, form, replayed, total=None if output else terminal.width())
    if output is None:
        terminal.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise GputuiError(f"cannot be written: {error.strerror}", where=output) from error


def read(session: Session, since: str | None, until: str | None, by: str, *, with_gpus: bool = False) -> Report:
    now = bootstrap.clock().now()
    chosen = period(since, until, now)
    with session.backend() as backend:
        running = {job.id for job in backend.queue.jobs().values() if job.state.is_active and job.gpus}
        records = backend.queue.records(chosen.since)
        jobs = tuple(_with_use(backend, each) if each.id in running else each for each in records)
        views = backend.snapshots().read().gpus if with_gpus or by == "gpu" else ()
    indices = {view.gpu.uuid: view.gpu.index for view in views if view.gpu.index >= 0}
    return Report(chosen, by, account(jobs, chosen, by, now), session.options.settings.report, jobs, now, indices)


def _with_use(backend: DirectBackend, record: JobRecord) -> JobRecord:
    """Return the record of a running job with what was measured so far; the store has figures of ended attempts."""
    if not record.attempts or record.attempts[-1].ended_at is not None:
        return record
    last = max(backend.measured(record.id).items(), default=(0, None))[1]
    if last is None or last.summary is None:
        return record
    use = convert(last.summary, UseRecord, from_attributes=True)
    return replace(record, attempts=(*record.attempts[:-1], replace(record.attempts[-1], telemetry=use)))


def _text(found: Report, form: str, replayed: Replayed | None, total: int | None) -> str:
    if form == "json":
        told = as_json(found)
        return json_text(told | ({"what_if": replayed.as_json()} if replayed else {})) + "\n"
    if form == "csv":
        rows = as_json(found)["groups"]
        empty = {"group": "", "name": "", **row(found.accounts.total, found.rates)}
        file = io.StringIO()
        writer = csv.DictWriter(file, [found.by if key == "group" else key for key in empty], lineterminator="\n")
        writer.writeheader()
        for each in rows:
            safe = {key: f"'{text}" for key, text in each.items() if isinstance(text, str) and text[:1] in _FORMULA}
            writer.writerow({found.by if key == "group" else key: value for key, value in (each | safe).items()})
        return file.getvalue()
    if form == "html":
        if needed := lacking():
            terminal.echo(f"gputui: note: {needed}", err=True)
        return page(found, replayed)
    shown = [*lines(found, total), *(replayed.lines() if replayed else [])]
    return "\n".join(shown) + "\n"


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Letters with which a formula of a spreadsheet may begin."""
Bars: TypeAlias = Sequence[tuple[str, Mapping[str, float]]]
"""Day of each bar, with its GPU-hours by outcome."""
_NARROWEST, _WIDEST, _HEIGHT = 640, 1190, 300
_PER_BAR = 120
"""Maximum width of a bar, unless the chart is at its narrowest."""
_MOST_LABELS = 12
"""Maximum number of dates below the chart."""


def lacking() -> str:
    """Return the sentence about the library if it is not installed; else nothing."""
    if find_spec("pygal") is not None:
        return ""
    line = install_line(["pygal>=3.1,<4"], sys.prefix, has_pip=find_spec("pip") is not None)
    return f"The chart is left out, because pygal is not installed: {line}"


def chart(bars: Bars, title: str) -> str:
    """Return stacked bars as an SVG element; its page sets the colors `--ink`, `--faint`, `--line` and `--OUTCOME`."""
    from xml.etree import ElementTree

    import pygal

    # without the finder of map plugins that it installs: Python 3.11 warns of its old interface. Other new finders
    # stay: importlib_metadata replaces the one by which Python finds installed packages
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != pygal.__name__]
    drawn = pygal.StackedBar(
        width=min(_WIDEST, max(_NARROWEST, _PER_BAR * len(bars))),
        height=_HEIGHT,
        explicit_size=True,
        style=pygal.style.Style(**_STYLE),
        js=[],
        margin=8,
        legend_at_bottom=True,
        legend_at_bottom_columns=len(OUTCOMES),
        legend_box_size=11,
        max_scale=8,
        truncate_label=-1,
        show_minor_x_labels=False,
        x_labels_major_every=math.ceil(len(bars) / _MOST_LABELS),
        value_formatter=lambda hours: f"{hours:,.10g}",
    )
    drawn.uuid = "over-time"  # random otherwise: the same figures give the same page
    drawn.x_labels = [day for day, _ in bars]
    for name in OUTCOMES:
        values = [(day, hours[name]) for day, hours in bars]
        tooltips = (f"{day}: {value:,.1f} GPU-hours {name}" for day, value in values)
        bar = [{"value": value, "tooltip": text} for (_, value), text in zip(values, tooltips, strict=True)]
        drawn.add(name, [each if each["value"] else None for each in bar])
    root = ElementTree.fromstring(drawn.render())  # noqa: S314 - drawn just above
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    for element in [*root.iter()]:
        for child in [*element]:
            if child.tag in {"desc", "script"} or (child.get("class") == "bar" and child.find("title") is None):
                element.remove(child)
    for own in root.findall("title"):
        own.text = title
    root.set("role", "img")
    return ElementTree.tostring(root, encoding="unicode")


_STYLE = {
    **dict.fromkeys(("background", "plot_background"), "transparent"),
    **dict.fromkeys(("foreground_subtle", "guide_stroke_color", "major_guide_stroke_color"), "var(--line)"),
    **dict.fromkeys(("guide_stroke_dasharray", "major_guide_stroke_dasharray"), "0"),
    **dict.fromkeys(("label_font_size", "major_label_font_size"), 12),
    "foreground": "var(--faint)",
    "foreground_strong": "var(--ink)",
    "colors": tuple(f"var(--{name})" for name in OUTCOMES),
    "font_family": "inherit",
    "legend_font_size": 13,
    "opacity": 1,
}


MOST_BARS = 120
"""Maximum number of bars of the chart over time; a longer period has several days per bar."""
MOST_ROWS = 200
"""Maximum number of rows of a table; further groups are added up in one row."""


def page(found: Report, replayed: Replayed | None = None) -> str:
    from importlib.resources import files  # with tempfile and its like, which no table needs
    from string import Template

    template = Template(files("gputui.cli").joinpath("report_page.html").read_text("utf-8"))
    others = [by for by in (found.by, "tenant", "cause", "gpu") if by != "day"]
    sections = [
        _chart_over_time(found),
        *(_table(found, by) for by in dict.fromkeys(others)),
        *([_what_if(replayed)] if replayed else []),
    ]
    return template.substitute(
        title=f"GPU report of {escape(plain(platform.node()) or 'this server')}",
        subtitle=f"{escape(heading(found).rpartition(',')[0])} &middot; gputui {escape(__version__)}",
        tiles=_tiles(found),
        sections="\n".join(sections),
    )


def _tiles(found: Report) -> str:
    sums = found.accounts.total

    def of_known(seconds: float | None) -> str:
        if not sums.allocated:
            return "-"
        return "unknown" if seconds is None or not sums.known else f"{seconds / sums.known:.0%}"

    price = cost(sums, found.rates)
    tiles = {
        "jobs": f"{sums.jobs:,}",
        "GPU-hours held": hours(sums.allocated),
        "of measured GPU-hours busy": of_known(sums.busy),
        "of measured GPU-hours idle": of_known(sums.idle),
        "of held GPU-hours wasted": f"{sums.wasted / sums.allocated:.0%}" if sums.allocated else "-",
        "mean wait": wait(sums.wait_mean),
        "kWh": "unknown" if sums.energy is None else _decimal(_kwh(sums)),
        **({f"cost {plain(found.rates.currency)}".strip(): money(price)} if price is not None else {}),
    }
    return "".join(
        f'<div class="tile"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'
        for words, figure in tiles.items()
    )


def _chart_over_time(found: Report) -> str:
    by_day = found.grouped("day").groups
    days = [(day, by_day.get(day, UsageAccount())) for day in days_of(found.period)]
    if not found.accounts.total.allocated:
        what = "No job used a GPU" if by_day else "Nothing ran"
        return f"<h2>GPU-hours by day</h2><p>{what} in this period.</p>"
    step = math.ceil(len(days) / MOST_BARS)
    bars = []
    for at in range(0, len(days), step):
        several = [sums.gpu_time for _, sums in days[at : at + step]]
        bars.append((days[at][0], {name: sum(each.get(name, 0.0) / HOUR for each in several) for name in OUTCOMES}))
    each = "day" if step == 1 else f"{step} days"
    title = f"GPU-hours by {each}"
    if needed := lacking():
        return f"<h2>{title}</h2><p>{escape(needed)}.</p>"
    return f'<h2>{title}</h2><div class="wide">{chart(bars, title)}</div>'


def _table(found: Report, by: str) -> str:
    accounts = found.grouped(by)
    figures = shown_columns(found)
    rows = sorted(accounts.groups.items(), key=order(by))
    longest = max((sums.allocated for _, sums in rows), default=0.0)
    heads = "".join(_head(each.title, each.help) for each in figures)

    def bars(sums: UsageAccount) -> str:
        shares = {name: seconds for name in OUTCOMES if (seconds := sums.gpu_time.get(name, 0.0)) and longest}
        return "".join(
            f'<i class="{name}" style="width:{seconds / longest:.2%}" title="{hours(seconds)} GPU-hours {name}"></i>'
            for name, seconds in shares.items()
        )

    cells = "".join(
        f'<tr><td title="{escape(plain(name))}">{escape(plain(found.name_of(by, name)))}</td>'
        f'<td><div class="outcomes">{bars(sums)}</div></td>{_figure_cells(found, sums)}</tr>'
        for name, sums in rows[:MOST_ROWS]
    )
    total = f"<tr><td>total</td><td></td>{_figure_cells(found, accounts.total)}</tr>"
    more = f"<p>{len(rows) - MOST_ROWS} more are not shown.</p>" if len(rows) > MOST_ROWS else ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in notes_of(found)) if by == found.by else ""
    head = f"<thead><tr>{_head(by.upper(), '')}<th class=bars>OUTCOMES</th>{heads}</tr></thead>"
    body = f"<table>{head}<tbody>{cells}</tbody><tfoot>{total}</tfoot></table>"
    return f'<h2>By {by}</h2><div class="wide">{body}</div>{more}{notes}'


def _head(title: str, words: str) -> str:
    told = f' title="{escape(words)}"' if words else ""
    return f"<th{told}><button>{escape(title)}</button></th>"


def _figure_cells(found: Report, sums: UsageAccount) -> str:
    cells = []
    for column in shown_columns(found):
        value = column.value(sums, found.rates)
        exact = "-1" if value is None else f"{value:.6g}"
        cells.append(f'<td data-value="{exact}">{escape(column.cell(sums, found.rates))}</td>')
    return "".join(cells)


def _what_if(replayed: Replayed) -> str:
    words = ("allocation_ratio", "wait_mean", "wait_p95", "wait_max", "worst_tenant_wait_mean")
    titles = ("POLICY", "ALLOCATED", "WAIT", "P95", "MAX", "WORST TENANT")
    rows = []
    for name, figures in replayed.figures.items():
        values = [getattr(figures, word) for word in words]
        shown = [f"{values[0]:.1%}", *(wait(value) for value in values[1:])]
        cells = "".join(f'<td data-value="{value}">{text}</td>' for value, text in zip(values, shown, strict=True))
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    heads = "".join(_head(title, "") for title in titles)
    notes = "".join(f"<p>{escape(note)}</p>" for note in replayed.notes)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    head = f"<h2>What if: {replayed.jobs:,} of these jobs, replayed on {replayed.gpus} GPUs</h2>"
    return f'{head}<div class="wide">{table}</div>{notes}'
