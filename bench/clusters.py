"""The console over a simulated Slurm cluster: from a key to its output, while jobs start and end.

python -m bench.clusters [--jobs 3000] [--nodes 64] [--keys 200] [--json]

Programs that answer as Slurm's do print 8 GPUs a node, jobs of two GPUs on all of them, and waiting ones. Every four
seconds an eighth of the running jobs have ended and others have begun, and back.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench._measure import Terminal, machine, percentile
from bench.console import DOWN, UP

GPUS = 8
"""Number of GPUs of a node."""
AT_MOST = 0.050
"""Seconds that the 99th percentile may be."""
MARKER = "train-"
_USERS = ("alice", "bob", "carol", "dan", "eve")
_SQUEUE = """#!/bin/sh
for word; do case $word in *%A*) mark=${{word%%\\%A*}};; esac; done
exec sed "s/MARK/$mark/g" {place}/jobs.$(( $(date +%s) / 4 % 2 ))
"""
_SCONTROL = """#!/bin/sh
case "$*" in
  "show config") exec cat {place}/config;;
  ping*) echo "Slurmctld(primary) at head is UP";;
  *) exec awk -v place={place} -f {place}/answers.awk;;
esac
"""
_ANSWERS = """
BEGIN { while ((getline line < (place "/details")) > 0) { split(line, word, /[= ]/); told[word[2]] = line } }
/^show nodes/ { while ((getline line < (place "/nodes")) > 0) print line }
/^show job / { print told[$3] }
/^show hostnames/ { print $3 }
"""
_CONFIG = """Configuration data as of {now}
AccountingStorageType   = accounting_storage/none
BOOT_TIME               = {now}
ClusterName             = bench
SlurmUser               = slurm(64030)
SlurmctldHost[0]        = head(10.0.0.1)
SLURM_VERSION           = 23.11.4
"""


def main() -> None:
    """Measure and print."""
    options = _options()
    print(f"machine: {machine()}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as folder:
        environ = simulated(Path(folder), options.jobs, options.nodes)
        times = pressed(Path(folder), environ, options.keys)
    middle, high = statistics.median(times), percentile(times, 0.99)
    if options.json:
        print(json.dumps({"p50": middle, "p99": high, "at_most": AT_MOST}))
    else:
        cluster = f"{options.jobs:,} jobs, {options.nodes} nodes of {GPUS} GPUs"
        print(f"key to output, {cluster}: p50 {middle * 1000:.0f} ms, p99 {high * 1000:.0f} ms of {options.keys} keys")
    sys.exit(high > AT_MOST)


def pressed(folder: Path, environ: dict[str, str], keys: int) -> list[float]:
    """Return the seconds from each key to its first output."""
    with Terminal([sys.executable, "-m", "gputui"], environ) as terminal:
        terminal.until_shown(MARKER)
        terminal.pump(5)
        return [terminal.press(UP if turn % 2 else DOWN) for turn in range(keys)]


def simulated(folder: Path, jobs: int, nodes: int) -> dict[str, str]:
    """Write the programs and their answers; return the environment of a console over them."""
    now = int(time.time())
    for turn in (0, 1):
        (folder / f"jobs.{turn}").write_text("".join(_rows(jobs, nodes, turn, now)))
    (folder / "nodes").write_text("".join(map(_node, range(nodes))))
    (folder / "details").write_text("".join(_details(jobs, nodes, now)))
    (folder / "config").write_text(_CONFIG.format(now=now))
    (folder / "answers.awk").write_text(_ANSWERS)
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {"squeue": _SQUEUE, "scontrol": _SCONTROL}.items():
        (programs / name).write_text(text.format(place=folder))
        (programs / name).chmod(0o755)
    own = {"XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config.d", "GPUTUI_CLUSTER": "slurm"}
    return {**os.environ, **own, "PATH": f"{programs}:{os.environ['PATH']}"}


def _rows(jobs: int, nodes: int, turn: int, now: int) -> Iterator[str]:
    """Yield the jobs as squeue lists them; in turn 1 an eighth of those that run has ended, and others run there."""
    slots = nodes * GPUS // 2
    for number in range(1, jobs + 1):
        slot = (number - 1) % slots
        runs = (number - 1) // slots == (1 if turn and slot % 8 == 0 else 0)
        has_ended = number <= slots and not runs
        state = "RUNNING" if runs else "COMPLETED" if has_ended else "PENDING"
        started = str(now - 900) if runs or has_ended else "N/A"
        ended = str(now - 1) if has_ended else str(now + 86400) if runs else "N/A"
        node = _name(slot * 2 // GPUS) if runs or has_ended else ""
        reason = "None" if runs or has_ended else "Resources" if number == slots + 1 else "Priority"
        user = _USERS[number % 5]
        plain = f"{number}|{number}|N/A|{state}|{reason}|{now - 3600}|{started}|{ended}|1-00:00:00|0|{10**9 - number}"
        plain += f"|{user}|{user}|gpu|{node}|1|gres:gpu:2|(null)"
        yield f"MARK{plain}MARK{MARKER}{number}MARKgputui:bench-{number}MARK(null)\n"


def _details(jobs: int, nodes: int, now: int) -> Iterator[str]:
    slots = nodes * GPUS // 2
    for number in range(1, min(jobs, 2 * slots) + 1):
        slot = (number - 1) % slots
        node, first = _name(slot * 2 // GPUS), slot * 2 % GPUS
        yield (
            f"JobId={number} JobName={MARKER}{number} UserId=x(1) JobState=RUNNING Reason=None Restarts=0 ExitCode=0:0 "
            f"StartTime={now - 900} NodeList={node} NumNodes=1   Nodes={node} CPU_IDs=0-7 Mem=1000 "
            f"GRES=gpu:h100:2(IDX:{first}-{first + 1}) Command=(null) WorkDir=/ TresPerNode=gres:gpu:2 \n"
        )


def _node(number: int) -> str:
    used = f"gpu:h100:{GPUS}(IDX:0-{GPUS - 1})"
    return (
        f"NodeName={_name(number)} Arch=x86_64 Gres=gpu:h100:{GPUS} GresUsed={used} State=ALLOCATED ThreadsPerCore=1\n"
    )


def _name(number: int) -> str:
    return f"node{number + 1:02}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.clusters", description=__doc__)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--keys", type=int, default=200, help="keys pressed")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
