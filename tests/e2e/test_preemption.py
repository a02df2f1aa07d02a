"""Preemption on the real engine: the higher class gets its GPUs, the victim goes on after it, each attempt ran once."""

from __future__ import annotations

import pytest

from tests.e2e.site import Site

pytestmark = [pytest.mark.docker, pytest.mark.nvml]

SETTINGS = """
[policy]
preemption = true
preemption_min_run = "1s"
preemption_grace = "30s"
"""
VICTIM = """
echo "victim ${GPUTUI_ATTEMPT##*:}" >> /out/runs
[ -e /out/saved ] && exit 0
trap 'touch /out/told; while [ ! -e /out/go ]; do sleep 0.1; done; touch /out/saved; exit 143' TERM
while :; do sleep 0.1; done
"""


def test_a_higher_class_preempts_across_schedulers_and_the_victim_goes_on_afterwards(site: Site) -> None:
    site.config.write_text(SETTINGS)
    first = site.serve()
    victim = site.shell(VICTIM, "--gpus", "8", "--priority", "0", "--preemptible", "--retries", "2")
    site.until(lambda: site.runs() == ["victim 1"])
    urgent = site.shell("echo urgent >> /out/runs", "--gpus", "2", "--priority", "100", "--tenant", "bob")
    site.until((site.out / "told").exists)
    reason = site.json("explain", str(urgent))["reason"]
    assert reason["code"] == "Resources"
    assert f"job {victim} is being preempted for it, up to 30 s grace; expected " in reason["text"]
    ending = site.json("show", str(victim))
    assert (ending["state"], ending["attempts"][0]["preempted_by"]) == ("COMPLETING", urgent)
    site.kill(first)
    site.serve()
    (site.out / "go").touch()
    site.until_state(urgent, "COMPLETED")
    job = site.until_state(victim, "COMPLETED")
    assert site.runs() == ["victim 1", "urgent", "victim 2"]
    causes = [(attempt["cause_code"], attempt["exit_code"], attempt["charged"]) for attempt in job["attempts"]]
    assert causes == [("Preempted", 143, False), (None, 0, True)]
    preempted = f"preempted for job {urgent} of bob (class high, priority 100)"
    assert preempted in site.run("show", str(victim)).stdout
    [entry] = [each for each in job["audit"] if each["verb"] == "preempt"]
    assert (entry["user"], entry["after"]) == ("scheduler", preempted)
