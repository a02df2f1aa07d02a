"""Time from a submission to the first command of its container: `gputui submit` and plain `sbatch` in turns.

python -m bench.submissions [--pairs 30] [--gpus 1] [--json]

Runs the tests' own Slurm of three nodes (root, Slurm, dockerd). Each job starts on idle nodes: the next submission
waits until nothing of the last job is left. `sbatch` gets a script with `docker run`, the same image, GPUs and command.
Times are those of the host's clock, to 10 ms in containers.

slurmctld starts batch jobs once a second, so a job waits for 0 to 1 s, whoever submitted it. That wait is told apart:
`before` is the time until `sbatch` has returned, `after` that from the first line of the batch script to the first
command of the container. Only these can differ; each pair is judged by the difference of their sums.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from bench._measure import machine, percentile
from tests.slurm.bed import IMAGE, Bed

AT_MOST = 0.2
"""Seconds that a submission of gputui may take longer than the plain one beside it."""
_NOTES = "cut -d' ' -f1 /proc/uptime >/notes/begun"
_SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:{gpus} --time=5 --output={notes}/%j.out
echo "$SLURM_JOB_GPUS" >{notes}/.$SLURM_JOB_ID.run
docker run --rm --gpus "\\"device=$SLURM_JOB_GPUS\\"" --volume {notes}:/notes {image} sh -c "{command}"
"""
_SBATCH = """#!/bin/sh
/usr/bin/sbatch "$@"
code=$?
cut -d' ' -f1 /proc/uptime >{notes}/accepted
exit $code
"""
"""Command `sbatch` that notes when Slurm's own has returned."""


@dataclass(frozen=True)
class Start:
    """Times of a submission, in seconds."""

    before: float
    """Time until `sbatch` had returned."""
    waited: float
    """Time from there to the first line of the batch script: Slurm's own."""
    after: float
    """Time from there to the first command of the container."""
    cpu: float
    """Processor time of the command and its children."""

    @property
    def total(self) -> float:
        return self.before + self.waited + self.after

    @property
    def own(self) -> float:
        """Return the time without Slurm's."""
        return self.before + self.after


def main() -> None:
    """Measure and print."""
    options = _options()
    print(f"machine: {machine()}", file=sys.stderr)
    bed = Bed()
    try:
        bed.start()
        pairs = measured(bed, options.pairs, options.gpus)
    finally:
        bed.destroy()
    figures = _figures(pairs)
    print(json.dumps(figures) if options.json else "\n".join(_lines(figures)))


def measured(bed: Bed, pairs: int, gpus: int) -> list[tuple[Start, Start]]:
    """Return pairs of a submission by gputui and a plain one; which of them goes first alternates."""
    notes, programs = bed.home("root") / "notes", bed.home("root") / "programs"
    for folder in (notes, programs):
        folder.mkdir()
    script, sbatch = programs / "plain.sh", programs / "sbatch"
    script.write_text(_SCRIPT.format(gpus=gpus, notes=notes, image=IMAGE, command=_NOTES))
    sbatch.write_text(_SBATCH.format(notes=notes))
    sbatch.chmod(0o755)
    options = ["--gpus", str(gpus), "--time-limit", "5m", "--volume", f"{notes}:/notes"]
    ours = [sys.executable, "-m", "gputui", "submit", *options, IMAGE, "sh", "-c", _NOTES]
    own = {"GPUTUI_STATE": f"{notes}/state", "GPUTUI_CLUSTER_LOG_DIRECTORY": str(notes), "GPUTUI_CLUSTER": "slurm"}
    environ = bed.environ_inside | own | {"PYTHONPATH": str(Path.cwd())}
    environ["PATH"] = f"{programs}:{environ['PATH']}"

    def by_gputui() -> Start:
        return _started(bed, ours, environ, notes)

    def by_sbatch() -> Start:
        return _started(bed, ["sbatch", "--parsable", str(script)], environ, notes)

    for each in (by_gputui, by_sbatch):
        each()  # what is loaded for the first time
    found = []
    for number in range(pairs):
        first, second = (by_gputui, by_sbatch) if number % 2 else (by_sbatch, by_gputui)
        one, two = first(), second()
        found.append((one, two) if number % 2 else (two, one))
    return found


def _started(bed: Bed, words: Sequence[str], environ: Mapping[str, str], notes: Path) -> Start:
    """Submit on idle nodes, and wait until the container has noted its begin."""
    _wait(lambda: not bed.run("squeue", "--noheader", "--states=PD,R,CG,S").stdout)
    begun, accepted = notes / "begun", notes / "accepted"
    begun.unlink(missing_ok=True)
    used, asked = _children(), time.clock_gettime(time.CLOCK_BOOTTIME)
    shift = time.time() - asked
    done = subprocess.run([*bed.into_head, *words], env=environ, check=True, capture_output=True, text=True)
    cpu = _children() - used
    _wait(lambda: begun.exists() and begun.read_text().endswith("\n"))
    note = notes / f".{done.stdout.strip()}.run"  # the script adds its end later, so its birth counts
    born = subprocess.run(["stat", "--format=%.6W", note], check=True, capture_output=True, text=True).stdout
    at, script = float(accepted.read_text()), float(born) - shift
    return Start(at - asked, script - at, float(begun.read_text()) - script, cpu)


def _wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a job has not begun or ended within a minute")
        time.sleep(0.2)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _figures(pairs: Sequence[tuple[Start, Start]]) -> dict[str, dict[str, float]]:
    names = ("before", "waited", "after", "total", "cpu")
    sides = {"gputui": [ours for ours, _ in pairs], "sbatch": [plain for _, plain in pairs]}
    found = {
        f"{side}, {name}": _spread([attrgetter(name)(start) for start in starts])
        for side, starts in sides.items()
        for name in names
    }
    for name, of in (("own", "without Slurm's wait"), ("total", "with it")):
        more = [getattr(ours, name) - getattr(plain, name) for ours, plain in pairs]
        found[f"later, {of}"] = _spread(more) | {"within": sum(each <= AT_MOST for each in more), "pairs": len(pairs)}
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"p50": statistics.median(values), "p90": percentile(values, 0.9), "most": max(values)}


def _lines(figures: Mapping[str, Mapping[str, float]]) -> Sequence[str]:
    lines = []
    for name, of in figures.items():
        within = f"   {of['within']} of {of['pairs']} pairs within {AT_MOST} s" if "pairs" in of else ""
        lines.append(f"{name:<28} p50 {of['p50']:6.3f} s   p90 {of['p90']:6.3f}   most {of['most']:6.3f}{within}")
    return [*lines, f"load {os.getloadavg()[0]:.1f}"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.submissions", description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
