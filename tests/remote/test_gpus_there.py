"""GPUs of another machine through its engine: they are read there, jobs get them there, and nothing is left there."""

from __future__ import annotations

import pytest

from tests.cases import cases
from tests.remote import files
from tests.remote.bed import WAYS, Bed
from tests.remote.conftest import Laptop, states
from tests.remote.far_jobs import FarJobs
from tests.runtime.dockerd import IMAGE
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.ssh, pytest.mark.nvml, pytest.mark.xdist_group("remote")]


@cases("way", WAYS)
def test_the_gpus_of_the_other_machine_are_listed(bed: Bed, laptop: Laptop, way: str) -> None:
    site = laptop(way)
    listed = site.json("gpus")
    assert [(gpu["uuid"], gpu["state"], gpu["node"]) for gpu in listed] == [
        (uuid, "FREE", files.FAR) for uuid in bed.uuids
    ]


def test_jobs_get_gpus_of_the_other_machine_and_nothing_is_left(bed: Bed, laptop: Laptop) -> None:
    """The GPUs are read in a container, which leaves more than a process would."""
    before = bed.processes(), bed.containers()
    site = laptop("tls")
    jobs = FarJobs(bed, site)
    serving = site.serve()
    for gpus in (2, 1):
        jobs.submit(gpus)
    for job in jobs.ids:
        assert site.until_state(job, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    assert [[len(gpus) for gpus in times] for times in jobs.gpus_inside()] == [[2], [1]]
    assert {uuid for times in jobs.gpus_inside() for gpus in times for uuid in gpus} <= set(bed.uuids)
    assert not jobs.overlaps()
    until(lambda: bed.containers() == sorted((*before[1], *bed.probe_containers())), site.evidence)
    assert len(bed.probe_containers()) == 1
    serving.terminate()
    serving.wait()
    until(lambda: (bed.processes(), bed.containers()) == before, lambda: f"{bed.processes()} {bed.containers()}")
    assert bed.written() == []


def test_after_a_cut_gpus_are_unknown_and_jobs_wait(bed: Bed, laptop: Laptop) -> None:
    site = laptop("ssh")
    jobs = FarJobs(bed, site)
    site.serve()
    jobs.close_gate()
    first = jobs.submit(2)
    until(lambda: len(jobs.held()) == 2, "the job has its GPUs")
    bed.stop_sshd()
    site.until(lambda: [gpu["state"] for gpu in site.json("gpus")] == ["ALLOCATED"] * 2 + ["UNKNOWN"] * 2)
    waiting = jobs.submit(1)
    jobs.open_gate()
    until(lambda: not jobs.held(), "the job goes on without us")
    site.until(lambda: any(name in site.json("show", str(waiting))["reason"]["text"] for name in ("lab", files.FAR)))
    assert site.json("show", str(waiting))["state"] == "PENDING"
    bed.reach()
    for job in (first, waiting):
        assert site.until_state(job, "COMPLETED", "FAILED", "LOST")["state"] == "COMPLETED"
    assert [len(times) for times in jobs.gpus_inside()] == [1, 1]
    assert not jobs.overlaps()


def test_foreign_use_there_is_seen(bed: Bed, laptop: Laptop) -> None:
    """Foreign are a container that somebody else started, and a process of somebody who is logged in."""
    site = laptop("ssh")
    site.serve()
    gpus = f'"device={bed.uuids[0]}"'
    bed.docker("run", "--detach", "--network", "host", "--gpus", gpus, IMAGE, "sleep", "1000")
    pid = bed.start_on_far("sleep", "1000")
    bed.idle(f"gpu 1 process {pid} 1073741824 C")
    expected = dict(zip(bed.uuids, ("FOREIGN", "FOREIGN", "FREE", "FREE"), strict=True))
    site.until(lambda: states(site) == expected)
    bed.on_far("kill", str(pid))
