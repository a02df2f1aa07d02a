"""The check of a machine with GPUs, run over stand-ins of NVML, nvidia-smi and CUDA."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpus.standin import StandIn, build

HERE = Path(__file__).parent
GPUS = 2


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of a machine with two GPUs, whose NVML shows the processes that use its CUDA."""
    users, programs = tmp_path / "users", tmp_path / "bin"
    users.mkdir()
    programs.mkdir()
    smi = programs / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "nvidia_smi.py"}" "$@"\n')
    smi.chmod(0o755)
    library = tmp_path / "libcuda.so.1"
    compile_it = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f'-DUSERS="{users}"']
    subprocess.run([*compile_it, "-o", str(library), str(HERE / "cuda.c")], check=True)
    standin = StandIn(tmp_path / "behaviour")
    standin.write(gpus=GPUS)
    ended = threading.Event()
    follower = threading.Thread(target=follow, args=(users, standin, ended))
    follower.start()
    yield {
        **os.environ,
        **standin.environment,
        "LD_LIBRARY_PATH": f"{build()}:{tmp_path}",
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(HERE.parents[1]),
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    ended.set()
    follower.join()


def follow(users: Path, standin: StandIn, ended: threading.Event) -> None:
    """Show each process that uses CUDA, with a load after the duty on its command line, until it ends."""
    while not ended.wait(0.1):
        lines = []
        for user in sorted(users.iterdir()):
            pid, gpu = user.name.split("-")
            with contextlib.suppress(FileNotFoundError):
                words = Path("/proc", pid, "cmdline").read_bytes().decode().split("\0")
                if len(words) < 3:  # it has ended
                    continue
                duty = float(words[-3])
                lines += [f"gpu {gpu} process {pid} {3 << 30} C", f"gpu {gpu} used {4 << 30}"]
                lines += [f"gpu {gpu} util {duty * 100:.0f}", f"gpu {gpu} power {70000 + duty * 600000:.0f}"]
        if ("count 2", *lines) != standin.lines:
            standin.write(*lines, gpus=GPUS)


def check(machine: dict[str, str], *options: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py"), *options], env=machine, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\n0 values differ\n" in done.stdout
    return done.stdout


@pytest.mark.nvml
def test_readings_agree_with_nvidia_smi(machine: dict[str, str]) -> None:
    printed = check(machine, "--seconds", "2", "--no-load")
    same = {line.split("  ")[0] for line in printed.splitlines() if line.endswith("same")}
    assert {"UUIDs", "GPU 1 model", "idle: GPU 1 power [W]", "doctor: driver", "console ends at q"} <= same


@pytest.mark.nvml
@pytest.mark.long
def test_loads_are_found_as_they_are(machine: dict[str, str]) -> None:
    printed = check(machine, "--seconds", "8")
    same = {line.split("  ")[0] for line in printed.splitlines() if line.endswith("same")}
    assert {
        "load 1: GPU 1 utilization [fraction]",
        "processes on the GPUs",
        "state with a foreign load",
        "state after the load",
        "job 3 sees its GPUs",
        "telemetry, duty 0.5: energy [J]",
        "telemetry, duty 1: utilization",
    } <= same


@pytest.mark.nvml
@pytest.mark.long
def test_a_difference_is_told(machine: dict[str, str]) -> None:
    smi = Path(machine["PATH"].split(":")[0]) / "nvidia-smi"
    smi.write_text(smi.read_text().replace('"$@"', '"$@" | sed s/H100/H200/'))
    command = [sys.executable, str(HERE / "run.py"), "--seconds", "1", "--no-load"]
    done = subprocess.run(command, env=machine, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "GPU 0 model" in next(line for line in done.stdout.splitlines() if line.endswith("DIFFERS"))


def test_a_machine_without_gpus_is_told(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(HERE / "run.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "no GPU: nvidia-smi is missing or fails here\n")
