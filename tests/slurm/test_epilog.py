"""The epilog: no container outlives its job on a node, whatever ended the job, and the node stays in service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.bed import IMAGE, Bed
from tests.slurm.epilog import installed_epilog
from tests.slurm.person import Person

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

LABELS = "--label gputui.key=k --label gputui.job=$SLURM_JOB_ID"
LEAVING = f"docker run --detach {LABELS} --name left-$SLURM_JOB_ID {IMAGE} sleep 600 && sleep 600"
"""A batch script without a trap."""


@pytest.fixture
def node(bed: Bed) -> Iterator[str]:
    """Yield the name of a node that runs the epilog."""
    with installed_epilog(bed):
        yield "gpu2"


def submit(bed: Bed, script: str, node: str) -> int:
    asked = ("--gres=gpu:1", f"--nodelist={node}", "--output=/dev/null", "--parsable", "--no-requeue")
    return int(bed.run("sbatch", *asked, stdin=f"#!/bin/sh\n{script}\n").stdout)


def names(bed: Bed, node: str) -> set[str]:
    return {container["Name"] for container in bed.containers(node)}


def test_no_container_outlives_its_job_and_all_others_stay(bed: Bed, node: str) -> None:
    own_queue = ("--label=gputui.store=s", "--name=of-own-queue")
    first = submit(bed, LEAVING, node)
    second = submit(bed, LEAVING, node)
    both = {f"left-{first}", f"left-{second}"}
    bed.wait(lambda: names(bed, node) == both, "both jobs have their containers")
    # a scheduler of this machine numbers its jobs too
    bed.run("docker", "run", "--detach", f"--label=gputui.job={first}", *own_queue, IMAGE, "sleep", "600", on=node)
    bed.run("scancel", str(first))
    bed.wait(lambda: names(bed, node) == {"of-own-queue", f"left-{second}"}, "the container of the ended job is gone")
    bed.run("scancel", str(second))
    bed.wait(lambda: names(bed, node) == {"of-own-queue"}, "the other one is gone")
    bed.wait(lambda: bed.state(node) == "idle", "the node is idle")


def test_containers_of_jobs_that_slurm_has_forgotten_go_with_the_next_job(bed: Bed, node: str) -> None:
    bed.run(
        "docker", "run", "--detach", "--label=gputui.key=k", "--label=gputui.job=99999", IMAGE, "sleep", "600", on=node
    )
    bed.wait(lambda: len(bed.containers(node)) == 1, "the container is there")
    submit(bed, "true", node)
    bed.wait(lambda: bed.containers(node) == [], "the container is gone")


def test_a_node_stays_in_service_without_its_engine(bed: Bed, node: str) -> None:
    job = submit(bed, "sleep 600", node)
    bed.wait(lambda: bed.jobs()[job] == "RUNNING", "the job runs")
    with bed.without_engine(node):
        bed.run("scancel", str(job))
        bed.wait(lambda: bed.state(node) == "idle", "the node is idle")
        assert bed.jobs()[job] == "CANCELLED"


def test_doctor_fails_until_there_is_an_epilog(bed: Bed, alice: Person) -> None:
    told = alice.run("doctor", check=False)
    assert (told.code, "\nfail  epilog      no epilog is set\n" in told.out) == (1, True), told.out
    assert "ok    cluster " in told.out
    with installed_epilog(bed):
        assert "epilog" not in alice.run("doctor").out
