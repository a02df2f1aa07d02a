"""A report as one HTML page that needs no network: a chart as inline SVG, light and dark, sortable tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from gputui import __version__
from gputui.cli import report_chart, report_text
from gputui.cli.report_figures import HOUR, Report, cost, order
from gputui.domain.accounting import OUTCOMES, UsageAccount, days_of
from gputui.domain.text import plain

if TYPE_CHECKING:
    from gputui.cli.report_what_if import Replayed

MOST_BARS = 120
"""Maximum number of bars of the chart over time; a longer period has several days per bar."""
MOST_ROWS = 200
"""Maximum number of rows of a table; further groups are added up in one row."""


def page(found: Report, replayed: Replayed | None = None) -> str:
    """Return the page."""
    template = Template(files("gputui.cli").joinpath("report_page.html").read_text("utf-8"))
    others = [by for by in (found.by, "tenant", "cause", "gpu") if by != "day"]
    sections = [
        _chart_over_time(found),
        *(_table(found, by) for by in dict.fromkeys(others)),
        *([_what_if(replayed)] if replayed else []),
    ]
    return template.substitute(
        title=f"GPU report of {escape(_host())}",
        subtitle=f"{escape(report_text.heading(found).rpartition(',')[0])} &middot; gputui {escape(__version__)}",
        tiles="".join(_tiles(found)),
        sections="\n".join(sections),
    )


def _host() -> str:
    import platform

    return plain(platform.node()) or "this server"


def _tiles(found: Report) -> Iterator[str]:
    """Yield the figures at the top."""
    sums, hours = found.accounts.total, report_text.hours
    yield _tile(f"{sums.jobs:,}", "jobs")
    yield _tile(hours(sums.allocated), "GPU-hours held")
    yield _tile(_of_known(sums.busy, sums), "of measured GPU-hours busy")
    yield _tile(_of_known(sums.idle, sums), "of measured GPU-hours idle")
    yield _tile(f"{sums.wasted / sums.allocated:.0%}" if sums.allocated else "-", "of held GPU-hours wasted")
    yield _tile(report_text.wait(sums.wait_mean), "mean wait")
    yield _tile(report_text.energy(sums), "kWh")
    if (price := cost(sums, found.rates)) is not None:
        yield _tile(report_text.money(price), f"cost {plain(found.rates.currency)}".strip())


def _tile(figure: str, words: str) -> str:
    figure = "unknown" if figure == report_text.UNKNOWN else figure
    return f'<div class="tile"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'


def _of_known(seconds: float | None, sums: UsageAccount) -> str:
    """Return GPU time as a share of the GPU time whose use is known."""
    if not sums.allocated:
        return "-"
    return report_text.UNKNOWN if seconds is None or not sums.known else f"{seconds / sums.known:.0%}"


def _chart_over_time(found: Report) -> str:
    """Return stacked bars of GPU-hours by day."""
    by_day = found.grouped("day").groups
    days = [(day, by_day.get(day, UsageAccount())) for day in days_of(found.period)]
    if not found.accounts.total.allocated:
        what = "No job used a GPU" if by_day else "Nothing ran"
        return f"<h2>GPU-hours by day</h2><p>{what} in this period.</p>"
    step = math.ceil(len(days) / MOST_BARS)
    bars = [(days[at][0], _added(sums for _, sums in days[at : at + step])) for at in range(0, len(days), step)]
    each = "day" if step == 1 else f"{step} days"
    title = f"GPU-hours by {each}"
    if needed := report_chart.lacking():
        return f"<h2>{title}</h2><p>{escape(needed)}.</p>"
    return f'<h2>{title}</h2><div class="wide">{report_chart.chart(bars, title)}</div>'


def _added(several: Iterable[UsageAccount]) -> dict[str, float]:
    """Return the GPU-hours of several accounts by outcome."""
    sums = dict.fromkeys(OUTCOMES, 0.0)
    for each in several:
        for name, seconds in each.gpu_time.items():
            sums[name] += seconds / HOUR
    return sums


def _table(found: Report, by: str) -> str:
    """Return the table of a grouping, with a bar in each row."""
    accounts = found.grouped(by)
    figures = report_text.shown_columns(found)
    rows = sorted(accounts.groups.items(), key=order(by))
    longest = max((sums.allocated for _, sums in rows), default=0.0)
    heads = "".join(_head(each.title, each.help) for each in figures)
    cells = "".join(
        f"<tr>{_name_cell(found, by, name)}<td>{_bar(sums, longest)}</td>{_figure_cells(found, sums)}</tr>"
        for name, sums in rows[:MOST_ROWS]
    )
    total = f"<tr><td>total</td><td></td>{_figure_cells(found, accounts.total)}</tr>"
    more = f"<p>{len(rows) - MOST_ROWS} more are not shown.</p>" if len(rows) > MOST_ROWS else ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in report_text.notes_of(found)) if by == found.by else ""
    head = f"<thead><tr>{_head(by.upper(), '')}<th class=bars>OUTCOMES</th>{heads}</tr></thead>"
    body = f"<table>{head}<tbody>{cells}</tbody><tfoot>{total}</tfoot></table>"
    return f'<h2>By {by}</h2><div class="wide">{body}</div>{more}{notes}'


def _head(title: str, words: str) -> str:
    told = f' title="{escape(words)}"' if words else ""
    return f"<th{told}><button>{escape(title)}</button></th>"


def _name_cell(found: Report, by: str, name: str) -> str:
    shown = escape(plain(found.name_of(by, name)))
    return f'<td title="{escape(plain(name))}">{shown}</td>'


def _figure_cells(found: Report, sums: UsageAccount) -> str:
    cells = []
    for column in report_text.shown_columns(found):
        value = column.value(sums, found.rates)
        exact = "-1" if value is None else f"{value:.6g}"
        cells.append(f'<td data-value="{exact}">{escape(column.cell(sums, found.rates))}</td>')
    return "".join(cells)


def _bar(sums: UsageAccount, longest: float) -> str:
    """Return a bar of the GPU time by outcome."""
    parts = []
    for name in OUTCOMES:
        if (seconds := sums.gpu_time.get(name, 0.0)) and longest:
            told = f"{report_text.hours(seconds)} GPU-hours {name}"
            parts.append(f'<i class="{name}" style="width:{seconds / longest:.2%}" title="{told}"></i>')
    return f'<div class="outcomes">{"".join(parts)}</div>'


def _what_if(replayed: Replayed) -> str:
    """Return the figures of other policies."""
    words = ("allocation_ratio", "wait_mean", "wait_p95", "wait_max", "worst_tenant_wait_mean")
    titles = ("POLICY", "ALLOCATED", "WAIT", "P95", "MAX", "WORST TENANT")
    rows = []
    for name, figures in replayed.figures.items():
        values = [getattr(figures, word) for word in words]
        shown = [f"{values[0]:.1%}", *(report_text.wait(value) for value in values[1:])]
        cells = "".join(f'<td data-value="{value}">{text}</td>' for value, text in zip(values, shown, strict=True))
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    heads = "".join(_head(title, "") for title in titles)
    notes = "".join(f"<p>{escape(note)}</p>" for note in replayed.told)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    head = f"<h2>What if: {replayed.jobs:,} of these jobs, replayed on {replayed.gpus} GPUs</h2>"
    return f'{head}<div class="wide">{table}</div>{notes}'
