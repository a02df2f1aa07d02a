"""Figures of `gputui report` and of its page, compared with the recount of a real run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import unescape
from typing import Any

from tests.gpus.standin import uuid
from tests.metrics.real_run import GPUS, readings
from tests.metrics.recounted import NONE, Sums

INTERVAL = 1.0
GPU_HOUR, KWH = 2.0, 0.5
"""Prices of the settings."""
JOULES = 3_600_000.0
_ENDS = ("completed", "failed", "cancelled")
_OUTCOMES = ("completed", "failed", "preempted", "cancelled", "running")
Bounds = tuple[float, float]
_WEIGHTS: Mapping[str, Callable[[Mapping[str, float]], float]] = {
    "busy": lambda read: read["utilization"],
    "idle": lambda read: float(read["utilization"] <= 0.01),
    "energy": lambda read: read["power"],
}
"""Contribution of a second on a GPU to a sum, given its readings."""


class Limits:
    """Minimum and maximum of a group's figures in a report.

    GPU time is known to an interval on each GPU; of each attempt, what was measured may lack one interval, or `gap`
    where readings were further apart.
    """

    def __init__(self, sums: Sums, gap: float) -> None:
        self._sums = sums
        self._gap = gap
        self.hours = GPUS * INTERVAL

    def gpu_time(self, outcome: str) -> Bounds:
        """Return the bounds of the GPU-seconds of attempts with that outcome."""
        return self._sums.least.get(outcome, 0.0) - self.hours, self._sums.seconds.get(outcome, 0.0) + self.hours

    @property
    def allocated(self) -> Bounds:
        return sum(self._sums.least.values()) - self.hours, self._sums.allocated + self.hours

    @property
    def unknown(self) -> Bounds:
        """GPU-seconds without readings: the last part of each attempt, on each of its GPUs."""
        return 0.0, self._sums.spans * self._gap

    def measured(self, name: str) -> Bounds:
        """Return the bounds of a sum over time of a constant reading."""
        weights = {uuid(gpu): _WEIGHTS[name](readings(gpu)) for gpu in range(GPUS)}
        whole = sum(weights[each] * seconds for each, seconds in self._sums.by_gpu.items())
        slack = sum(weights[each] * count for each, count in self._sums.counts.items()) * self._gap
        return whole - slack, whole + slack

    @property
    def wait(self) -> tuple[Bounds, Bounds]:
        """Mean and 95th percentile of the waits."""
        mean, p95 = self._sums.wait_mean, self._sums.wait_p95
        return (mean - INTERVAL, mean + INTERVAL), (p95 - INTERVAL, p95 + INTERVAL)


def _outside(what: str, value: float | None, bounds: Bounds, scale: float = 1.0) -> list[str]:
    low, high = (each / scale for each in bounds)
    if value is None:
        return [] if low <= 0 else [f"{what}: unknown, not {low:.6g} to {high:.6g}"]
    return [] if low - 1e-6 <= value <= high + 1e-6 else [f"{what}: {value}, not {low:.6g} to {high:.6g}"]


def _different(what: str, value: object, expected: object) -> list[str]:
    return [] if value == expected else [f"{what}: {value}, not {expected}"]


def of_json(where: str, row: Mapping[str, Any], sums: Sums, gap: float) -> list[str]:
    """Return the differences of a row of the JSON from the recount."""
    limits, hour = Limits(sums, gap), 3600.0
    wrong = _different(f"{where} jobs", row["jobs"], sums.jobs)
    wrong += _different(f"{where} attempts", row["attempts"], sums.attempts)
    wrong += _different(f"{where} started", row["jobs_started"], len(sums.waits))
    for end in _ENDS:
        wrong += _different(f"{where} {end}", row[f"jobs_{end}"], sums.ended[end])
    for outcome in _OUTCOMES:
        wrong += _outside(f"{where} {outcome}", row[f"gpu_hours_{outcome}"], limits.gpu_time(outcome), hour)
    wrong += _outside(f"{where} allocated", row["gpu_hours"], limits.allocated, hour)
    wrong += _outside(f"{where} unknown", row["gpu_hours_unknown"], limits.unknown, hour)
    wrong += _outside(f"{where} without energy", row["gpu_hours_without_energy"], limits.unknown, hour)
    wrong += _different(f"{where} suspended", row["gpu_hours_suspended"], 0.0)
    for name in ("busy", "idle"):
        wrong += _outside(f"{where} {name}", row[f"gpu_hours_{name}"], limits.measured(name), hour)
    wrong += _outside(f"{where} energy", row["energy_kwh"], limits.measured("energy"), JOULES)
    if sums.waits:
        mean, p95 = limits.wait
        wrong += _outside(f"{where} wait", row["wait_mean"], mean) + _outside(f"{where} p95", row["wait_p95"], p95)
    price = row["gpu_hours"] * GPU_HOUR
    wrong += _outside(f"{where} price", row["cost_gpu_hours"], (price - 1e-4, price + 1e-4))
    power = (row["energy_kwh"] or 0.0) * KWH
    return wrong + _outside(f"{where} cost", row["cost"], (price + power - 2e-4, price + power + 2e-4))


def of_cells(where: str, cells: Mapping[str, float | None], sums: Sums, gap: float, rounded: float) -> list[str]:
    """Return how a row of table or page differs: GPU-seconds, `rounded` to that, waits in seconds and kWh."""
    limits = Limits(sums, gap)

    def wide(bounds: Bounds) -> Bounds:
        return bounds[0] - rounded, bounds[1] + rounded

    wrong = _different(f"{where} JOBS", cells["JOBS"], float(sums.jobs))
    wrong += _outside(f"{where} GPU-H", cells["GPU-H"], wide(limits.allocated))
    for title, name in (("BUSY", "busy"), ("IDLE", "idle")):
        wrong += _outside(f"{where} {title}", cells[title], wide(limits.measured(name)))
    for outcome in ("failed", "preempted", "cancelled"):
        wrong += _outside(f"{where} {outcome}", cells[outcome.upper()], wide(limits.gpu_time(outcome)))
    if sums.waits:
        for title, (low, high) in zip(("WAIT", "P95"), limits.wait, strict=True):
            wrong += _outside(f"{where} {title}", cells[title], (low - 1, high + 1))
    low, high = limits.measured("energy")
    return wrong + _outside(f"{where} KWH", cells["KWH"], (low / JOULES - 0.005, high / JOULES + 0.005))


def table_rows(text: str) -> dict[str, dict[str, float | None]]:
    """Return the cells of a table by group, in GPU-seconds, seconds and kWh; None: unknown."""
    lines = text.split("\n\n")[1].splitlines()
    titles = lines[0].split()[1:]
    rows = [(line.split()[: -len(titles)], line.split()[-len(titles) :]) for line in lines[1:]]
    return {
        name[-1]: {title: _of_cell(title, cell) for title, cell in zip(titles, cells, strict=True)}
        for name, cells in rows
    }


def _of_cell(title: str, cell: str) -> float | None:
    if cell in {"?", "-"}:
        return None
    if title in {"WAIT", "P95"}:
        parts = re.findall(r"(\d+)([hms])", cell)
        return float(sum(int(number) * {"h": 3600, "m": 60, "s": 1}[unit] for number, unit in parts))
    value = float(cell.replace(",", ""))
    return value if title in {"JOBS", "KWH", "COST"} else value * 3600


def page_rows(page: str) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return the exact values of the page's cells, by grouping and group."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for by, body in re.findall(r"<h2>By (\w+)</h2>(.*?)</table>", page, re.DOTALL):
        titles = re.findall(r"<th[^>]*><button>([^<]+)</button>", body)[1:]
        rows = re.findall(r"<tr><td(?: title=\"([^\"]*)\")?>[^<]*</td><td>.*?</td>((?:<td data-value=.*?</td>)+)", body)
        for name, cells in rows:
            exact = [float(each) for each in re.findall(r'data-value="([^"]+)"', cells)]
            told = {title: None if value == -1 else value for title, value in zip(titles, exact, strict=True)}
            found.setdefault(by, {})[unescape(name) or "TOTAL"] = told
    return found


def of_tiles(page: str, sums: Sums, gap: float) -> list[str]:
    """Return the differences of the figures at the top of the page."""
    tiles = {words: figure for figure, words in re.findall(r'class="tile"><b>([^<]*)</b><span>([^<]*)</span>', page)}
    limits = Limits(sums, gap)
    wrong = _different("tile jobs", tiles["jobs"], str(sums.jobs))
    wrong += _outside("tile GPU-hours", float(tiles["GPU-hours held"]) * 3600, _wide(limits.allocated, 18))
    wasted = sum(sums.seconds.get(each, 0.0) for each in ("failed", "preempted", "cancelled")) / sums.allocated
    wrong += _outside(
        "tile wasted", float(tiles["of held GPU-hours wasted"].rstrip("%")) / 100, (wasted - 0.05, wasted + 0.05)
    )
    low, high = limits.measured("energy")
    return wrong + _outside("tile kWh", float(tiles["kWh"]), (low / JOULES - 0.005, high / JOULES + 0.005))


def of_chart(page: str, sums: Sums) -> list[str]:
    """Return the differences of the bars by day, whose texts have one decimal."""
    told: dict[str, float] = {}
    chart = page.partition("GPU-hours by day")[2].partition("<h2>")[0]
    for hours, outcome in re.findall(r"<title>[^:<]*: ([\d.,]+) GPU-hours (\w+)</title>", chart):
        told[outcome] = told.get(outcome, 0.0) + float(hours.replace(",", ""))
    wrong = _different("chart", set(told), {each for each, seconds in sums.seconds.items() if seconds})
    for outcome, hours in told.items():
        right = sums.seconds.get(outcome, 0.0) / 3600
        wrong += _outside(f"chart {outcome}", hours, (right - 0.11, right + 0.11))
    return wrong


def _wide(bounds: Bounds, by: float) -> Bounds:
    return bounds[0] - by, bounds[1] + by


def short(group: str) -> str:
    """Return a group's name as the last word of its row in the table."""
    return group if group == NONE or not group.startswith("GPU-") else "-".join(group.split("-")[:2])
