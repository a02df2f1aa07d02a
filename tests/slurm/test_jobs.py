"""Jobs on a real Slurm cluster, through gputui's commands alone."""

from __future__ import annotations

import pytest

from tests.slurm.bed import PATIENCE, Bed
from tests.slurm.files import uuid
from tests.slurm.person import Person, assert_no_gpu_was_shared

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

LASTING = 3.0
"""Seconds that a job has to run so that somebody who looks all the time sees it run."""


@pytest.mark.parametrize("number", [9, pytest.param(60, marks=pytest.mark.long)])
def test_many_jobs(alice: Person, number: int) -> None:
    asked = [
        {"name": f"job-{place}", "gpus": 1 + place % 2, "code": 3 * (place % 7 == 0), "seconds": LASTING * (place < 2)}
        for place in range(number)
    ]
    ids = alice.submit_all(asked)
    assert len(set(ids)) == number
    assert alice.wait(ids) == ["FAILED" if job["code"] else "COMPLETED" for job in asked]
    stamps, jobs = alice.ended(), alice.jobs()
    assert_no_gpu_was_shared(stamps)
    for job_id, job in zip(ids, asked, strict=True):
        gpus = stamps[str(job["name"])].gpus
        assert len(gpus) == job["gpus"]
        assert jobs[job_id]["exit_code"] == job["code"]
        recorded = jobs[job_id]["attempts"][-1]["gpus"]
        assert [uuid(*_place(gpu)) for gpu in recorded] == list(gpus) or (not recorded and not job["seconds"])
    for job_id, job in list(zip(ids, asked, strict=True))[::9]:
        gpus = stamps[str(job["name"])].gpus
        listed = "".join(f"GPU {index}: NVIDIA H200 (UUID: {gpu})\n" for index, gpu in enumerate(gpus))
        assert alice.run("logs", str(job_id)).out == listed
    alice.bed.wait(lambda: alice.bed.containers() == [], "no container is left")


def _place(gpu: str) -> tuple[str, int]:
    """Return node and index of a GPU from its name."""
    node, _, index = gpu.rpartition(":")
    return node, int(index)


def test_a_wide_job_is_not_starved(root: Person) -> None:
    root.run("drain", "gpu2", "gpu3")
    narrow = [{"name": f"before-{number}", "seconds": 0.5} for number in range(3)]
    wide = [{"name": "wide", "gpus": 2}]
    later = [{"name": f"after-{number}", "seconds": 0.5} for number in range(4)]
    root.wait(root.submit_all([*narrow, *wide, *later]))
    order = root.begun()
    assert all(order.index("wide") < order.index(f"after-{number}") for number in range(4)), order


def test_no_container_stays_in_whatever_phase_a_job_is_cancelled(alice: Person, bed: Bed) -> None:
    held = alice.submit("held", "--hold")
    ids = [alice.submit(f"job-{number}", gpus=2, seconds=600) for number in range(5)]
    alice.run("cancel", str(held), str(ids[4]))  # waiting, and maybe starting
    alice.wait_for(ids[:3], lambda states: states == ["RUNNING"] * 3)
    bed.wait(lambda: len(alice.begun()) == 3, "three containers run")
    alice.run("cancel", str(ids[0]), str(ids[1]))  # running; the next one starts
    bed.wait(lambda: alice.begun()[-1:] == ["job-3"], "the fourth one starts")
    alice.run("cancel", str(ids[2]), str(ids[3]))
    states = alice.wait([held, *ids])
    assert set(states) == {"CANCELLED"}
    bed.wait(lambda: bed.containers() == [], "no container is left")


@pytest.mark.long
def test_a_drained_node_ends_its_jobs_and_starts_no_others(root: Person, bed: Bed) -> None:
    running = [root.submit(f"running-{number}", gpus=2, seconds=3) for number in range(3)]
    root.wait_for(running, lambda states: states == ["RUNNING"] * 3)
    root.run("drain", "gpu2")
    bed.wait(lambda: bed.state("gpu2").startswith("drain"), "the node is drained")
    later = root.submit_all([{"name": f"later-{number}", "gpus": 2} for number in range(4)])
    assert root.wait([*running, *later]) == ["COMPLETED"] * 7
    stamps = root.ended()
    used = {gpu for name, stamp in stamps.items() if name.startswith("later") for gpu in stamp.gpus}
    assert not used & set(bed.uuids("gpu2", (0, 1)))
    assert set(bed.uuids("gpu2", (0, 1))) <= {gpu for stamp in stamps.values() for gpu in stamp.gpus}
    root.run("resume", "gpu2")
    bed.wait(lambda: bed.state("gpu2") == "idle", "the node is in service")


@pytest.mark.long
def test_jobs_survive_a_restart_of_slurmctld(alice: Person, bed: Bed) -> None:
    ids = alice.submit_all([{"name": f"job-{number}", "gpus": 2, "seconds": 2} for number in range(5)])
    alice.wait_for(ids, lambda states: states.count("RUNNING") == 3)
    bed.restart_controller()
    assert alice.wait(ids) == ["COMPLETED"] * 5
    assert len(alice.ended()) == 5


@pytest.mark.long
def test_a_job_ends_at_its_time_limit(alice: Person, bed: Bed) -> None:
    job = alice.submit("late", "--time-limit", "1m", gpus=2, seconds=600)
    assert alice.wait([job], patience=3 * PATIENCE) == ["TIMEOUT"]
    bed.wait(lambda: bed.containers() == [], "no container is left")
