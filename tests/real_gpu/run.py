"""Compares gputui with a real NVIDIA driver: readings beside nvidia-smi's own, host jobs, telemetry, console.

    python tests/real_gpu/run.py        # or: nox -s gpu

It needs a GPU, nvidia-smi and an installed gputui; no Docker, no toolkit and no other package. It takes about four
minutes, leaves GPUs and settings as they are, and prints a table: value, ours, nvidia-smi's, verdict. It exits with 1
if any verdict is DIFFERS, and with 2 where there is no GPU. Other people's processes make figures differ: use a quiet
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

LOAD = str(Path(__file__).with_name("load.py"))
MIB = 1024**2
KEPT_MIB = 3000
"""Memory that a load holds on each GPU."""
SETTLING = 5.0
"""Seconds at the beginning of a phase that are not compared: clocks and averages follow the load late."""
WAIT = 60.0

NUMBERS: dict[str, tuple[str, str, float, float]] = {
    "utilization": ("utilization.gpu", "fraction", 0.12, 0.0),
    "memory_utilization": ("utilization.memory", "fraction", 0.12, 0.0),
    "memory_used": ("memory.used", "bytes", 64 * MIB, 0.02),
    "temperature": ("temperature.gpu", "°C", 3, 0.0),
    "power": ("power.draw", "W", 10, 0.06),
    "sm_clock": ("clocks.sm", "MHz", 60, 0.05),
    "memory_clock": ("clocks.mem", "MHz", 10, 0.01),
}
"""Our reading: nvidia-smi's field, unit, and how far the medians of a phase may be apart, absolute or relative."""
FACTS = {
    "index": "index",
    "model": "name",
    "pci_bus_id": "pci.bus_id",
    "memory_total": "memory.total",
    "persistence": "persistence_mode",
    "mig_enabled": "mig.mode.current",
}
SLOW = {
    "power_limit": "enforced.power.limit",
    "fan": "fan.speed",
    "ecc_corrected": "ecc.errors.corrected.volatile.total",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
}
SCALES = {"memory_used": MIB, "memory_total": MIB, "utilization": 0.01, "memory_utilization": 0.01, "fan": 0.01}


class Report:
    """The table, printed row by row."""

    def __init__(self) -> None:
        self.differing = 0
        print(f"{'value':<44} {'ours':<30} {'nvidia-smi':<30} verdict")

    def add(self, value: str, ours: object, theirs: object, *, good: bool | None) -> None:
        """Print a row; `good` is None where there is nothing to compare."""
        self.differing += good is False
        verdict = {True: "same", False: "DIFFERS", None: "not compared"}[good]
        print(f"{value:<44} {text(ours):<30} {text(theirs):<30} {verdict}", flush=True)


def text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def output(*words: str) -> str | None:
    """Return what a command prints, or None if it fails."""
    if shutil.which(words[0]) is None:
        return None
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def smi(*fields: str) -> list[list[str]] | None:
    """Return nvidia-smi's values of each GPU; None if this nvidia-smi does not know a field."""
    printed = output("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    return None if printed is None else [[cell.strip() for cell in line.split(",")] for line in printed.splitlines()]


def number(cell: str, name: str) -> float | None:
    """Return a figure of nvidia-smi in our unit; None for `[N/A]`."""
    try:
        return float(cell) * SCALES.get(name, 1)
    except ValueError:
        return None


class Ours:
    """`gputui probe`, whose lines are kept as they come."""

    def __init__(self, gputui: str) -> None:
        self._process = subprocess.Popen(
            [gputui, "probe", "--every", "0.5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts: dict[str, Any] | None = None
        self.slow: dict[str, dict[str, Any]] = {}
        self.samples: list[tuple[float, dict[str, Any]]] = []
        self.processes: dict[str, set[int]] = {}
        self.hosts_pids = True
        self.failure: dict[str, Any] | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            message = json.loads(line)
            if message["kind"] == "facts":
                self.facts = message
            elif message["kind"] == "failed":
                self.failure = message
            for sample in message.get("samples", ()):
                self.samples.append((time.monotonic(), sample))
                self.slow[sample["uuid"]] = sample.get("slow") or self.slow.get(sample["uuid"], {})
                if sample.get("processes") is not None:
                    self.processes[sample["uuid"]] = {process["pid"] for process in sample["processes"]}
            self.hosts_pids = message.get("hosts_pids", self.hosts_pids)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(WAIT)


class Theirs:
    """`nvidia-smi` in its own loop, beside ours."""

    def __init__(self) -> None:
        fields = ",".join(["uuid", *(row[0] for row in NUMBERS.values())])
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", "-lms", "500"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.samples: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            uuid, *cells = (cell.strip() for cell in line.split(","))
            values = {name: number(cell, name) for name, cell in zip(NUMBERS, cells, strict=True)}
            self.samples.append((time.monotonic(), {"uuid": uuid, **values}))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(WAIT)


def middle(samples: Sequence[tuple[float, dict[str, Any]]], uuid: str, name: str, since: float) -> float | None:
    """Return the median since then; of utilization the mean, since it jumps."""
    found = [
        sample[name]
        for at, sample in list(samples)
        if at >= since and sample["uuid"] == uuid and sample.get(name) is not None
    ]
    if not found:
        return None
    return statistics.fmean(found) if name.endswith("utilization") else statistics.median(found)


def agree(ours: float | None, theirs: float | None, absolute: float, relative: float) -> bool | None:
    """Tell whether two figures are the same within limits; None if neither exists."""
    if ours is None or theirs is None:
        return None if ours is theirs else False
    return abs(ours - theirs) <= max(absolute, relative * abs(theirs))


def passed() -> tuple[str, ...]:
    """Return options that give jobs this process's search path, where the driver's libraries need one."""
    return ("-e", "LD_LIBRARY_PATH") if "LD_LIBRARY_PATH" in os.environ else ()


def until(found: Callable[[], Any], seconds: float = WAIT) -> Any:
    """Return the first true answer, or the last one when the time is over."""
    end = time.monotonic() + seconds
    while not (answer := found()) and time.monotonic() < end:
        time.sleep(0.2)
    return answer


@contextlib.contextmanager
def load(uuids: Sequence[str], seconds: float, duty: float, mebibytes: int = KEPT_MIB) -> Iterator[set[int]]:
    """Keep these GPUs busy meanwhile, one process for each; yield their pids once all have begun."""
    running = [
        subprocess.Popen(
            [sys.executable, LOAD, str(seconds), str(duty), str(mebibytes)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid},
            stdout=subprocess.PIPE,
            text=True,
        )
        for uuid in uuids
    ]
    try:
        for process in running:
            if not (process.stdout and process.stdout.readline()):
                raise SystemExit("the load could not be started: is CUDA's driver library (libcuda.so.1) there?")
        yield {process.pid for process in running}
    finally:
        for process in running:
            process.kill()
            process.wait()


class Machine:
    """What is compared, phase by phase; `seconds` is the length of a phase."""

    def __init__(self, gputui: str, state: Path, seconds: float, *, loads: bool) -> None:
        self.report = Report()
        self.gputui, self.state, self.seconds, self.loads = gputui, state, seconds, loads
        self.ours, self.theirs = Ours(gputui), Theirs()
        until(lambda: (self.ours.facts and self.ours.slow) or self.ours.failure)
        if self.ours.failure or not self.ours.facts:
            raise SystemExit(f"gputui probe: {self.ours.failure or 'no readings'}")
        self.gpus: dict[str, dict[str, Any]] = {gpu["uuid"]: gpu for gpu in self.ours.facts["gpus"]}
        self.whole = [uuid for uuid in self.gpus if uuid.startswith("GPU-")]
        self.usable = [uuid for uuid in self.whole if not self.gpus[uuid].get("mig_enabled")]

    def call(self, *words: str) -> str:
        """Return what a command of gputui prints, whatever its exit code."""
        command = [self.gputui, "--state", str(self.state), "--runtime", "process", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False).stdout

    def name(self, uuid: str) -> str:
        return f"GPU {self.gpus[uuid]['index']}"

    def compare_facts(self) -> None:
        """What does not change: names, UUIDs, memory, limits, modes, driver."""
        listed = [row[0] for row in smi("uuid") or []]
        self.report.add("UUIDs", len(self.whole), len(listed), good=sorted(self.whole) == sorted(listed))
        driver = (smi("driver_version") or [["?"]])[0][0]
        assert self.ours.facts
        self.report.add("driver", self.ours.facts.get("driver"), driver, good=self.ours.facts.get("driver") == driver)
        for source, names in ((self.gpus, FACTS), (self.ours.slow, SLOW)):
            for name, field in names.items():
                theirs = {row[0]: row[1] for row in smi("uuid", field) or ()}
                for uuid in self.whole:
                    self._fact(uuid, name, source.get(uuid, {}).get(name), theirs.get(uuid))

    def _fact(self, uuid: str, name: str, ours: Any, theirs: str | None) -> None:
        if theirs is None:  # this nvidia-smi does not know the field
            self.report.add(f"{self.name(uuid)} {name}", ours, "-", good=None)
        elif isinstance(ours, bool):
            known = {"Enabled": True, "Disabled": False}.get(theirs)
            self.report.add(f"{self.name(uuid)} {name}", ours, theirs, good=None if known is None else ours == known)
        elif isinstance(ours, str):
            same = ours.lower().lstrip("0") == theirs.lower().lstrip("0")
            self.report.add(f"{self.name(uuid)} {name}", ours, theirs, good=same)
        else:
            figure = number(theirs, name)
            self.report.add(f"{self.name(uuid)} {name}", ours, figure, good=agree(ours, figure, 0, 0.001))

    def compare_links(self) -> None:
        """NVLink and PCIe paths between GPUs, beside `nvidia-smi topo -m`."""
        lines = [line.split() for line in (output("nvidia-smi", "topo", "-m") or "").splitlines()]
        rows = {row[0].removeprefix("GPU"): row[1:] for row in lines if row and row[0].startswith("GPU")}
        by_index = {str(self.gpus[uuid]["index"]): uuid for uuid in self.whole}
        for index, row in rows.items():
            links = (
                {link["peer"]: link for link in self.gpus[by_index[index]].get("links", ())}
                if index in by_index
                else {}
            )
            for peer, theirs in zip(by_index, row, strict=False):
                if peer == index:
                    continue
                link = links.get(by_index[peer])
                ours = None if link is None else f"NV{link['lanes']}" if link["kind"] == "NVLINK" else link["kind"]
                self.report.add(f"GPU {index} to GPU {peer}", ours, theirs, good=ours == theirs)

    def compare_phase(self, title: str) -> None:
        """Means and medians of the readings since now, beside each other."""
        since = time.monotonic() + min(SETTLING, self.seconds / 3)
        time.sleep(self.seconds)
        for uuid in self.whole:
            for name, (_, unit, absolute, relative) in NUMBERS.items():
                ours, theirs = (middle(side.samples, uuid, name, since) for side in (self.ours, self.theirs))
                good = agree(ours, theirs, absolute, relative)
                self.report.add(f"{title}: {self.name(uuid)} {name} [{unit}]", ours, theirs, good=good)
            self._throttle(title, uuid)

    def _throttle(self, title: str, uuid: str) -> None:
        """Compare the reasons for lower clocks once: they change from reading to reading."""
        rows = smi("uuid", "clocks_event_reasons.active") or smi("uuid", "clocks_throttle_reasons.active") or []
        theirs = {row[0]: row[1] for row in rows}.get(uuid)
        ours = next(
            (sample.get("throttle") for _, sample in reversed(self.ours.samples) if sample["uuid"] == uuid), None
        )
        known = theirs is not None and theirs.startswith("0x") and ours is not None
        same = known and theirs is not None and int(theirs, 16) == ours
        mine = None if ours is None else hex(ours)
        self.report.add(f"{title}: {self.name(uuid)} clock reasons", mine, theirs, good=same or None)

    def compare_processes(self, pids: set[int]) -> None:
        """The load's processes, in the driver's lists; in a container both lists may be empty."""
        printed = output("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader") or ""
        theirs = {int(line.split(",")[1]) for line in printed.splitlines() if line.strip()}
        until(lambda: set().union(*self.ours.processes.values()) >= theirs, 15)
        ours = set().union(*self.ours.processes.values())
        self.report.add("processes on the GPUs", sorted(ours), sorted(theirs), good=ours == theirs)
        inside = not self.ours.hosts_pids
        self.report.add(
            "of these the load's",
            len(ours & pids),
            "in a container" if inside else len(theirs & pids),
            good=None if inside else pids <= ours,
        )
        rows = json.loads(self.call("gpus", "--json"))
        states = sorted({row["state"] for row in rows if row["uuid"] in self.usable})
        self.report.add("state with a foreign load", states, "FOREIGN", good=states == ["FOREIGN"])

    def compare_idle(self) -> None:
        """GPUs are free again after the load, and busy ones of others stay as they are."""

        def states() -> list[str]:
            return sorted({row["state"] for row in json.loads(self.call("gpus", "--json"))})

        began = time.monotonic()
        until(lambda: states() == ["FREE"], 20)
        self.report.add("state after the load", states(), "FREE", good=states() == ["FREE"])
        print(f"    {time.monotonic() - began:.1f} s after its end")

    def check_doctor(self) -> None:
        for found in json.loads(self.call("doctor", "--json")):
            concerns = found["name"] in {"driver", "gpus", "probe", "process"} or "gpu" in found["text"].lower()
            good = found["level"] != "fail" if concerns else None
            self.report.add(f"doctor: {found['name']}", f"{found['level']}: {found['text']}", "-", good=good)

    def check_jobs(self) -> None:
        """Host jobs see exactly their GPUs, and the telemetry of a known load is that load."""
        every = len(self.gpus)
        wanted = [*([1] * min(every, 2)), every]
        script = [sys.executable, LOAD]
        ids = [
            self.call("submit", "--host", *passed(), "--gpus", str(gpus), "--", *script, "--sees").strip()
            for gpus in wanted
        ]
        for one in ids:
            shown = until(partial(self._ended, one))
            attempt = shown["attempts"][-1]
            seen = json.loads(self.call("logs", one).splitlines()[-1] or "[]")
            held = sorted(uuid.split("-", 1)[1].lower() for uuid in attempt["gpus"])
            good = shown["state"] == "COMPLETED" and sorted(seen) == held
            self.report.add(f"job {one} sees its GPUs", len(held), len(seen), good=good)
        for duty in (1.0, 0.5):
            self._measured(duty)

    def _measured(self, duty: float) -> None:
        words = [sys.executable, LOAD, str(self.seconds), str(duty), str(KEPT_MIB)]
        one = self.call("submit", "--host", *passed(), "--gpus", "1", "--", *words).strip()
        began = time.monotonic()
        attempt = until(partial(self._ended, one), WAIT + self.seconds)["attempts"][-1]
        (uuid,), told = attempt["gpus"], attempt["telemetry"]
        beside = [row for at, row in list(self.theirs.samples) if at >= began and row["uuid"] == uuid]
        power = statistics.fmean(row["power"] or 0 for row in beside)
        for name, ours, theirs, absolute, relative in (
            (
                "utilization",
                told["utilization"]["mean"],
                statistics.fmean(row["utilization"] for row in beside),
                0.15,
                0,
            ),
            ("energy [J]", told["energy"], power * told["seconds"], 200, 0.15),
            ("peak of memory", told["gpu_memory"]["peak"], max(row["memory_used"] for row in beside), 600 * MIB, 0.05),
        ):
            title = f"telemetry, duty {duty:g}: {name}"
            self.report.add(title, ours, theirs, good=agree(ours, theirs, absolute, relative))

    def _ended(self, one: str) -> Any:
        shown = json.loads(self.call("show", one, "--json") or "{}")
        return shown if shown.get("ended_at") and shown["attempts"][-1].get("telemetry") else None

    def check_console(self) -> None:
        """Open the console in a terminal of 200x50 for some seconds; it shows each GPU's model and ends at `q`."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS="200", LINES="50")
            os.execv(self.gputui, [self.gputui, "--state", str(self.state), "--runtime", "process"])
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        painted = bytearray()

        def read() -> None:
            with contextlib.suppress(OSError):
                while data := os.read(terminal, 65536):
                    painted.extend(data)

        threading.Thread(target=read, daemon=True).start()
        short = {str(gpu["model"]).replace("NVIDIA ", "").split()[0] for gpu in self.gpus.values()}
        shows = until(lambda: all(model.encode() in painted for model in short) and b"%" in painted, 15)
        self.report.add("console shows the models", sorted(short) if shows else "no", "-", good=bool(shows))
        os.write(terminal, b"q")
        ended = until(lambda: os.waitpid(pid, os.WNOHANG) != (0, 0), 15)
        self.report.add("console ends at q", bool(ended), "-", good=bool(ended))
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)

    def run(self) -> None:
        self.compare_facts()
        self.compare_links()
        self.check_doctor()
        self.compare_phase("idle")
        if self.loads:
            for duty in (1.0, 0.5):
                with load(self.usable, 600, duty) as pids:
                    self.compare_phase(f"load {duty:g}")
                    if duty == 1:
                        self.compare_processes(pids)
            self.compare_idle()
        scheduler = subprocess.Popen(
            [self.gputui, "--state", str(self.state), "--runtime", "process", "serve"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: (self.state / "api.sock").exists())  # or the console would schedule, and ask before it ends
            if self.loads:
                self.check_jobs()
            self.check_console()
        finally:
            scheduler.terminate()
            scheduler.wait(WAIT)

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25, help="length of a phase")
    parser.add_argument("--no-load", action="store_true", help="compare readings only; runs no kernels")
    chosen = parser.parse_args()
    if smi("uuid") is None:
        print("no GPU: nvidia-smi is missing or fails here", file=sys.stderr)
        return 2
    beside = Path(sys.executable).with_name("gputui")
    gputui = str(beside) if beside.exists() else shutil.which("gputui")
    if gputui is None:
        print("gputui is not installed beside this Python", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gputui-real-gpu-") as state:
        machine = Machine(gputui, Path(state), chosen.seconds, loads=not chosen.no_load)
        try:
            machine.run()
        finally:
            machine.close()
    print(f"\n{machine.report.differing} values differ")
    return 1 if machine.report.differing else 0


if __name__ == "__main__":
    sys.exit(main())
