"""Error lines, time limits, signals, telemetry and suspension of jobs on a real engine and on the host."""

from __future__ import annotations

import time
from functools import partial

import pytest

from tests.e2e.site import Site
from tests.e2e.time_limits import end_soon, has_run
from tests.machine_load import stretched

pytestmark = [pytest.mark.docker, pytest.mark.nvml]

FAILS = (
    "echo 'Traceback (most recent call last):'; echo '  File \"t.py\", line 1'; echo 'ValueError: bad shape'; exit 1"
)


def test_a_failed_job_shows_its_error_line(site: Site) -> None:
    site.serve()
    jobs = (site.shell(FAILS), site.submit("--host", "--", "sh", "-c", FAILS))
    for job_id in jobs:
        job = site.until_state(job_id, "FAILED")
        assert (job["error"], job["cause"], job["exit_code"]) == ("ValueError: bad shape", "exit code 1", 1)
        assert "ValueError: bad shape" in site.run("show", str(job_id)).stdout
        refused = site.run("explain", str(job_id), check=False).stderr
        assert f"job {job_id} is FAILED (ValueError: bad shape): it does not wait" in refused
    listed = site.run("queue", "--all").stdout
    assert listed.count("ValueError: bad shape") == len(jobs)
    assert site.run("queue", "--all", "--filter", "error~shape").stdout.count("ValueError") == len(jobs)


STAYS = "trap 'echo warned' USR1; trap 'echo told to end; exit 0' TERM; echo ready; while :; do sleep 0.1; done"


def test_the_limit_of_a_running_job_moves_while_it_runs(site: Site) -> None:
    first = site.serve()
    options = ("--time-limit", "10m", "--signal", "USR1@3")
    jobs = (site.shell(STAYS, *options), site.submit("--host", *options, "--", "sh", "-c", STAYS))
    for job_id in jobs:
        site.until_output(job_id, "ready")
        site.run("edit", str(job_id), "--time-limit", "+1h", "--comment", "extended")
    site.kill(first)
    site.serve()
    limits = [site.json("show", str(job_id)) for job_id in jobs]
    site.until(lambda: all(site.json("show", str(job["id"]))["state"] == "RUNNING" for job in limits))
    for job in limits:
        assert (job["comment"], job["time_limit"]) == ("extended", 70 * 60)
        site.until(lambda: has_run(site, job["id"]) > 1)  # noqa: B023
        refused = site.run("edit", str(job["id"]), "--time-limit", "1s", check=False)
        assert "the limit of 1s has already passed" in refused.stderr
        end_soon(site, job["id"])
    for job_id in jobs:
        ended = site.until_state(job_id, "TIMEOUT")
        assert (ended["cause_code"], len(ended["attempts"])) == ("TimeLimit", 1)
        assert site.run("logs", str(job_id)).stdout.splitlines()[-1] == "told to end"


COUNTS = "trap 'echo checkpoint; ' USR1; echo ready; while :; do sleep 0.1; done"


def test_signals_reach_a_running_job(site: Site) -> None:
    site.serve()
    jobs = (site.shell(COUNTS), site.submit("--host", "--", "sh", "-c", COUNTS))
    for job_id in jobs:
        site.until_output(job_id, "ready")
        site.run("signal", str(job_id), "USR1")
        site.until_output(job_id, "checkpoint")
        site.run("signal", str(job_id), "KILL")
        assert site.until_state(job_id, "FAILED")["cause"] == "ended by SIGKILL (exit code 137)"
        assert site.run("logs", str(job_id)).stdout.count("checkpoint") == 1


def test_an_ended_job_says_how_it_used_its_gpus(site: Site) -> None:
    site.serve()
    jobs = (site.shell("sleep 3", "--gpus", "1"), site.submit("--host", "--gpus", "1", "--", "sleep", "3"))
    for job_id in jobs:
        job = site.until_state(job_id, "COMPLETED")
        told = job["attempts"][0]["efficiency"]
        assert 1 <= told["seconds"] <= stretched(10)
        assert (told["utilization"], told["idle"]) == (0, 1)
        assert told["memory_total"] > 2**30
        assert "mean utilization 0%, idle 100% of the time; peak memory " in site.run("show", str(job_id)).stdout
    assert site.run("queue", "--all", "--filter", "util<5").stdout.count("util 0%  mem ") == len(jobs)


BEATS = "trap 'echo told to end; exit 0' TERM; echo ready; while :; do echo beat; sleep 0.1; done"


def test_a_job_is_suspended_across_schedulers_woken_and_cancelled_while_suspended(site: Site) -> None:
    first = site.serve()
    jobs = (site.shell(BEATS), site.submit("--host", "--", "sh", "-c", BEATS))
    for job_id in jobs:
        site.until_output(job_id, "beat")
        suspend(site, job_id)
    stopped = [beats(site, job_id) for job_id in jobs]
    site.kill(first)
    site.serve()
    site.until(lambda: site.run("gpus", check=False).returncode == 0)
    assert [beats(site, job_id) for job_id in jobs] == stopped
    for job_id, before in zip(jobs, stopped, strict=True):
        site.run("unsuspend", str(job_id))
        site.until(partial(goes_on, site, job_id, before))
        suspend(site, job_id)
        assert job_id in {each["id"] for each in site.json("queue", "--filter", "is:suspended")}
        site.run("cancel", str(job_id))
        site.until_state(job_id, "CANCELLED")
        assert site.run("logs", str(job_id)).stdout.splitlines()[-1] == "told to end"


def suspend(site: Site, job_id: int) -> None:
    site.run("suspend", str(job_id))
    site.until(partial(is_still, site, job_id))


def is_still(site: Site, job_id: int) -> bool:
    """Return whether the job is shown as suspended and has stopped writing."""
    before = beats(site, job_id)
    shown = site.run("show", str(job_id)).stdout
    time.sleep(0.3)
    return "RUNNING (suspended by root)" in shown and beats(site, job_id) == before


def goes_on(site: Site, job_id: int, before: int) -> bool:
    return beats(site, job_id) > before


def beats(site: Site, job_id: int) -> int:
    return site.run("logs", str(job_id), check=False).stdout.count("beat")
