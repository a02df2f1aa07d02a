"""Figures of panels and reports about a real run agree with a recount from what the engine and the audit log say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import engine, site
from tests.e2e.site import Site
from tests.gpus.standin import uuid
from tests.metrics import report_figures
from tests.metrics.panel_figures import BEFORE, PanelFigures, differences
from tests.metrics.real_run import HELD, JOBS, PREEMPTED, RUNNING_CANCELLED, RealRun, begun
from tests.metrics.recounted import Recount, Sums, journal
from tests.metrics.test_provisioning import QUERIES as ALL_QUERIES

__all__ = ["engine", "site"]
pytestmark = [pytest.mark.docker, pytest.mark.nvml, pytest.mark.prometheus, pytest.mark.long]

QUERIES = {title: expression for title, expression in ALL_QUERIES.items() if not title.startswith("cluster:")}
"""Expressions of the panels for one server."""


class Comparison:
    """A finished run, its recount, and the differences."""

    def __init__(self, run: RealRun, moments: dict[str, float]) -> None:
        self.run = run
        self.moments = moments
        gpu, since, until = run.lost
        self.recount = Recount(run.site.state, run.site.runs(), run.events(), (uuid(gpu), since, until))

    @property
    def gap(self) -> float:
        """Longest time between two readings of the GPUs, about a second, and half a second until an end is heard of."""
        span = f"{self.moments['end'] - self.moments['begin']:.0f}s"
        [found] = self.run.prometheus.ask(
            f"max_over_time((gputui_probe_last_success_timestamp_seconds "
            f"- gputui_probe_last_success_timestamp_seconds offset 1s)[{span}:1s])",
            self.moments["end"],
        )
        return max(1.0, float(found["value"][1])) + 0.5

    def asked(self, expression: str, moment: str) -> list[tuple[dict[str, str], float]]:
        """Return the values of a panel at a moment, with everything selected and the run as its range."""
        at = self.moments[moment]
        span = f"{at - self.moments['begin'] + BEFORE:.0f}s"
        for name in ("$instance", "$tenant", "$job_id", "$node"):
            expression = expression.replace(name, ".*")
        for name in ("$__rate_interval", "$__range"):
            expression = expression.replace(name, span)
        return [(each["metric"], float(each["value"][1])) for each in self.run.prometheus.ask(expression, at)]

    def increases(self, name: str) -> dict[float, float]:
        """Return what the buckets of a histogram grew by from the first to the last sample of the run."""
        end = self.moments["end"]
        span = f"{end - self.moments['begin'] + BEFORE:.0f}s"
        found: dict[float, float] = {}
        for series in self.run.prometheus.ask(f"{name}_bucket[{span}]", end):
            values = [float(value) for _, value in series["values"]]
            found[float(series["metric"]["le"])] = values[-1] - values[0]
        return found

    def panels(self) -> list[str]:
        """Return the differences between panels and recount."""
        told = (self.run.site.out / "told").read_text().count("told")
        machine = self.run.witness, self.increases
        expected = PanelFigures(self.recount, self.moments, self.run.lost[0], told, machine).expected()
        assert not QUERIES.keys() ^ expected.keys()
        wrong: list[str] = []
        for key, several in expected.items():
            for each in several:
                wrong += differences(key, each, self.asked(QUERIES[key], each.moment))
        return wrong

    def report(self, by: str) -> list[str]:
        """Return the differences of the report with this grouping, as JSON and as a table."""
        run, gap = self.run.site.run, self.gap
        told: dict[str, Any] = json.loads(run("report", "--by", by, "--format", "json").stdout)
        rows = {row["group"]: row for row in told["groups"]}
        cells = report_figures.table_rows(run("report", "--by", by).stdout)
        groups = self.recount.grouped(by)
        assert rows.keys() == groups.keys(), (rows.keys(), groups.keys())
        wrong = report_figures.of_json(f"{by} total", told["total"], self.total, gap)
        wrong += report_figures.of_cells(f"{by} table total", cells["TOTAL"], self.total, gap, 18)
        for name, sums in groups.items():
            wrong += report_figures.of_json(f"{by} {name}", rows[name], sums, gap)
            short = report_figures.short(name)
            wrong += report_figures.of_cells(f"{by} table {name}", cells[short], sums, gap, 18)
        return wrong

    def page(self) -> list[str]:
        """Return the differences of the HTML page."""
        page, gap = self.run.site.run("report", "--format", "html").stdout, self.gap
        rows = report_figures.page_rows(page)
        assert rows.keys() == {"tenant", "cause", "gpu"}
        wrong = report_figures.of_tiles(page, self.total, gap) + report_figures.of_chart(page, self.total)
        for by, shown in rows.items():
            groups = {**self.recount.grouped(by), "TOTAL": self.total}
            assert shown.keys() == groups.keys()
            for name, sums in groups.items():
                wrong += report_figures.of_cells(f"page {by} {name}", shown[name], sums, gap, 0.01)
        return wrong

    @property
    def total(self) -> Sums:
        return self.recount.sums(lambda job, ran: 1.0)

    def queue(self) -> list[str]:
        """Return the differences of states and causes in the journal."""
        documents = journal(self.run.site.state)
        wrong = [
            f"job {job}: {documents[job]['state']}"
            for job in self.recount.submitted
            if documents[job]["state"] != self.recount.state_of(job)
        ]
        told = {
            (job, each["number"]): (each.get("cause") or {}).get("code", "Completed")
            for job, document in documents.items()
            for each in document.get("attempts", ())
        }
        counted = {(each.job, each.number): each.cause for each in self.recount.ran}
        return wrong + [
            f"attempt {key}: {told.get(key)}, not {counted.get(key)}"
            for key in told.keys() | counted.keys()
            if told.get(key) != counted.get(key)
        ]


def test_every_figure_of_a_run_agrees_with_the_recount(site: Site, tmp_path: Path) -> None:
    with begun(site, tmp_path) as run:
        moments = {"begin": run.began_at, "full": run.fill()}
        run.make_way()
        moments |= {"lost": run.work(), "end": run.finish()}
        comparison = Comparison(run, moments)
        recount, total = comparison.recount, comparison.total
        causes = Counter(each.cause for each in recount.ran)
        print(
            f"{len(recount.submitted)} jobs in {moments['end'] - moments['begin']:.0f} s: {dict(recount.states())}\n"
            f"{len(recount.ran)} attempts: {dict(causes)}; tried again: {dict(recount.retries())}\n"
            f"GPU-seconds: {total.seconds}, told by containers: {total.least}\n"
            f"waits: mean {total.wait_mean:.2f} s, 95th percentile {total.wait_p95:.2f} s; readings {comparison.gap} s"
        )
        assert (len(recount.submitted), causes["Preempted"], causes["GpuLost"]) == (JOBS, PREEMPTED, 1)
        assert (causes["Cancelled"], recount.states().total()) == (RUNNING_CANCELLED, JOBS)
        assert total.ended["cancelled"] == HELD + RUNNING_CANCELLED
        wrong = {
            "queue": comparison.queue(),
            "panels": comparison.panels(),
            **{by: comparison.report(by) for by in ("tenant", "cause", "gpu")},
            "page": comparison.page(),
        }
        assert not any(wrong.values()), json.dumps(wrong, indent=1)
