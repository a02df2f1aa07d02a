"""Tables of the results of a replay: policies side by side, and variants of the settings with their differences."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from gputui.cli import table
from gputui.cli.own_history import AS_IT_WAS
from gputui.cli.table import TextColumn
from gputui.cli.variants import Variant, values_of
from gputui.domain.text import fit
from gputui.domain.units import format_duration, plural

if TYPE_CHECKING:
    from gputui.replay.metrics import Figures

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


def header(head: Mapping[str, Any], base: Variant) -> list[str]:
    """Return the lines that describe the replay."""
    load = "all at the same time" if head["load"] is None else f"load {head['load']:.2f}"
    lines = [
        f"{plural(head['jobs'], 'job')} on {plural(head['gpus'], 'GPU')}, {load}, {head['limits']} limits",
        f"trace sha256 {head['trace_sha256']}",
    ]
    return [*lines, *([f"set: {base.name}"] if base.changes else [])]


def policies(found: Mapping[str, Figures], variants: Collection[str]) -> list[str]:
    """Return a table with a line and a bar for each policy, and one of waits by class where there are several."""
    shown = {name: each for name, each in found.items() if name not in variants}
    total = table.terminal_width()
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
    further = _further("POLICY", shown, lambda figures: _rows(shown, figures))
    return ["", *table.lines(columns, rows, total), *further]


def comparison(base: Variant, tried: Sequence[Variant], found: Mapping[str, Figures]) -> list[str]:
    """Return a table of the current settings and of each variant, with the differences below the figures."""
    titles = ("WAIT", "P95", "MAX", "SLOWDOWN", "ALLOCATED", "WORST TENANT")
    columns = [TextColumn("SETTINGS", 60, least=9), *(TextColumn(title, right=True) for title in titles)]
    names, key = _short(_names(base, tried, found), table.terminal_width())
    rows = list(_compared_rows(names, found, _COMPARED))
    further = _further("SETTINGS", found, lambda figures: _compared_rows(names, found, figures))
    return ["", *key, *table.lines(columns, rows, table.terminal_width()), *further, "", *_wrapped(_LEGEND)]


def _short(names: dict[str, str], total: int | None) -> tuple[dict[str, str], list[str]]:
    """Return the names of the lines, and a key to the numbers that replace names too long for the terminal."""
    if total is None or max(map(len, names.values())) + _FIGURES <= total:
        return names, []
    tried = [key for key in names if key not in (PLAN, AS_IT_WAS)]
    numbers = {key: str(tried.index(key) + 1) if key in tried else key for key in names}
    key = [names[PLAN], *(f"{numbers[each]:>4} {names[each]}" for each in tried)]
    return numbers, [*(fit(line, total).rstrip() for line in key), ""]


def _names(base: Variant, tried: Sequence[Variant], found: Mapping[str, Figures]) -> dict[str, str]:
    """Return the names of the lines by policy; a variant equal to the current settings has no line of its own."""
    own = [AS_IT_WAS] if AS_IT_WAS in found else []
    keys = list(dict.fromkeys(key for each in tried for key in each.changes))
    values = values_of(base.settings, keys)
    now = " ".join(f"{key.partition('.')[2]}={_value(value)}" for key, value in values.items())
    others = {each.name: each.name for each in tried if values_of(each.settings, keys) != values}
    return {name: name for name in own} | {PLAN: f"{PLAN} ({now})"} | others


def _value(value: object) -> str:
    """Return the value of a setting as a file has it."""
    if isinstance(value, timedelta):
        return re.sub(r"(?<=d)00h$|(?<=h)00m$|(?<=m)00s$", "", format_duration(value)) if value else "0"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value).lower()


def _compared_rows(
    names: Mapping[str, str], found: Mapping[str, Figures], figures: Sequence[str]
) -> Iterator[ReportRow]:
    for key, name in names.items():
        yield (name, *(_shown(found[key], figure) for figure in figures))
        if key not in (PLAN, AS_IT_WAS):
            yield ("", *(_difference(found[key], found[PLAN], figure) for figure in figures))


def _difference(one: Figures, other: Figures, figure: str) -> str:
    """Return the difference of a figure from the other's in per cent; empty where that is not a number."""
    new, old = getattr(one, figure), getattr(other, figure)
    if not old or new is None:
        return "=" if new == old else ""
    change = 100 * (new / old - 1)
    if abs(change) < 0.05:
        return "="
    return f"{change:+.1f}%" if abs(change) < 9.95 else f"{change:+.0f}%"


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
    return ["", *table.lines(columns, rows(list(titles)), table.terminal_width())]


def _rows(found: Mapping[str, Figures], figures: Sequence[str]) -> Iterator[ReportRow]:
    for name, each in found.items():
        yield (name, *(_shown(each, figure) for figure in figures))


def _shown(found: Figures, figure: str) -> str:
    value = getattr(found, figure)
    if value is None:
        return "-"
    if figure in _FORMATS:
        return _FORMATS[figure](value)
    return _hours(value)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f}h" if seconds >= 3600 else format_duration(timedelta(seconds=seconds))


def wrapped(told: Sequence[str]) -> list[str]:
    """Return sentences about a history, wrapped to the width of the terminal."""
    return [*([""] if told else []), *(line for sentence in told for line in _wrapped(sentence))]


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, table.terminal_width() or 120, subsequent_indent="  ")
