"""The console beside nvitop: the same stand-in NVML, eight busy GPUs, 200 x 50, one run, taking turns.

python -m bench.console --nvitop PATH [--latency none|usual|slow] [--rounds 3] [--seconds 20] [--json]
python -m bench.console --paint [--rounds 9]    # only the first paint, beside a Textual app with one label

Both are measured as they are once installed and started before: modules compiled, and ours with a directory of its own
in which it remembers what a console remembers.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bench._jobs import store_waiting_jobs
from bench._measure import Figures, Terminal, cpu_seconds, machine, measure, middle, percentile
from bench._standin import GPUS, LATENCIES, busy_gpus, sleepers
from gputui.api.client import ApiClient, new_key
from gputui.api.http import NewJobs
from gputui.api.wire import to_sockets
from gputui.domain.errors import NoOwnerError
from gputui.domain.job_spec import JobSpec, Submission

VISIBLE = 200
"""Number of characters that count as first paint: the emptiest first frame of gputui has some 250, all at once."""
MODEL = "H100"
"""Model name of the stand-in's GPUs, which must appear on the screen."""
BARE = """
from textual.app import App
from textual.widgets import Label

class Bare(App):
    def compose(self):
        yield Label("x" * 300)

Bare().run()
"""
PAINT, PAINT_RATIO = 0.5, 1.5
"""Budgets of the first paint: seconds, and processor time over that of a Textual app with one label."""
QUIET = {"GPUTUI_SCHEDULER_HAND_OVER": "never", "XDG_STATE_HOME": "/dev/null"}
"""Settings with which a console ended by the benchmark leaves no scheduler, and no personal layout is used."""
UP, DOWN = b"\x1bOA", b"\x1bOB"
"""Cursor keys, as terminals send them to full-screen programs."""


def main() -> None:
    """Measure and print."""
    options = _options()
    if options.paint:
        sys.exit(print_paint(options.rounds))
    print(f"machine: {machine()}\nagainst: {_version(options.nvitop)}", file=sys.stderr)
    with busy_gpus(options.latency) as environ, at_home(environ) as environ:
        compared = compare(options, environ)
    with sleepers(GPUS) as pids, busy_gpus(options.latency, pids) as environ, at_home(environ) as environ:
        keys = key_latency(options, environ)
    if options.json:
        print(json.dumps({"figures": {name: _plain(runs) for name, runs in compared.items()}, "keys": keys}, indent=2))
        return
    print(table(compared))
    for name, seconds in keys.items():
        print(f"{name:<44} p50 {seconds[0] * 1000:.0f} ms, p99 {seconds[1] * 1000:.0f} ms, of {options.keys} keys")


@contextmanager
def at_home(environ: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Directory for compiled modules and preferences, as an installed program has it."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as place:
        kept = {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        yield {**kept, **QUIET, "PYTHONPYCACHEPREFIX": f"{place}/compiled", "XDG_STATE_HOME": f"{place}/state"}


def print_paint(rounds: int) -> bool:
    """Print seconds and processor time of the first paint, the least of runs in turns; return whether one is over."""
    print(f"machine: {machine()}", file=sys.stderr)
    spent: dict[str, list[tuple[float, float]]] = {"gputui": [], "a Textual app with one label": []}
    with busy_gpus("none") as environ, at_home(environ) as environ:
        for number in range(rounds + 1):
            for name, runs in spent.items():
                with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state:
                    command = console(state) if name == "gputui" else [sys.executable, "-c", BARE]
                    with Terminal(command, environ) as terminal:
                        found = terminal.until_painted(VISIBLE), cpu_seconds(terminal.pid)
                runs += [found] if number else []  # the first compiles
    least = {name: (min(wall for wall, _ in runs), min(cpu for _, cpu in runs)) for name, runs in spent.items()}
    for name, (wall, cpu) in least.items():
        print(f"{name:<28} {wall:.2f} s, {cpu:.2f} s of processor time")
    (seconds, ours), (_, bare) = least.values()
    print(f"first paint {seconds:.2f} s of at most {PAINT}, ratio {ours / bare:.2f} of at most {PAINT_RATIO}")
    return seconds > PAINT or ours / bare > PAINT_RATIO


def compare(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, list[Figures]]:
    """Measure the programs in turn, one run each, so that other load on the machine hits both."""
    runs: dict[str, list[Figures]] = {"gputui": []}
    if options.nvitop:
        runs["nvitop"] = []
    for number in range(options.rounds + 1):
        for name, done in runs.items():
            seconds, settle = (options.seconds, options.settle) if number else (0, 1)  # the first of all is not counted
            with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state:
                command = console(state) if name == "gputui" else nvitop(options.nvitop)
                figures = measure(command, environ, seconds=seconds, settle=settle, characters=VISIBLE, marker=MODEL)
            if number:
                done.append(figures)
                print(f"round {number}: {name} {figures.cpu:.1%} CPU", file=sys.stderr, flush=True)
    return runs


def key_latency(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """Return median and 99th percentile from a cursor key to its output; for gputui by the number of stored jobs."""
    found = {}
    for count, rate in itertools.product(options.jobs, options.submits):
        with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state:
            store_waiting_jobs(Path(state), count)
            name = f"key to output, gputui, {count:,} jobs stored, {rate:g} submits/s"
            with submitting(Path(state) / "api.sock", rate):
                found[name] = _pressed(console(state), environ, options)
    if options.nvitop and options.keys:
        found[f"key to output, nvitop, {GPUS} processes"] = _pressed(nvitop(options.nvitop), environ, options)
    return found


@contextmanager
def submitting(path: Path, rate: float) -> Iterator[None]:
    """Submit so many jobs a second through the socket of the console, as soon as there is one."""
    body, is_over = NewJobs((Submission(JobSpec(command=("true",), name="submitted"), held=True),)), threading.Event()
    client = ApiClient(to_sockets([path]))

    def submit() -> None:
        while rate and not is_over.wait(1 / rate):
            with suppress(NoOwnerError):
                client.request("POST", "/v1/jobs", body, key=new_key())

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _pressed(command: Sequence[str], environ: Mapping[str, str], options: argparse.Namespace) -> tuple[float, float]:
    with Terminal(command, environ) as terminal:
        terminal.until_shown(MODEL)
        terminal.pump(options.settle)
        times = [terminal.press(UP if turn % 2 else DOWN) for turn in range(options.keys)]
    return statistics.median(times), percentile(times, 0.99)


def console(state: str) -> list[str]:
    """Return the command line of a console that schedules."""
    return [sys.executable, "-m", "gputui", "--state", state, "--probe", "nvml", "--runtime", "process"]


def nvitop(path: str) -> list[str]:
    """Return the command line of nvitop with all panels and the same interval."""
    return [path, "--monitor", "full", "--interval", "1"]


def table(compared: Mapping[str, Sequence[Figures]]) -> str:
    """Return a row per figure, with the ratio of two programs: below 1 is less than the peer's."""
    rows = {name: middle(runs) for name, runs in compared.items()}
    shown = {
        "first paint, s": ("first_paint", "{:.2f}", 1),
        "first GPU on the screen, s": ("first_content", "{:.2f}", 1),
        "CPU of one core, %": ("cpu", "{:.2f}", 100),
        "wake-ups a second": ("wakeups", "{:.0f}", 1),
        "terminal output, kB/s": ("bytes_per_second", "{:.2f}", 1e-3),
        "memory of the tree, RSS, MB": ("resident", "{:.0f}", 1e-6),
        "memory of the tree, PSS, MB": ("proportional", "{:.0f}", 1e-6),
    }
    rounds = max(len(runs) for runs in compared.values())
    title = f"{GPUS} busy GPUs, 200x50, 1 s refresh, median of {rounds}"
    lines = [f"{title:<44}" + "".join(f"{name:>10}" for name in rows) + (f"{'ratio':>8}" if len(rows) == 2 else "")]
    for label, (field, form, factor) in shown.items():
        values = [getattr(figures, field) * factor for figures in rows.values()]
        ratio = f"{values[0] / values[1]:>8.2f}" if len(values) == 2 and values[1] else ""
        lines.append(f"{label:<44}" + "".join(f"{form.format(value):>10}" for value in values) + ratio)
    return "\n".join(lines)


def _plain(runs: Sequence[Figures]) -> list[dict[str, float]]:
    return [dataclasses.asdict(figures) for figures in runs]


def _version(path: str | None) -> str:
    if path is None:
        return "nothing: give --nvitop"
    return subprocess.run([path, "--version"], capture_output=True, check=True, text=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--nvitop", help="the nvitop to compare with: /some/venv/bin/nvitop")
    parser.add_argument("--latency", choices=LATENCIES, default="usual", help="how long the driver takes over calls")
    parser.add_argument("--paint", action="store_true", help="measure only the first paint, beside a bare Textual app")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="length of each measurement")
    parser.add_argument("--settle", type=float, default=5, help="pause between first paint and measurement")
    parser.add_argument("--jobs", type=int, nargs="*", default=[10_000], help="jobs stored while keys are pressed")
    parser.add_argument("--submits", type=float, nargs="*", default=[0, 5], help="jobs a second that come meanwhile")
    parser.add_argument("--keys", type=int, default=200, help="keys pressed")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
