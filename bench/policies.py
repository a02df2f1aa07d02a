"""The golden table: this scheduler beside the baselines, on real cuts where they are at hand, else on made-up traces.

`python -m bench.policies [FOLDER]`: FOLDER holds philly_8gpu_*.csv and philly_64gpu_*.csv.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from gputui.replay.generator import digest, generate
from gputui.replay.metrics import Figures, figures
from gputui.replay.policies import POLICIES
from gputui.replay.trace import Site, TraceJob, prepare, read

LOADS = (0.6, 0.8, 1.0, 1.3)
HOUR = 3600.0


def traces(folder: Path | None, gpus: int) -> list[tuple[str, str, list[TraceJob]]]:
    """Name, hash and jobs of each trace."""
    found = sorted(folder.glob(f"philly_{gpus}gpu_*.csv")) if folder else []
    if found:
        return [(path.name, sha, jobs) for path in found for jobs, sha in (read(path),)]
    made = [generate(2500 if gpus == 8 else 8000, seed, widest=8 if gpus == 8 else 16) for seed in range(3)]
    return [(f"synthetic seed {seed}", digest(jobs), jobs) for seed, jobs in enumerate(made)]


def row(name: str, found: Sequence[Figures], ours: Sequence[Figures]) -> str:
    """The means over the traces, and how our allocation compares."""

    def mean(figure: str) -> float:
        return float(statistics.mean(getattr(each, figure) for each in found))

    ratio = statistics.mean(our.allocation_ratio / each.allocation_ratio for our, each in zip(ours, found, strict=True))
    waits = (mean(figure) / HOUR for figure in ("wait_mean", "wait_p95", "wait_max"))
    return (
        f"| {name} | {mean('allocation_ratio'):.3f} | {ratio:.2f} | "
        + " | ".join(f"{wait:.0f}" for wait in waits)
        + " |"
    )


def main() -> None:
    """Print it as Markdown."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for gpus in (8, 64):
        used = traces(folder, gpus)
        print(f"\n{gpus} GPUs, bucket limits; " + "; ".join(f"{name} sha256 {sha[:12]}" for name, sha, _ in used))
        for load in LOADS:
            print(
                f"\n| load {load} | allocated | plan / it | wait h | p95 | max |\n|---|---|---|---|---|---|", flush=True
            )
            found: dict[str, list[Figures]] = {}
            for name, policy in POLICIES.items():
                ready = [prepare(jobs, Site(gpus), load, "bucket") for _, _, jobs in used]
                found[name] = [figures(list(policy(jobs, Site(gpus))), gpus) for jobs in ready]
                print(row(name, found[name], found["plan"]), flush=True)


if __name__ == "__main__":
    main()
