"""Wall time of `gputui submit` and `gputui queue` beside a bare start of the same interpreter.

python -m bench.commands [--jobs 1000] [--times 20] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench._jobs import store_waiting_jobs
from bench._measure import machine
from bench.console import at_home

BUDGETS = {"submit": 0.25, "queue": 0.35, "top -n 1": 0.6}
"""Seconds, as the design states them."""


def main() -> None:
    """Measure and print."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state, at_home(os.environ) as environ:
        store_waiting_jobs(Path(state), options.jobs)
        found = compare(commands(state), options.times, environ)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"machine: {machine()}")
    print(f"wall time, median of {options.times} taken in turns, {options.jobs:,} jobs stored")
    for name, times in found.items():
        budget = f", budget {BUDGETS[name] * 1000:.0f} ms" if name in BUDGETS else ""
        print(f"  {name:<22} {_ms(statistics.median(times))}, {_ms(min(times))} to {_ms(max(times))}{budget}")


def commands(state: str) -> dict[str, list[str]]:
    """What is timed: first what costs nothing, then the same with the imports of ours, then the commands."""
    ours = [sys.executable, "-m", "gputui", "--state", state]
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gputui --version": [*ours[:3], "--version"],
        "submit": [*ours, "submit", "--gpus", "1", "busybox", "true"],
        "queue": [*ours, "queue"],
        "queue --json": [*ours, "queue", "--json"],
        "top -n 1": [*ours, "--probe", "sim:8", "--runtime", "process", "top", "-n", "1"],
    }


def compare(commands: dict[str, list[str]], times: int, environ: dict[str, str]) -> dict[str, list[float]]:
    """Seconds of each run of each command, after one of each that is not counted."""
    for command in commands.values():
        _seconds(command, environ)
    found: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            found[name].append(_seconds(command, environ))
    return found


def _seconds(command: Sequence[str], environ: dict[str, str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False, env={**environ, "COLUMNS": "120"})
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.decode(errors='replace')}")
    return seconds


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.commands", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs stored")
    parser.add_argument("--times", type=int, default=20, help="runs of each command")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
