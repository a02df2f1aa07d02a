"""The main task, end to end: submitted containers run on free GPUs. Only the driver is a stand-in."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

import pytest

from tests.e2e import witness
from tests.e2e.site import Site, all_over
from tests.gpus import standin
from tests.machine_load import stretched
from tests.runtime.dockerd import IMAGE, NETWORK

pytestmark = [pytest.mark.docker, pytest.mark.nvml]


def test_twenty_jobs_of_one_to_four_gpus_all_complete(site: Site) -> None:
    ids = [site.shell(witness.script(0.5), "--gpus", str(1 + n % 4)) for n in range(8)]
    site.serve()
    ids += [site.shell(witness.script(0.3), "--gpus", str(1 + n % 4)) for n in range(12)]
    site.until(lambda: all_over(site.queue.jobs().values()), 120)
    jobs = site.jobs()
    lines = site.runs()
    assert len([line for line in lines if line.endswith("begin")]) == len(ids)
    assert witness.overlaps(lines) == []
    for one in ids:
        job = jobs[one]
        [attempt] = job["attempts"]
        assert (job["state"], job["exit_code"], len(attempt["gpus"])) == ("COMPLETED", 0, job["gpus_min"])
    for one in ids[::5]:  # of each width
        [attempt] = jobs[one]["attempts"]
        assert site.run("logs", str(one)).stdout == f"on {','.join(attempt['gpus'])}\n"


def test_a_failing_job_is_tried_three_times_with_growing_pauses(site: Site) -> None:
    site.serve()
    job_id = site.shell("echo attempt $GPUTUI_ATTEMPT; exit 3", "--gpus", "1", "--retries", "2", "--backoff", "1s")
    job = site.until_state(job_id, "FAILED")
    assert job["exit_code"] == 3
    assert [(attempt["number"], attempt["exit_code"]) for attempt in job["attempts"]] == [(1, 3), (2, 3), (3, 3)]
    begun = [datetime.fromisoformat(attempt["started_at"]) for attempt in job["attempts"]]
    ended = [datetime.fromisoformat(attempt["ended_at"]) for attempt in job["attempts"]]
    pauses = [(begin - end).total_seconds() for begin, end in zip(begun[1:], ended, strict=False)]
    assert 1 <= pauses[0] < stretched(2)
    assert 2 <= pauses[1] < stretched(5)
    for number in (1, 2, 3):
        assert site.run("logs", "--attempt", str(number), str(job_id)).stdout.endswith(f":{job_id}:{number}\n")


def holder_of(site: Site, gpu: int) -> dict[str, Any]:
    """Wait until a GPU is in foreign use, and return who holds it; a late reading has none for a moment."""
    found: list[dict[str, Any]] = []

    def is_held() -> bool:
        shown = site.json("gpus")[gpu]
        found[:] = shown["holders"]
        return shown["state"] == "FOREIGN" and len(found) == 1

    site.until(is_held)
    return found[0]


def test_a_foreign_container_makes_its_gpu_busy_and_is_named(site: Site) -> None:
    site.serve()
    site.engine.docker(
        "run", "-d", "--name", "vllm-by-hand", "--network", NETWORK, "--gpus", '"device=1"', IMAGE, "sleep", "60"
    )
    holder = holder_of(site, 1)
    assert (holder["kind"], holder["name"]) == ("container", "vllm-by-hand")
    job_id = site.shell("echo $NVIDIA_VISIBLE_DEVICES", "--gpus", "7")
    job = site.until_state(job_id, "COMPLETED")
    assert standin.uuid(1) not in job["attempts"][0]["gpus"]
    wide = site.shell("true", "--gpus", "8")
    site.until(lambda: site.json("show", str(wide))["reason"] is not None)
    reason = site.json("show", str(wide))["reason"]
    assert (reason["code"], reason["text"]) == ("Resources", "needs 8 GPUs: 7 free, 1 used by others")
    site.engine.docker("rm", "-f", "vllm-by-hand")
    site.until_state(wide, "COMPLETED")


def test_a_foreign_process_makes_its_gpu_busy(site: Site) -> None:
    site.serve()
    site.until(lambda: site.json("gpus")[2]["state"] == "FREE")
    site.gpus.change(f"gpu 2 process {os.getpid()} {8 * 1024**3}")
    holder = holder_of(site, 2)
    assert (holder["kind"], holder["pid"]) == ("process", os.getpid())


def test_actions_from_other_processes_are_carried_out(site: Site) -> None:
    site.serve()
    job_id = site.shell("sleep 60", "--gpus", "1")
    site.until_state(job_id, "RUNNING")
    site.run("cancel", str(job_id))
    job = site.until_state(job_id, "CANCELLED")
    assert job["exit_code"] == 143
    held = site.shell("true", "--hold")
    site.until_state(site.shell("true"), "COMPLETED")
    shown = site.json("show", str(held))
    assert (shown["state"], shown["attempts"], shown["reason"]["code"]) == ("PENDING", [], "JobHeldUser")
    site.run("release", str(held))
    site.until_state(held, "COMPLETED")
    site.run("drain", "0", "--reason", "fan")
    site.until(lambda: site.json("gpus")[0]["state"] == "DRAINED")
    site.run("resume", "0")
    site.until(lambda: site.json("gpus")[0]["state"] == "FREE")
    site.run("pause")
    paused = site.shell("true")
    site.until(lambda: (site.json("show", str(paused))["reason"] or {}).get("code") == "SchedulerPaused")
    site.run("unpause")
    site.until_state(paused, "COMPLETED")


def test_missing_images_and_commands_fail_their_jobs(site: Site) -> None:
    site.serve()
    no_command = site.submit("--network", NETWORK, IMAGE, "no-such-command")
    job = site.until_state(no_command, "FAILED")
    assert job["exit_code"] == 127
    assert "no-such-command" in job["attempts"][0]["cause"]
    host = site.submit("--host", "--gpus", "1", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    done = site.until_state(host, "COMPLETED")
    assert site.run("logs", str(host)).stdout == done["attempts"][0]["gpus"][0] + "\n"
