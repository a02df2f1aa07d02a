"""Output of the console to the terminal: usually and with --slow, at rest and while a log floods.

python -m bench.thin [--seconds 20] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from bench._measure import Terminal, machine
from bench._standin import GPUS, busy_gpus
from bench.console import MODEL, QUIET, VISIBLE, console

FLOOD = 'i=0; while :; do i=$((i+1)); seq -f "step %g of many, loss 0.1234, lr 2e-05" $i $((i+1000)); sleep 0.5; done'
"""Command that prints 2,000 lines per second."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.thin", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="length of each measurement")
    parser.add_argument("--settle", type=float, default=6, help="pause between first paint and measurement")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with busy_gpus() as environ:
        print(f"machine: {machine()}", file=sys.stderr)
        found = {
            f"{words}, {pace}": written({**environ, **QUIET}, arguments, options.seconds, options.settle, flood=flood)
            for words, flood in (("idle", False), ("2,000 lines/s", True))
            for pace, arguments in (("usual", ()), ("--slow", ("--slow",)))
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{GPUS} busy GPUs, 200x50: bytes a second to the terminal")
    for name, value in found.items():
        print(f"{name:<28}{value:>10,.0f}")


def written(
    environ: Mapping[str, str], arguments: Sequence[str], seconds: float, settle: float, *, flood: bool
) -> float:
    """Return the bytes per second in steady state."""
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as state:
        command = console(state)
        if flood:
            job = [*command, "submit", "--host", "--time-limit", f"{round(seconds + settle + 20)}s", "--"]
            subprocess.run([*job, "sh", "-c", FLOOD], env=environ, check=True, stdout=subprocess.DEVNULL)
        with Terminal([*command, *arguments], environ) as terminal:
            terminal.until_painted(VISIBLE)
            terminal.pump(settle)
            terminal.must_show(MODEL)
            if flood:
                terminal.must_show("of many")
            before = terminal.written
            terminal.pump(seconds)
            found = (terminal.written - before) / seconds
        if flood:
            subprocess.run([*command, "cancel", "1"], env=environ, check=True, stdout=subprocess.DEVNULL)
            _end(command, environ)
    return found


def _end(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Run a scheduler that ends the job; leave none behind."""
    scheduler = subprocess.Popen([*command, "serve"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(100):
        live = subprocess.run([*command, "queue", "--json"], env=environ, check=True, capture_output=True)
        if not json.loads(live.stdout):
            break
    scheduler.terminate()
    scheduler.wait(20)


if __name__ == "__main__":
    main()
