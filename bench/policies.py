"""The golden tables: this scheduler compared with baselines, on real cuts if available, and on generated traces.

`python -m bench.policies [FOLDER]`: FOLDER holds philly_8gpu_*.csv and philly_64gpu_*.csv; `bench.cuts` makes them.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gputui.replay.policies import POLICIES, dealt, measure
from gputui.replay.simulation import Figures
from gputui.replay.trace import Site, TraceJob, digest, generate, prepare, read

LOADS = (0.9, 1.0, 1.2)
HOUR = 3600.0
SEEDS = {8: 10, 64: 3}


def allocation_bound(jobs: Sequence[TraceJob], gpus: int) -> float:
    """Return an upper bound of every policy's A.

    All submitted work is done at once, as if it were infinitely divisible.
    """
    last = max(job.submit for job in jobs)
    at = waiting = done = 0.0
    for job in jobs:
        worked = min(waiting, gpus * (job.submit - at))
        at, waiting, done = job.submit, waiting - worked + job.duration * job.gpus, done + worked
    alone = math.fsum(job.gpus * min(job.duration, last - job.submit) for job in jobs)
    return min(done, alone) / (gpus * last) if last else 0.0


class Trace(NamedTuple):
    """A trace with its name and hash."""

    name: str
    sha: str
    jobs: Sequence[TraceJob]


def real(folder: Path, gpus: int) -> list[Trace]:
    """Return the real cuts for that many GPUs."""
    found = sorted(folder.glob(f"philly_{gpus}gpu_*.csv"))
    return [Trace(path.stem, sha, jobs) for path in found for jobs, sha in (read(path),)]


def made_up(gpus: int) -> list[Trace]:
    """Return generated traces."""
    made = [generate(2500 if gpus == 8 else 8000, seed, widest=8 if gpus == 8 else 16) for seed in range(SEEDS[gpus])]
    return [Trace(f"seed {seed}", digest(jobs), jobs) for seed, jobs in enumerate(made)]


@dataclass(frozen=True)
class Gates:
    """Comparison of this scheduler with others on each of some traces: 8 GPUs, load 1.0, bucket limits."""

    found: Sequence[Mapping[str, Figures]]
    alphabet: Sequence[Figures]
    bounds: Sequence[float]

    @classmethod
    def of(cls, traces: Sequence[Sequence[TraceJob]]) -> Gates:
        """Replay all traces."""
        site = Site(8)
        ready = [prepare(trace, site, 1.0, "bucket") for trace in traces]
        return cls(
            [{name: measure(name, jobs, site) for name in POLICIES if name != "host-lease"} for jobs in ready],
            [dealt(jobs, site, None) for jobs in ready],
            [allocation_bound(jobs, 8) for jobs in ready],
        )

    def ratios(self, figure: str, baseline: str) -> list[float]:
        """Return the ratio of our figure to theirs for each trace."""
        return [getattr(each["plan"], figure) / getattr(each[baseline], figure) for each in self.found]

    def ratio(self, figure: str, baseline: str) -> float:
        """The mean of these."""
        return float(statistics.mean(self.ratios(figure, baseline)))

    def allocated(self, baseline: str) -> float:
        """Return the mean of A / A."""
        return self.ratio("allocation_ratio", baseline)

    def against_alphabet(self) -> list[float]:
        """Return A / A of an equal split in alphabetical order."""
        pairs = zip(self.found, self.alphabet, strict=True)
        return [each["plan"].allocation_ratio / other.allocation_ratio for each, other in pairs]

    def by_the_alphabet(self) -> float:
        """The mean of these."""
        return statistics.mean(self.against_alphabet())

    def most(self, baseline: str) -> float:
        """Return the bound that no policy's mean of A / A can exceed."""
        pairs = zip(self.found, self.bounds, strict=True)
        return float(statistics.mean(bound / each[baseline].allocation_ratio for each, bound in pairs))


def spread(values: Sequence[float]) -> str:
    """Mean [least-most]."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} [{min(values):.2f}-{max(values):.2f}]"


def gate_rows(columns: Sequence[Gates]) -> Iterator[str]:
    """Return rows of target and result on each set of traces."""
    rows = (
        ("allocated, over fifo", ">= 1.03", "allocation_ratio", "fifo"),
        ("mean wait, over fifo", "<= 0.65", "wait_mean", "fifo"),
        ("longest wait, over greedy", "<= 0.80", "wait_max", "greedy"),
        ("allocated, over static-equal", ">= 1.30", "allocation_ratio", "static-equal"),
        ("allocated, over static-proportional", ">= 1.10", "allocation_ratio", "static-proportional"),
    )
    for title, wanted, figure, baseline in rows:
        cells = []
        for gates in columns:
            bound = f", bound {gates.most(baseline):.2f}" if baseline.startswith("static") else ""
            cells.append(spread(gates.ratios(figure, baseline)) + bound)
        yield f"| {title} | {wanted} | " + " | ".join(cells) + " |"
    cells = [spread(gates.against_alphabet()) for gates in columns]
    yield "| the same, tenants dealt by the alphabet | >= 1.30 | " + " | ".join(cells) + " |"


COLUMNS = {
    "allocated": "allocation_ratio",
    "wait": "wait_mean",
    "p95": "wait_p95",
    "longest": "wait_max",
    "slowdown": "bounded_slowdown_mean",
    "worst tenant": "worst_tenant_wait_mean",
}
"""The columns of the tables, and the figures in them."""


def compared(ours: Sequence[Figures], theirs: Sequence[Figures], figure: str) -> str:
    """Return the geometric mean of our figure over theirs."""
    pairs = zip(ours, theirs, strict=True)
    return f"{statistics.geometric_mean(getattr(our, figure) / getattr(their, figure) for our, their in pairs):.2f}"


def row(name: str, found: Sequence[Figures], ours: Sequence[Figures]) -> str:
    """Return the means of a policy's figures, and ours over them."""
    allocated = statistics.mean(each.allocation_ratio for each in found)
    waits = [statistics.mean(getattr(each, COLUMNS[title]) for each in found) / HOUR for title in ("wait", "longest")]
    ratios = (compared(ours, found, figure) for figure in COLUMNS.values())
    return f"| {name} | {allocated:.3f} | " + " | ".join((*(f"{wait:.0f}" for wait in waits), *ratios)) + " |"


def table(
    traces: Sequence[Trace], gpus: int, loads: Sequence[float], limits: str, names: Sequence[str]
) -> Iterator[str]:
    """Yield a table of these policies, over all traces and loads."""
    site = Site(gpus)
    yield f"\n| {gpus} GPUs, {limits} limits | allocated | wait h | longest h | plan/it: " + " | ".join(COLUMNS) + " |"
    yield "|---" * (4 + len(COLUMNS)) + "|"
    ready = [prepare(trace.jobs, site, load, limits) for trace in traces for load in loads]
    bound = statistics.mean(allocation_bound(jobs, gpus) for jobs in ready)
    yield f"| no policy exceeds | {bound:.3f} |" + " |" * (2 + len(COLUMNS))
    ours = [measure("plan", jobs, site) for jobs in ready]
    for name in names:
        yield row(name, ours if name == "plan" else [measure(name, jobs, site) for jobs in ready], ours)


def hashes(traces: Sequence[Trace]) -> str:
    """Return the first twelve digits of the SHA-256 of each trace."""
    return ", ".join(f"{trace.name} {trace.sha[:12]}" for trace in traces)


def gates(folder: Path | None) -> Iterator[str]:
    """Yield the table of gates."""
    cuts = real(folder, 8) if folder else []
    columns = {f"{len(cuts)} cuts": cuts, f"{SEEDS[8]} seeds": made_up(8)}
    shown = {title: traces for title, traces in columns.items() if traces}
    yield "\n| 8 GPUs, load 1.0, bucket limits | wanted | " + " | ".join(shown) + " |\n|---|---|" + "---|" * len(shown)
    yield from gate_rows([Gates.of([trace.jobs for trace in traces]) for traces in shown.values()])


def main() -> None:
    """Print them as Markdown."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for gpus in (8, 64):
        traces = (real(folder, gpus) if folder else []) or made_up(gpus)
        print(f"\n{len(traces)} traces for {gpus} GPUs: {hashes(traces)}.")
        for line in table(traces, gpus, LOADS, "bucket", tuple(POLICIES)):
            print(line, flush=True)
        for limits in ("exact", "none") if gpus == 8 else ():
            for line in table(traces, gpus, (1.0,), limits, ("plan", "fifo", "easy", "saf", "greedy")):
                print(line, flush=True)
    for line in gates(folder):
        print(line, flush=True)


if __name__ == "__main__":
    main()
