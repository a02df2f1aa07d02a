"""The demo's job program: believable, the same for the same seed, and well-behaved at its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from itertools import pairwise
from typing import NamedTuple

from gputui.domain.text import plain_log
from tests.cases import cases

COMMAND = [sys.executable, "-m", "gputui.cli.trainer"]
AT_ONCE = ["--time-scale", "0"]


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in {"CUDA_VISIBLE_DEVICES", "GPUTUI_ATTEMPT"}}
    return {**kept, "PYTHONIOENCODING": "utf-8", **more}


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str, **more: str) -> Done:
    command = [*COMMAND, *AT_ONCE, *arguments]
    done = subprocess.run(command, capture_output=True, check=False, env=environment(**more), timeout=60)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"step +\d+/\d+ +loss (\d+\.\d+)", uncoloured(text))]


def test_a_run_prints_realistic_output_and_its_loss_falls_with_noise() -> None:
    done = run("--steps", "200")
    curve = losses(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(curve) == 40
    assert curve[-1] < 0.75 * curve[0]
    assert any(later > earlier for earlier, later in pairwise(curve))
    text = uncoloured(run("--steps", "200", "--name", "vit-large").stdout)
    for part in ("vision transformer", "lr 1.00e-03", "img/s", "EVAL", "checkpoints/vit-large/step-000200.pt", "DONE"):
        assert part in text


def test_the_same_seed_prints_the_same_lines() -> None:
    first, same, other = (run("--steps", "60", "--seed", seed).stdout for seed in ("7", "7", "8"))
    assert first == same
    assert first != other


def test_the_trainer_names_its_gpus() -> None:
    text = uncoloured(run("--steps", "1", CUDA_VISIBLE_DEVICES="GPU-a,GPU-b").stdout)
    assert "rank 0/2 on GPU-a" in text
    assert "rank 1/2 on GPU-b" in text


@cases("given", ["", "void", "-1"])
def test_the_trainer_reports_a_missing_gpu(given: str) -> None:
    assert "running on the CPU" in run("--steps", "1", CUDA_VISIBLE_DEVICES=given).stdout


def test_the_progress_bar_overwrites_itself() -> None:
    bars = [line for line in run("--steps", "16").stdout.split("\n") if "\r" in line]
    assert len(bars) == 8
    assert plain_log(bars[0]) == "  eval 100%|██████████| 50/50"


def test_a_failure_ends_with_a_traceback_and_its_exit_code() -> None:
    done = run("--steps", "100", "--fail-at", "40", "--exit-code", "3")
    assert done.returncode == 3
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert "torch.OutOfMemoryError: CUDA out of memory." in done.stderr.splitlines()[-1]
    assert "step  35/100" in uncoloured(done.stdout)
    assert "step  40/100" not in uncoloured(done.stdout)


def test_a_later_attempt_resumes_and_succeeds() -> None:
    arguments = ("--steps", "100", "--fail-at", "40", "--fail-attempts", "1")
    assert run(*arguments, GPUTUI_ATTEMPT="store:7:1").returncode == 1
    second = run(*arguments, GPUTUI_ATTEMPT="store:7:2")
    assert second.returncode == 0
    assert "resumed from checkpoint of step 36 (attempt 2)" in second.stdout


def test_a_polite_signal_saves_a_checkpoint() -> None:
    command = [*COMMAND, "--steps", "100000", "--step-time", "0.01", "--log-every", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment()) as process:
        assert process.stdout is not None
        while "loss" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest = uncoloured(process.stdout.read())
    assert process.returncode == 143
    assert re.search(r"SIGTERM received at step \d+.*\n.*checkpoint saved: checkpoints/", rest)


def test_a_signal_of_the_user_saves_a_checkpoint_and_the_run_goes_on() -> None:
    command = [*COMMAND, "--steps", "100000", "--step-time", "0.01", "--log-every", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment()) as process:
        assert process.stdout is not None
        while "loss" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGUSR1)
        lines = iter(process.stdout.readline, "")
        asked = next(line for line in lines if "SIGUSR1 received, saving at step" in line)
        saved, after = next(lines), next(line for line in lines if "loss" in line)
        process.terminate()
        process.communicate()
    assert asked
    assert "checkpoint saved: checkpoints/" in saved
    assert after


@cases("arguments", [["--steps", "0"], ["--steps", "many"], ["--unknown"]])
def test_bad_options_are_refused(arguments: list[str]) -> None:
    assert run(*arguments).returncode == 2


def test_the_trainer_imports_little() -> None:
    code = "import sys, gputui.cli.trainer; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        check=True,
        encoding="utf-8",
        env=environment(PYTHONPATH=":".join(sys.path)),
    )
    assert {"click", "textual", "msgspec", "asyncio", "dataclasses"}.isdisjoint(done.stdout.split())
