"""Time of `gputui submit` and `gputui queue`, also as a multiple of a bare start of the same interpreter.

Ratios compare the least of all runs, which alternate: of wall time, and of processor time, which a busy machine
distorts less.

With --owner a process owns the queue, and runs the commands for thin clients, started by a script as pip writes it. Its
own processor time per command, with the ticks that a submission causes, is printed too.

python -m bench.commands [--owner] [--jobs 1000] [--times 20] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench._jobs import store_waiting_jobs
from bench._measure import machine
from bench.console import at_home

BUDGETS = {"submit": 0.25, "queue": 0.35, "top -n 1": 0.6}
"""Seconds of wall time, as the design states them."""
RATIOS = {"submit": 8, "queue": 10}
"""Times a bare start of the interpreter, at most."""
THIN_RATIOS = {"submit": 2.5, "queue": 2.5}
"""The same where the owner of the queue runs the command."""
WRAPPER = f"#!{sys.executable}\nimport re\nimport sys\nfrom gputui.__main__ import main\nsys.exit(main())\n"
"""Script of the command, as pip writes it."""
BARE = "python -c pass"


class CommandRun(NamedTuple):
    """Cost of one run of a command."""

    wall: float
    """Seconds from its start to its end."""
    cpu: float
    """Seconds of processor time, user and system."""


def main() -> None:
    """Measure and print."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state, at_home(os.environ) as environ:
        store_waiting_jobs(Path(state), options.jobs)
        if options.owner:
            print_thin(Path(state), options, environ)
            return
        found = compare(commands(state), options.times, environ)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"machine: {machine()}")
    print(f"wall time, median of {options.times} taken in turns, {options.jobs:,} jobs stored")
    for name, runs in found.items():
        times = [run.wall for run in runs]
        budget = f", budget {BUDGETS[name] * 1000:.0f} ms" if name in BUDGETS else ""
        print(f"  {name:<22} {_ms(statistics.median(times))}, {_ms(min(times))} to {_ms(max(times))}{budget}")
    print(f"least time as a multiple of {BARE}: wall, processor")
    for name in found:
        wall, cpu = ratios(found, name)
        budget = f", budget {RATIOS[name]}" if name in RATIOS else ""
        print(f"  {name:<22} {wall:5.1f} {cpu:5.1f}{budget}")


def print_thin(state: Path, options: argparse.Namespace, environ: dict[str, str]) -> None:
    """Measure and print what commands cost that an owner runs, and what they cost the owner."""
    script = state / "gputui"
    script.write_text(WRAPPER)
    script.chmod(0o700)
    ours = [sys.executable, "-m", "gputui", "--state", str(state), "--probe", "sim:8", "--runtime", "process"]
    words = {
        "submit": ["submit", "--host", "--hold", "--", "true"],
        "queue": ["queue"],
        "queue --json": ["queue", "--json"],
        "gpus": ["gpus"],
        "show": ["show", "1"],
    }
    wanted = {BARE: [sys.executable, "-c", "pass"]}
    wanted |= {name: [str(script), "--state", str(state), *each] for name, each in words.items()}
    with subprocess.Popen([*ours, "serve"], env=environ, stderr=subprocess.DEVNULL) as owner:
        try:
            while not (state / "api.sock").exists():
                time.sleep(0.05)
            found = compare(wanted, options.times, environ)
            shares = {name: owners_share(owner.pid, wanted[name], options.times, environ) for name in words}
        finally:
            owner.terminate()
    if options.json:
        print(json.dumps({"runs": found, "owner": shares}, indent=2))
        return
    print(f"machine: {machine()}")
    print(f"{options.jobs:,} jobs stored; as a multiple of {BARE}: wall, processor; and the owner's processor time")
    for name in words:
        wall, cpu = ratios(found, name)
        budget = f", budget {THIN_RATIOS[name]}" if name in THIN_RATIOS else ""
        own = min(run.cpu for run in found[name])
        total = f"{own * 1000:.1f} + {shares[name] * 1000:.1f} = {(own + shares[name]) * 1000:.1f} ms"
        print(f"  {name:<22} {wall:5.2f} {cpu:5.2f}{budget:<13} {total}")


def owners_share(pid: int, command: Sequence[str], times: int, environ: dict[str, str]) -> float:
    """Return the processor time of the owner per command, less what it uses meanwhile without any."""
    seconds = max(2.0, 0.1 * times)
    begun = _cpu_of(pid)
    time.sleep(seconds)
    idle = (_cpu_of(pid) - begun) / seconds
    begun, at = _cpu_of(pid), time.monotonic()
    for _ in range(times):
        _run(command, environ)
    time.sleep(1)  # the ticks that it caused
    return (_cpu_of(pid) - begun - idle * (time.monotonic() - at)) / times


def _cpu_of(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ratios(found: dict[str, list[CommandRun]], name: str) -> tuple[float, float]:
    """Return the least wall and processor time of a command, as multiples of those of a bare start."""
    wall = min(run.wall for run in found[name]) / min(run.wall for run in found[BARE])
    return wall, min(run.cpu for run in found[name]) / min(run.cpu for run in found[BARE])


def commands(state: str) -> dict[str, list[str]]:
    """Return the commands to time: an empty one, then our imports alone, then the commands."""
    ours = [sys.executable, "-m", "gputui", "--state", state]
    return {
        BARE: [sys.executable, "-c", "pass"],
        "gputui --version": [*ours[:3], "--version"],
        "submit": [*ours, "submit", "--gpus", "1", "busybox", "true"],
        "queue": [*ours, "queue"],
        "queue --json": [*ours, "queue", "--json"],
        "top -n 1": [*ours, "--probe", "sim:8", "--runtime", "process", "top", "-n", "1"],
    }


def compare(commands: dict[str, list[str]], times: int, environ: dict[str, str]) -> dict[str, list[CommandRun]]:
    """Return the cost of each run of each command, after one of each that is not counted."""
    for command in commands.values():
        _run(command, environ)
    found: dict[str, list[CommandRun]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            found[name].append(_run(command, environ))
    return found


def _run(command: Sequence[str], environ: dict[str, str]) -> CommandRun:
    before, begun = _cpu_of_children(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, check=False, env={**environ, "COLUMNS": "120"})
    run = CommandRun(time.perf_counter() - begun, _cpu_of_children() - before)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.decode(errors='replace')}")
    return run


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.commands", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs stored")
    parser.add_argument("--times", type=int, default=20, help="runs of each command")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--owner", action="store_true", help="where a process owns the queue")
    return parser.parse_args()


if __name__ == "__main__":
    main()
