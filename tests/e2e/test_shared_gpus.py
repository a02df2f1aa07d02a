"""GPUs that jobs share, and MIG instances, on the real engine with the real commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import Site, fresh_site
from tests.gpus.standin import uuid

pytestmark = [pytest.mark.docker, pytest.mark.nvml]

GIB = 1024**3
ALLOCATED = ("gpu 0 process", "gpu 0 used")
WORK = 'echo on $NVIDIA_VISIBLE_DEVICES; trap "exit 0" TERM; while :; do sleep 0.1; done'


def sharer(site: Site, memory: str, script: str = WORK) -> int:
    return site.shell(script, "--gpus", "1", "--gpu-memory", memory, "--share")


def reason(site: Site, job_id: int) -> str:
    found = site.json("show", str(job_id))["reason"]
    return str(found["text"]) if found else ""


def attempt(site: Site, job_id: int) -> dict[str, Any]:
    found: dict[str, Any] = site.json("show", str(job_id))["attempts"][-1]
    return found


def allocate(site: Site, job_id: int, memory: int) -> None:
    """Make the driver report that the job's own process uses `memory` of GPU 0."""
    pid = site.engine.docker("inspect", "-f", "{{.State.Pid}}", attempt(site, job_id)["container_id"]).strip()
    site.gpus.change(f"gpu 0 process {pid} {memory}", f"gpu 0 used {memory}", without=ALLOCATED)


def test_jobs_share_a_gpu_within_their_promises_and_one_that_did_not_ask_never_joins(site: Site) -> None:
    site.config.write_text('[policy]\nshare = ["0"]\nshare_jobs = 3\n')
    site.gpus.write(f"gpu 0 total {80 * GIB}", gpus=1)
    first = site.serve()
    one, two = sharer(site, "30g"), sharer(site, "20g")
    for job_id in (one, two):
        site.until_state(job_id, "RUNNING")
        site.until(lambda: site.run("logs", str(job_id)).stdout == f"on {uuid(0)}\n")  # noqa: B023
    third, alone = sharer(site, "40g"), site.shell(WORK, "--gpus", "1")
    words = "needs 1 GPU with 40G shared: 0 free, 1 held by jobs; GPU 0 has 29G left beside jobs 1 and 2"
    site.until(lambda: reason(site, third).startswith(words))
    allocate(site, one, 10 * GIB)  # less than it is promised: what is left for others stays the same
    site.until(lambda: [h["memory"] for h in site.json("gpus")[0]["holders"]] == [10 * GIB, 0])
    site.until(lambda: reason(site, third).startswith(words))
    allocate(site, one, 50 * GIB)
    site.until(lambda: "GPU 0 has 9G left beside jobs 1 and 2" in reason(site, third))
    assert {job["id"] for job in site.json("queue", "--state", "R")} == {one, two}
    site.kill(first)
    site.serve()
    little = sharer(site, "9g")
    site.run("priority", str(little), "top")
    site.until_state(little, "RUNNING")
    [gpu] = site.json("gpus")
    assert (gpu["state"], gpu["job_ids"], gpu["why"]) == ("ALLOCATED", [one, two, little], "jobs 1, 2 and 5")
    assert "beside jobs 2 and 5" in site.run("show", str(one)).stdout
    assert "job 1 gputui-test (root); job 2 gputui-test (root); job 5" in site.run("gpus").stdout
    running = site.engine.docker("ps", "--format", "{{.Names}}").split()
    assert sorted(name.rsplit("-", 2)[1:] for name in running) == [["1", "1"], ["2", "1"], ["5", "1"]], running
    site.gpus.change(without=ALLOCATED)
    site.run("cancel", str(one), str(two), str(little))
    site.until_state(third, "RUNNING")
    site.run("cancel", str(third))
    site.until_state(alone, "RUNNING")
    assert [attempt(site, job_id)["gpus"] for job_id in (one, two, third, alone, little)] == [[uuid(0)]] * 5
    assert site.json("gpus")[0]["job_ids"] == [alone]


def test_two_queues_never_share_a_gpu_with_each_other(site: Site, tmp_path: Path) -> None:
    other = fresh_site(tmp_path / "other", site.engine, gpus=1)
    try:
        for each in (site, other):
            each.config.write_text('[policy]\nshare = "all"\n')
            each.gpus.write(gpus=1)
            each.serve()
        mine = sharer(site, "10g")
        site.until_state(mine, "RUNNING")
        other.until(lambda: other.json("gpus")[0]["state"] == "FOREIGN")
        theirs, ours = sharer(other, "10g"), sharer(site, "10g")
        site.until_state(ours, "RUNNING")
        other.until(lambda: reason(other, theirs) == "needs 1 GPU with 10G shared: 0 free, 1 used by others")
        site.run("cancel", str(mine), str(ours))
        other.until_state(theirs, "RUNNING")
    finally:
        other.close()


def test_a_mig_instance_is_a_gpu_of_its_own(site: Site) -> None:
    site.config.write_text('[policy]\nshare = ["MIG-aaaa"]\n')
    site.gpus.write(
        "gpu 0 mig 1",
        "gpu 0 instance 0 3 0 MIG-aaaa 3g.40gb 42949672960",
        "gpu 0 instance 1 5 0 MIG-bbbb 1g.10gb 10737418240",
        gpus=1,
    )
    site.serve()
    wide = site.shell(WORK, "--gpus", "1", "--gpu-memory", "20g", "--share")
    beside = site.shell(WORK, "--gpus", "1", "--gpu-memory", "15g", "--share")
    small = site.shell(WORK, "--gpus", "1")
    for job_id, instance in ((wide, "MIG-aaaa"), (beside, "MIG-aaaa"), (small, "MIG-bbbb")):
        site.until_state(job_id, "RUNNING")
        site.until(lambda: site.run("logs", str(job_id)).stdout == f"on {instance}\n")  # noqa: B023
    late = site.shell(WORK, "--gpus", "device=MIG-bbbb")
    site.until(lambda: "needs 1 GPU among MIG-bbbb" in reason(site, late))
    rows = {gpu["uuid"]: (gpu["state"], gpu["job_ids"]) for gpu in site.json("gpus")}
    assert rows == {
        uuid(0): ("DRAINED", []),
        "MIG-aaaa": ("ALLOCATED", [wide, beside]),
        "MIG-bbbb": ("ALLOCATED", [small]),
    }
    site.run("cancel", str(small))
    site.until_state(late, "RUNNING")
    assert attempt(site, late)["gpus"] == ["MIG-bbbb"]
