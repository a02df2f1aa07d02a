"""A report as one HTML page that needs no network: own inline SVG, light and dark, sortable tables.

The bars are a few rectangles. Plotting libraries either add too much script for one page (plotly.js 3 MB), or half a
second of imports and 30 MB of packages (matplotlib) that a server for GPU jobs should not need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from gputui import __version__
from gputui.cli import report_text
from gputui.cli.report_figures import HOUR, Report, cost, order
from gputui.domain.accounting import OUTCOMES, UsageAccount, days_of
from gputui.domain.text import plain

if TYPE_CHECKING:
    from gputui.cli.report_what_if import Replayed

MOST_BARS = 120
"""Maximum number of bars of the chart over time; a longer period has several days per bar."""
MOST_ROWS = 200
"""Maximum number of rows of a table; further groups are added up in one row."""
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 1120, 240, 56, 22
_LABEL = 66
"""Width of a date below the chart."""
_ROW_BAR = 150


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
    yield _tile(_of_known(sums.busy, sums), "busy")
    yield _tile(_of_known(sums.idle, sums), "idle")
    yield _tile(f"{sums.wasted / sums.allocated:.0%}" if sums.allocated else "-", "wasted")
    yield _tile(report_text.wait(sums.wait_mean), "mean wait")
    yield _tile(report_text.energy(sums), "kWh")
    if (price := cost(sums, found.rates)) is not None:
        yield _tile(report_text.money(price), f"cost {plain(found.rates.currency)}".strip())


def _tile(figure: str, words: str) -> str:
    figure = "unknown" if figure == report_text.UNKNOWN else figure
    return f'<div class="tile"><b>{escape(figure)}</b><span>{escape(words)}</span></div>'


def _of_known(seconds: float | None, sums: UsageAccount) -> str:
    """Return GPU time as a share of the GPU time whose use is known."""
    return report_text.UNKNOWN if seconds is None or not sums.known else f"{seconds / sums.known:.0%}"


def _chart_over_time(found: Report) -> str:
    """Return stacked bars of GPU-hours by day."""
    by_day = found.grouped("day").groups
    days = [(day, by_day.get(day, UsageAccount())) for day in days_of(found.period)]
    if not by_day:
        return "<h2>GPU-hours by day</h2><p>Nothing ran in this period.</p>"
    step = math.ceil(len(days) / MOST_BARS)
    bars = [(days[at][0], _added(sums for _, sums in days[at : at + step])) for at in range(0, len(days), step)]
    each = "day" if step == 1 else f"{step} days"
    return f"<h2>GPU-hours by {each}</h2>{_legend()}{_columns(bars)}"


def _legend() -> str:
    words = "".join(f'<span><i class="{each}"></i>{each}</span>' for each in OUTCOMES)
    return f'<div class="legend">{words}</div>'


def _added(several: Iterable[UsageAccount]) -> dict[str, float]:
    """Return the GPU-hours of several accounts by outcome."""
    sums = dict.fromkeys(OUTCOMES, 0.0)
    for each in several:
        for name, seconds in each.gpu_time.items():
            sums[name] += seconds / HOUR
    return sums


def _columns(bars: Sequence[tuple[str, dict[str, float]]]) -> str:
    """Return a column chart with its axes."""
    top = _nice(max(sum(sums.values()) for _, sums in bars))
    wide = (_WIDTH - _LEFT) / len(bars)
    height = _HEIGHT - _BOTTOM - 10
    parts = []
    for line in range(5):
        y = 10 + height * (4 - line) / 4
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{top * line / 4:,.4g}</text>')
    every = math.ceil(len(bars) / 12)
    for place, (day, sums) in enumerate(bars):
        x, y = _LEFT + place * wide, 10.0 + height
        for name in OUTCOMES:
            tall = height * sums[name] / top
            if tall > 0:
                y -= tall
                told = f"{day}: {sums[name]:,.1f} GPU-hours {name}"
                shape = f'x="{x + 0.1 * wide:.1f}" y="{y:.1f}" width="{0.8 * wide:.1f}" height="{tall:.1f}"'
                parts.append(f'<rect class="{name}" {shape}><title>{told}</title></rect>')
        if place % every == 0 and x < _WIDTH - _LABEL:
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 5}">{day}</text>')
    box = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="GPU-hours over time"'
    return f"<svg {box}>{''.join(parts)}</svg>"


def _nice(value: float) -> float:
    """Return a round number, no less than the value."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * each for each in (1, 2, 4, 6, 8, 10) if unit * each >= value * 0.9999)


def _table(found: Report, by: str) -> str:
    """Return the table of a grouping, with a bar in each row."""
    accounts = found.grouped(by)
    figures = report_text.shown_columns(found)
    rows = sorted(accounts.groups.items(), key=order(by))
    longest = max((sums.allocated for _, sums in rows), default=0.0)
    heads = "".join(_head(each.title, each.help) for each in figures)
    cells = "".join(
        f"<tr>{_name_cell(found, by, name)}{_figure_cells(found, sums)}<td>{_bar(sums, longest)}</td></tr>"
        for name, sums in rows[:MOST_ROWS]
    )
    total = f"<tr><td>total</td>{_figure_cells(found, accounts.total)}<td></td></tr>"
    more = f"<p>{len(rows) - MOST_ROWS} more are not shown.</p>" if len(rows) > MOST_ROWS else ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in report_text.notes_of(found)) if by == found.by else ""
    head = f"<thead><tr>{_head(by.upper(), '')}{heads}<th>OUTCOMES</th></tr></thead>"
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
    x, parts = 0.0, []
    for name in OUTCOMES:
        wide = _ROW_BAR * sums.gpu_time.get(name, 0.0) / longest if longest else 0.0
        if wide:
            told = f"{report_text.hours(sums.gpu_time[name])} GPU-hours {name}"
            parts.append(
                f'<rect class="{name}" x="{x:.1f}" width="{wide:.1f}" height="10"><title>{told}</title></rect>'
            )
            x += wide
    return f'<svg viewBox="0 0 {_ROW_BAR} 10">{"".join(parts)}</svg>'


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
