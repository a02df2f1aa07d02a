"""Warnings before time limits, and retries by cause, on a real engine."""

from __future__ import annotations

import math

import pytest

from tests.e2e.site import Site
from tests.e2e.time_limits import has_run
from tests.machine_load import stretched

pytestmark = [pytest.mark.docker, pytest.mark.nvml]

PATIENT = """
trap 'echo warned' USR1
trap 'echo told to end' TERM
echo ready
while :; do sleep 0.2; done
"""


def test_a_job_is_warned_once_across_schedulers_then_told_to_end_then_killed(site: Site) -> None:
    site.config.write_text('[scheduler]\nstop_grace = "1s"\n')
    first, before = site.serve(), math.ceil(stretched(3))
    job_id = site.shell(PATIENT, "--gpus", "1", "--time-limit", "1h", "--signal", f"USR1@{before}")
    site.until_output(job_id, "ready")
    assert site.json("show", str(job_id))["attempts"][0]["warned_at"] is None
    site.run("edit", str(job_id), "--time-limit", f"{math.ceil(has_run(site, job_id) + before)}s")
    site.until_output(job_id, "warned")
    shown = site.json("show", str(job_id))
    assert shown["state"] == "RUNNING"
    assert shown["attempts"][0]["warned_at"] > shown["warning_at"]
    assert "by its time limit at" in site.run("show", str(job_id)).stdout
    site.kill(first)
    site.serve()
    job = site.until_state(job_id, "TIMEOUT")
    assert (job["exit_code"], job["cause_code"]) == (137, "TimeLimit")
    assert site.run("logs", str(job_id)).stdout.splitlines() == ["ready", "warned", "told to end"]


def test_a_limit_above_the_site_s_is_refused_at_submit(site: Site) -> None:
    site.config.write_text('[scheduler]\nmax_time = "1d"\n')
    refused = site.run("submit", "--time-limit", "2d", "busybox", check=False)
    assert refused.returncode == 2
    assert refused.stderr.startswith("gputui: error: --time-limit: 2d is longer than a job may run here")


def test_retries_by_cause(site: Site) -> None:
    site.serve()
    given_up = site.shell("exit 3", "--retries", "5", "--backoff", "1s", "--retry-on", "75,OOM")
    hungry = site.shell(
        "case $GPUTUI_ATTEMPT in *:1) echo 'torch.OutOfMemoryError: CUDA out of memory.'; exit 1;; esac",
        *("--gpus", "1", "--gpu-memory", "10g", "--gpu-memory-step", "20g"),
        *("--retries", "5", "--backoff", "1s", "--retry-on", "75,GPU_OOM"),
    )
    hasty = site.shell("exit 4", "--retries", "3", "--backoff", "1s")
    assert len(site.until_state(given_up, "FAILED")["attempts"]) == 1
    job = site.until_state(hungry, "COMPLETED")
    first, second = job["attempts"]
    assert first["cause_code"] == "GpuOutOfMemory"
    assert first["cause"].endswith("CUDA out of memory.; the next attempt asks for 30G per GPU")
    assert (second["exit_code"], job["spec"]["gpu_memory"]) == (0, 30 * 1024**3)
    tried = site.until_state(hasty, "FAILED")
    assert len(tried["attempts"]) == 4
    assert tried["cause"] == "exit code 4; failed 4 times in a row, each within 10s"


def test_unsatisfiable_dependents_are_cancelled_all_the_way_down(site: Site) -> None:
    site.serve()
    first = site.shell("sleep 1; exit 3")
    second = site.shell("true", "--after", str(first))
    third = site.shell("true", "--after", str(second))
    anyway = site.shell("true", "--after-any", str(third))
    assert (
        f"job {second}, which waited for job {first}, which ended FAILED"
        in site.until_state(third, "CANCELLED")["cause"]
    )
    assert site.json("show", str(second))["cause"].endswith(f"job {first}, which ended FAILED: exit code 3")
    site.until_state(anyway, "COMPLETED")
