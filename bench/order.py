"""Ratios of the queue's order to another order, as it is and without each of its terms.

`python -m bench.order figures FOLDER > base.json` writes the figures of `plan` on every cut in FOLDER (`bench.cuts`
makes them); run with another commit on PYTHONPATH, it writes those of that commit.
`python -m bench.order ratios FOLDER base.json` prints the ratios to these, geometric means over cuts and loads, for the
order as it is, without each of its terms, and for other policies.
`python -m bench.order classes FOLDER` prints what jobs of high, normal and low priority wait, at load 1.0, without and
with preemption of normal and low jobs, and whether the ratio of high to normal waits is within its budget.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from gputui.domain.settings import PolicySettings
from gputui.replay.policies import POLICIES, plan
from gputui.replay.trace import HOUR, Ran, Site, TraceJob, prepare, read

LOADS = (0.9, 1.0, 1.2)
NEVER = timedelta(days=36500)
Figures: TypeAlias = dict[str, float]
Play: TypeAlias = Callable[[Sequence[TraceJob], Site], Iterable[Ran]]

HIGH_WAIT = {False: 0.35, True: 0.25}
"""Longest mean wait of high jobs, over that of normal ones, without and with preemption."""

FIGURES = ("wait", "slowdown", "p95", "longest", "allocated", "worst tenant")
VARIANTS: Mapping[str, Mapping[str, timedelta]] = {
    "as it is": {},
    "without promotion": {"promote_after": timedelta(0)},
    "promotion after 7 days": {"promote_after": timedelta(days=7)},
    "promotion after 10 days": {"promote_after": timedelta(days=10)},
    "promotion after 14 days": {"promote_after": timedelta(days=14)},
    "without age": {"age_unit": NEVER},
    "age: a point in 24 h": {"age_unit": timedelta(hours=24)},
    "age: a point in 48 h": {"age_unit": timedelta(hours=48)},
    "without credit": {"newcomer_credit": timedelta(0)},
    "expansion factor and promotion alone": {"age_unit": NEVER, "newcomer_credit": timedelta(0)},
    "expansion factor alone": {"promote_after": timedelta(0), "age_unit": NEVER, "newcomer_credit": timedelta(0)},
}


def cuts(folder: Path, gpus: int) -> list[tuple[str, Sequence[TraceJob]]]:
    """Return the cuts for so many GPUs, by name."""
    return [(path.stem, read(path)[0]) for path in sorted(folder.glob(f"philly_{gpus}gpu_*.csv"))]


def figures(ran: Iterable[Ran], gpus: int) -> Figures:
    """Return the figures that orders are compared by; times are seconds."""
    done = list(ran)
    waits = sorted(each.start - each.job.submit for each in done)
    last = max(each.job.submit for each in done)
    tenants: dict[str, list[float]] = defaultdict(list)
    for each in done:
        tenants[each.job.tenant].append(each.start - each.job.submit)
    slowdowns = [(each.end - each.job.submit) / max(each.end - each.start, 60.0) for each in done]
    return {
        "wait": statistics.fmean(waits),
        "slowdown": statistics.fmean(max(1.0, slowdown) for slowdown in slowdowns),
        "p95": waits[math.ceil(0.95 * len(waits)) - 1],
        "longest": waits[-1],
        "allocated": sum(each.gpus * max(0.0, min(each.end, last) - each.start) for each in done) / (gpus * last),
        "worst tenant": max(map(statistics.fmean, tenants.values())),
    }


def measured(folder: Path, gpus: int, play: Play) -> dict[str, Figures]:
    """Return the figures of a policy by cut and load."""
    site = Site(gpus)
    return {
        f"{name} {load}": figures(play(prepare(trace, site, load, "bucket"), site), gpus)
        for name, trace in cuts(folder, gpus)
        for load in LOADS
    }


def mean_ratio(ours: Mapping[str, Figures], base: Mapping[str, Figures], figure: str) -> float:
    """Return the geometric mean of the ratios to the base."""
    return statistics.geometric_mean(found[figure] / base[name][figure] for name, found in ours.items())


def with_settings(**changes: timedelta) -> Play:
    """Return the policy of this scheduler with these settings."""
    return lambda jobs, site: plan(jobs, site, PolicySettings(**changes))  # type: ignore[arg-type]


def ratios(folder: Path, base: Mapping[str, Figures]) -> Iterator[str]:
    """Yield the table of ratios as Markdown."""
    for gpus in (8, 64):
        if not cuts(folder, gpus):
            continue
        yield f"\n| {gpus} GPUs, {len(cuts(folder, gpus))} cuts | " + " | ".join(FIGURES) + " |"
        yield "|---" * (len(FIGURES) + 1) + "|"
        plays = {name: with_settings(**changes) for name, changes in VARIANTS.items()}
        plays |= {name: POLICIES[name] for name in ("easy", "saf")}
        for name, play in plays.items():
            found = measured(folder, gpus, play)
            yield f"| {name} | " + " | ".join(f"{mean_ratio(found, base, figure):.2f}" for figure in FIGURES) + " |"


def with_classes(name: str, jobs: Sequence[TraceJob]) -> list[TraceJob]:
    """Return the jobs with priorities: one in ten has 80, six have 50 and three 10, drawn by the cut's name."""
    draw = random.Random(name).random
    return [replace(job, priority=80 if (one := draw()) < 0.1 else 50 if one < 0.7 else 10) for job in jobs]


def pairs(ran: Sequence[Ran]) -> Iterator[bool]:
    """Yield for each high and normal job no narrower that wait at one time whether the normal one starts first."""
    normal = [each for each in ran if each.job.priority == 50]
    for high in (each for each in ran if each.job.priority == 80):
        for other in normal:
            if other.job.gpus >= high.job.gpus and high.job.submit < other.start and other.job.submit < high.start:
                yield other.start < high.start


def classes(folder: Path) -> Iterator[str]:
    """Yield the mean waits by priority, in hours, and the share of pairs that start the wrong way round."""
    for preempts, at_most in HIGH_WAIT.items():
        waits: dict[int, list[float]] = defaultdict(list)
        wrong: list[bool] = []
        for name, trace in cuts(folder, 8):
            site = Site(8)
            jobs = with_classes(name, prepare(trace, site, 1.0, "bucket"))
            jobs = [replace(job, preemptible=preempts and job.priority < 80) for job in jobs]
            ran = list(plan(jobs, site, PolicySettings(preemption=preempts)))
            for priority in (80, 50, 10):
                of_class = [each.start - each.job.submit for each in ran if each.job.priority == priority]
                waits[priority].append(statistics.fmean(of_class) / HOUR)
            wrong += pairs(ran)
        means = {priority: statistics.fmean(found) for priority, found in waits.items()}
        ratio = means[80] / means[50]
        told = ", ".join(f"priority {priority}: {mean:.1f} h" for priority, mean in means.items())
        verdict = f"high over normal {ratio:.2f}, at most {at_most}{'' if ratio <= at_most else ': not met'}"
        yield f"{'with' if preempts else 'without'} preemption: {told}; {verdict}"
        yield f"{statistics.fmean(wrong):.2%} of {len(wrong)} pairs the wrong way round"


def main() -> None:
    """Print what is asked for."""
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "figures":
        print(json.dumps(measured(folder, 8, plan) | measured(folder, 64, plan)))
        return
    lines = classes(folder) if what == "classes" else ratios(folder, json.loads(Path(sys.argv[3]).read_text()))
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
