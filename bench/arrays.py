"""An array of 100,000 elements: what the commands take, what `serve` and a second console cost beside it.

python -m bench.arrays [--count 100000] [--times 3] [--seconds 20] [--json]

Each element sleeps on one of eight simulated GPUs: eight run while `serve` is measured, the others wait.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench._measure import Figures, cpu_seconds, machine, measure, resident, tree
from bench.console import MODEL, VISIBLE, at_home

NAME = "sweep"
"""Name of the array: must be on the screen."""
PAINT = 0.5
"""Maximum seconds until the console paints, with any queue."""
SHOWN_AFTER = 1.0
"""Maximum seconds by which the array may appear later than the GPUs of an empty queue."""
MB = 1e6
MACHINE = ("--probe", f"sim:8:{MODEL}", "--runtime", "process")
COMMANDS: Mapping[str, tuple[Sequence[str], float | None]] = {
    "queue": (["queue"], 1.2),
    "queue --json": (["queue", "--json"], 1.2),
    "explain ARRAY": (["explain", "1"], 1.5),
    "explain ELEMENT": (["explain", "1_{middle}"], 1.5),
    "show ARRAY": (["show", "1"], None),
    "show ELEMENT": (["show", "1_{middle}"], None),
    "hold ARRAY": (["hold", "1"], None),
    "release ARRAY": (["release", "1"], None),
    "priority ARRAY": (["priority", "1", "60"], None),
    "top ARRAY": (["priority", "1", "top"], None),
    "hold PART": (["hold", "1_[{middle}-{before}]"], None),
    "release PART": (["release", "1_[{middle}-{before}]"], None),
    "cancel ELEMENT": (["cancel", "1_{last}"], None),
}
"""Arguments and budget in seconds of each command that is timed, in this order, over the same queue."""


@dataclass(frozen=True)
class Found:
    """Measured figure."""

    what: str
    value: float
    unit: str
    most: float | None = None
    """Budget; None: there is none."""
    cpu: float | None = None
    """Seconds of CPU time of a command, which other work on the machine hardly changes."""

    @property
    def verdict(self) -> str:
        """Return whether the figure is within its budget."""
        if self.most is None:
            return ""
        return f"at most {self.most:g}: {'PASS' if self.value <= self.most else 'MISS'}"

    def line(self) -> str:
        """Return the figure and its verdict."""
        cpu = f"({self.cpu:.2f} s CPU)" if self.cpu is not None else ""
        return f"{self.what:<48} {self.value:>10.2f} {self.unit:<4} {cpu:<14} {self.verdict}".rstrip()


def main() -> None:
    """Measure and print."""
    options = _options()
    print(f"machine: {machine()}; {options.count:,} elements", file=sys.stderr)
    found = []
    with at_home(os.environ) as environ:
        for each in _all(options, environ):
            found.append(each)
            print(json.dumps(vars(each)) if options.json else each.line(), flush=True)
    if missed := [each.what for each in found if each.verdict.endswith("MISS")]:
        sys.exit(f"over budget: {', '.join(missed)}")


def _all(options: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[Found]:
    """Yield each figure as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as empty:
        yield from _of_commands(empty, options, environ, submits=options.times)
        yield from _beside_serve(options, environ)


def _of_commands(place: str, options: argparse.Namespace, environ: Mapping[str, str], submits: int) -> Iterator[Found]:
    """Yield the wall time of each command while no scheduler runs."""
    states = [f"{place}/{number}" for number in range(submits)]
    _run(ours(states[0], "queue"), environ)  # compiles the modules
    taken = [_run(_submit(state, options.count), environ) for state in states]
    yield _of_runs("submit", taken, 2.0)
    yield Found("what submit prints, lines", len(_lines(_submit(f"{place}/lines", options.count), environ)), "", 1)
    yield from _timed(states[0], options, environ, "")
    yield _of_runs("cancel ARRAY", [_run(ours(states[0], "cancel", "1"), environ)])
    yield _of_runs("queue -a after it", [_run(ours(states[0], "queue", "-a"), environ)])
    yield Found("state directory after cancel", _bytes(Path(states[0])) / MB, "MB")


def _timed(state: str, options: argparse.Namespace, environ: Mapping[str, str], where: str) -> Iterator[Found]:
    places = {"middle": options.count // 2, "before": options.count - 2, "last": options.count - 1}
    for name, (arguments, most) in COMMANDS.items():
        command = ours(state, *(word.format(**places) for word in arguments))
        yield _of_runs(f"{name}{where}", [_run(command, environ) for _ in range(options.times)], most)


def _beside_serve(options: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[Found]:
    """Yield the cost of `serve`, and that of a console beside it, with an empty queue and with the array."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state, _serving(state, environ):
        empty = _console(state, MODEL, environ, options)
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state:
        _run(_submit(state, options.count), environ)
        try:
            with _serving(state, environ) as pid:
                _until(lambda: len(_lines(ours(state, "queue", "-s", "R"), environ)) >= 9, "eight elements run")
                yield from _of_serve(pid, options.seconds)
                yield from _of_console(state, empty, options, environ)
                yield from _timed(state, options, environ, ", served")
                yield from _of_serve(pid, options.seconds, ", after all that")
        finally:
            _end_jobs(state, environ)


def _of_serve(pid: int, seconds: float, when: str = "") -> Iterator[Found]:
    time.sleep(5)
    begun, used = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    share = (cpu_seconds(pid) - used) / (time.monotonic() - begun)
    yield Found(f"serve: CPU of a core while idle{when}", share * 100, "%", 3)
    yield Found(f"serve: memory{when}", sum(map(resident, tree(pid))) / MB, "MB", 250)


def _of_console(
    state: str, empty: tuple[float, float], options: argparse.Namespace, environ: Mapping[str, str]
) -> Iterator[Found]:
    painted, shown = _console(state, NAME, environ, options)
    yield Found("second console: first paint, empty queue", empty[0], "s", PAINT)
    yield Found("second console: first paint", painted, "s", max(PAINT, empty[0]))
    yield Found("second console: GPUs shown, empty queue", empty[1], "s")
    yield Found("second console: array shown", shown, "s", empty[1] + SHOWN_AFTER)
    idle = _figures(state, NAME, environ, options.seconds)
    yield Found("second console: CPU of a core while idle", idle.cpu * 100, "%", 5)
    yield Found("second console: memory", idle.resident / MB, "MB", 200)


def _console(state: str, marker: str, environ: Mapping[str, str], options: argparse.Namespace) -> tuple[float, float]:
    """Return the medians of the seconds until a console paints, and until it shows the marker; the first is warm-up."""
    runs = [_figures(state, marker, environ, 0) for _ in range(options.times + 1)][1:]
    return statistics.median(run.first_paint for run in runs), statistics.median(run.first_content for run in runs)


def _figures(state: str, marker: str, environ: Mapping[str, str], seconds: float) -> Figures:
    settle = 5 if seconds else 0
    return measure(ours(state), environ, seconds=seconds, settle=settle, characters=VISIBLE, marker=marker)


def ours(state: str, *arguments: str) -> list[str]:
    """Return the command line of gputui."""
    return [sys.executable, "-m", "gputui", "--state", state, *MACHINE, *arguments]


def _submit(state: str, count: int) -> list[str]:
    options = ["--host", "--name", NAME, "--gpus", "1", "--time-limit", "1h", "--array", f"0-{count - 1}"]
    return ours(state, "submit", *options, "--", "sleep", "3600")


@contextmanager
def _serving(state: str, environ: Mapping[str, str]) -> Iterator[int]:
    """Run `serve` for the time of a block; yield its process id."""
    with subprocess.Popen(ours(state, "serve"), env=dict(environ), stderr=subprocess.DEVNULL) as process:
        try:
            _until(lambda: (Path(state) / "scheduler.lock").exists(), "serve leads")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)


def _end_jobs(state: str, environ: Mapping[str, str]) -> None:
    """End the running elements."""
    subprocess.run(ours(state, "cancel", "1"), env=dict(environ), check=False, capture_output=True)
    with _serving(state, environ):
        _until(lambda: len(_lines(ours(state, "queue"), environ)) <= 1, "the elements are over")


def _until(holds: Callable[[], bool], what: str, patience: float = 120) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"not within {patience:.0f} s: {what}")
        time.sleep(0.2)


def _lines(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    done = subprocess.run(command, capture_output=True, check=True, text=True, env=dict(environ))
    return done.stdout.splitlines()


def _run(command: Sequence[str], environ: Mapping[str, str]) -> tuple[float, float]:
    """Return the wall and CPU seconds of a command; infinite if it fails."""
    begun, before = time.perf_counter(), _cpu_of_children()
    done = subprocess.run(command, capture_output=True, check=False, env={**environ, "COLUMNS": "120"})
    if done.returncode:
        print(f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()}", file=sys.stderr)
        return float("inf"), float("inf")
    return time.perf_counter() - begun, _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _of_runs(what: str, runs: Sequence[tuple[float, float]], most: float | None = None) -> Found:
    """Return the medians of several runs of a command."""
    wall, cpu = (statistics.median(values) for values in zip(*runs, strict=True))
    return Found(what, wall, "s", most, cpu)


def _bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.arrays", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="elements of the array")
    parser.add_argument("--times", type=int, default=3, help="runs of each command")
    parser.add_argument("--seconds", type=float, default=20, help="length of each measurement of what is idle")
    parser.add_argument("--json", action="store_true", help="print a JSON object a figure")
    return parser.parse_args()


if __name__ == "__main__":
    main()
