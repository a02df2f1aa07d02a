"""Reserved windows, and jobs that get fewer GPUs, on a real engine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.site import Site
from tests.machine_load import stretched

pytestmark = [pytest.mark.docker, pytest.mark.nvml]

SLEEP = "trap 'exit 0' TERM; while :; do sleep 0.1; done"


def the_window(site: Site) -> dict[str, Any]:
    [window] = site.json("reserve", "list")
    found: dict[str, Any] = window
    return found


def gpus_of(job: dict[str, Any]) -> list[str]:
    held: list[str] = job["attempts"][-1]["gpus"]
    return held


def test_a_window_is_backfilled_then_kept_clear_and_its_tenants_own(site: Site) -> None:
    site.run("pause")  # or the window begins while the first job is still being submitted
    site.serve()
    four = ("--gpus", "4", "--tenant", "alice")
    long = site.shell(SLEEP, *four, "--time-limit", "2h")
    crosses = site.shell(SLEEP, *four, "--time-limit", "2h")
    short = site.shell("true", *four, "--time-limit", "2s")
    site.until(lambda: (site.json("show", str(short))["reason"] or {}).get("code") == "SchedulerPaused")
    start = f"+{min(stretched(8), 45):.0f}s"
    added = site.run("reserve", "add", "--gpus", "4", "--start", start, "--for", "1h", "--tenant", "course")
    assert added.stdout == "r1\n"
    site.run("unpause")
    ended = site.until_state(short, "COMPLETED")
    site.until_state(long, "RUNNING")
    start = the_window(site)["start"]
    assert ended["ended_at"] < start
    reason = site.json("show", str(crosses))["reason"]
    assert reason["code"] == "Reservation"
    assert "4 GPUs reserved by r1" in reason["text"]

    site.until(lambda: datetime.now(UTC) > datetime.fromisoformat(start))
    assert the_window(site)["state"] == "ACTIVE"
    assert site.json("show", str(crosses))["state"] == "PENDING"
    own = site.shell(SLEEP, "--gpus", "4", "--tenant", "course", "--time-limit", "30m")
    running = site.until_state(own, "RUNNING")
    assert not set(gpus_of(running)) & set(gpus_of(site.json("show", str(long))))
    site.until(lambda: the_window(site)["claimed_at"] is not None)
    site.run("cancel", str(own))
    site.until_state(own, "CANCELLED")
    assert site.json("show", str(crosses))["reason"]["code"] == "Reservation"
    site.run("reserve", "remove", "r1")
    assert gpus_of(site.until_state(crosses, "RUNNING")) == gpus_of(running)


def test_an_unclaimed_window_is_released_after_its_grace(site: Site) -> None:
    site.config.write_text('[policy]\nreservation_grace = "3s"\n')
    site.run("reserve", "add", "--gpus", "8", "--for", "1h", "--tenant", "course")
    waiting = site.shell(SLEEP, "--gpus", "1", "--tenant", "alice")
    site.serve()
    started = site.until_state(waiting, "RUNNING")
    window = the_window(site)
    assert (window["state"], window["kept_gpus"]) == ("RELEASED", [])
    assert window["start"] < window["released_at"] < started["started_at"]


def test_both_runtimes_tell_a_job_its_number_of_gpus(site: Site) -> None:
    site.config.write_text('[policy]\npatience = "0s"\nprefer = ["6", "7"]\nleft_free = ["5"]\n')
    site.serve()
    rest = site.shell(SLEEP, "--gpus", "5")
    site.until_state(rest, "RUNNING")
    told = 'echo "$GPUTUI_GPUS of ${CUDA_VISIBLE_DEVICES:-$NVIDIA_VISIBLE_DEVICES}"'
    in_container = site.shell(told, "--gpus", "2-4")
    assert len(gpus_of(site.until_state(in_container, "COMPLETED"))) == 2
    on_host = site.submit("--host", "--gpus", "2-4", "--", "sh", "-c", told)
    job = site.until_state(on_host, "COMPLETED")
    assert len(gpus_of(job)) == 2
    for job_id in (in_container, on_host):
        words = site.run("logs", str(job_id)).stdout.split()
        assert words[0] == "2"
        assert len(words[2].split(",")) == 2
