"""The console over a cluster whose nodes are all read: 64 nodes of eight busy GPUs, 200 x 50.

python -m bench.nodes [--nodes 64] [--seconds 20] [--interval 2] [--off] [--json]

The cluster is one in memory, so that only the console and its probes' processes are measured: Slurm's own commands cost
their two processes per interval on top. Probes are `cat`s of pipes into which this program writes what probes write.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench._measure import Terminal, cpu_seconds, machine, resident, tree
from gputui.gpus.node_probes import USUAL_NODES

GPUS = 8
GIB = 1024**3
UUID = "GPU-{:08x}-0000-4000-8000-{:012x}"
CONSOLE = """
import sys
from gputui.bootstrap import clusters
from gputui.cli.main import run
from gputui.domain.job_spec import Submission
from tests.cluster.fake import FakeCluster
from tests.factories import spec
from tests.gpus.watching import SystemClock
nodes = int(sys.argv[1])
cluster = FakeCluster(SystemClock(), {f"gpu{number:02}": 8 for number in range(nodes)})
for number in range(2 * nodes):
    cluster.submit([Submission(spec(gpus=4, name=f"job{number}"))], str(number))
clusters.open_cluster = lambda options: cluster
sys.exit(run([]))
"""


def main() -> None:
    """Measure and print."""
    options = _options()
    print(f"machine: {machine()}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gputui-bench-") as place, _probes(Path(place), options) as environ:
        command = [sys.executable, "-c", CONSOLE, str(options.nodes)]
        with Terminal(command, environ) as terminal:
            terminal.until_shown("gpu05", 60)
            terminal.pump(options.settle)
            figures = _measured(terminal, options.seconds)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    print(
        f"{options.nodes} nodes of {GPUS} GPUs, "
        + ("not read" if options.off else f"cluster.probe_interval {options.interval} s")
    )
    for name, value in figures.items():
        print(f"{name:<44}{value:>10.2f}")


def _measured(terminal: Terminal, seconds: float) -> dict[str, float]:
    pids = [pid for pid in tree(terminal.pid) if pid != terminal.pid]
    begun, own, all_of_them = time.monotonic(), _own_cpu(terminal.pid), cpu_seconds(terminal.pid)
    written = terminal.pump(seconds)
    passed = time.monotonic() - begun
    return {
        "CPU of one core, console, %": 100 * (_own_cpu(terminal.pid) - own) / passed,
        "CPU of one core, with probes' commands, %": 100 * (cpu_seconds(terminal.pid) - all_of_them) / passed,
        "processes of probes": float(len(pids)),
        "memory of the console, RSS, MB": resident(terminal.pid) / 1e6,
        "terminal output, kB/s": written / passed / 1000,
    }


def _own_cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _probes(place: Path, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Yield the environment of a console whose probes read pipes that are filled until the block ends."""
    own = {"XDG_STATE_HOME": f"{place}/state", "XDG_RUNTIME_DIR": f"{place}/memory"}
    environ = {**os.environ, **own, "GPUTUI_CONFIG": os.devnull, "GPUTUI_CLUSTER": "slurm"}
    if options.off:
        yield environ
        return
    names = [f"gpu{number:02}" for number in range(options.nodes)]
    for name in names:
        os.mkfifo(place / name)
    over = threading.Event()
    each = options.interval * max(1.0, options.nodes / USUAL_NODES)  # as probes of a large cluster are told
    writer = threading.Thread(target=_write, args=(place, names, each, over), daemon=True)
    writer.start()
    words = f"""sh -c 'exec cat "{place}/$0"' {{node}}"""
    interval = f"{options.interval}s"
    yield environ | {
        "GPUTUI_CLUSTER_PROBE": "ssh",
        "GPUTUI_CLUSTER_PROBE_COMMAND": words,
        "GPUTUI_CLUSTER_PROBE_INTERVAL": interval,
    }
    over.set()
    writer.join()


def _write(place: Path, names: list[str], interval: float, over: threading.Event) -> None:
    """Write each node's GPUs once its probe has begun, then readings that change."""
    pipes: dict[str, int] = {}
    second = 0
    while not over.is_set():
        begun = time.monotonic()
        second += 1
        for number, name in enumerate(names):
            with suppress(OSError):  # nobody reads it yet
                if name not in pipes:
                    pipes[name] = os.open(place / name, os.O_WRONLY | os.O_NONBLOCK)
                    os.write(pipes[name], _facts(number))
                os.write(pipes[name], _sweep(number, second))
            over.wait(interval / len(names) / 2)  # as those of many machines, they do not come all at once
        over.wait(max(0.0, interval - (time.monotonic() - begun)))
    for pipe in pipes.values():
        os.close(pipe)


def _facts(node: int) -> bytes:
    uuids = [UUID.format(node, index) for index in range(GPUS)]
    links = [[{"peer": peer, "kind": "NVLINK", "lanes": 18} for peer in uuids if peer != uuid] for uuid in uuids]
    gpus = [
        {"index": index, "minor": index, "uuid": uuid, "model": "NVIDIA H200", "memory_total": 141 * GIB}
        | {"links": links[index], "power_limit": 700.0}
        for index, uuid in enumerate(uuids)
    ]
    return json.dumps({"kind": "facts", "driver": "570.1", "gpus": gpus}).encode() + b"\n"


def _sweep(node: int, second: int) -> bytes:
    samples = []
    for index in range(GPUS):
        load = (37 * node + 11 * index + 7 * second) % 100
        sample = {"uuid": UUID.format(node, index), "utilization": load / 100, "memory_used": load * GIB}
        sample |= {"memory_total": 141 * GIB, "temperature": 30 + load / 3, "power": 90 + 5 * load, "sm_clock": 1980}
        sample |= {"memory_clock": 3200, "throttle": 0, "slow": {"power_limit": 700.0, "ecc_uncorrected": 0}}
        if second % 2:
            sample["processes"] = [
                {"pid": 1000 + index, "memory": load * GIB, "user": "alice", "command": "python train.py", "ticks": 5}
            ]
        samples.append(sample)
    return json.dumps({"kind": "sweep", "samples": samples, "xids": []}).encode() + b"\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.nodes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20, help="length of the measurement")
    parser.add_argument("--settle", type=float, default=8, help="pause before it")
    parser.add_argument("--interval", type=float, default=2, help="cluster.probe_interval, in seconds")
    parser.add_argument("--off", action="store_true", help="the same console without probes")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
