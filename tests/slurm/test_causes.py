"""What a container knows of Slurm, and why one failed: the same sentence wherever the job is shown."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.runtime.dockerd import NETWORK
from tests.slurm.bed import IMAGE, Bed
from tests.slurm.person import Person

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]


def failed(person: Person, *words: str) -> tuple[str, str, str]:
    """Submit a job that fails; return its state, the code of its cause, and the sentence."""
    job = int(person.run("submit", "--network", NETWORK, *words).out)
    person.wait([job])
    shown = person.run("show", str(job), "--json").json
    known = [shown["state"], shown["cause_code"], shown["cause"]]
    assert person.run("logs", str(job)).out.splitlines()[-1] == f"gputui: {shown['cause']}"
    for listed in (person.jobs().values(), person.run("history", "--json").json):
        [row] = [each for each in listed if each["id"] == job]
        assert [row["state"], row["cause_code"], row["cause"]] == known
    return shown["state"], shown["cause_code"], shown["cause"]


def test_containers_know_their_place_in_slurm(alice: Person) -> None:
    words = ("--array", "3-4", "--cpus", "2", "--name", "a b", "-e", "SLURM_PROCID=mine", IMAGE, "env")
    array = int(alice.run("submit", "--network", NETWORK, *words).out.split("_")[0])
    jobs = [job for job, shown in alice.jobs().items() if shown["array"] and shown["array"]["id"] == array]
    alice.wait(jobs)
    found = dict(line.split("=", 1) for line in alice.run("logs", f"{array}_4").out.splitlines() if "=" in line)
    wanted = {"ARRAY_JOB_ID": str(array), "ARRAY_TASK_ID": "4", "ARRAY_TASK_COUNT": "2", "CPUS_PER_TASK": "2"}
    wanted |= {"JOB_NAME": "a b", "NTASKS": "1", "PROCID": "mine", "JOB_PARTITION": "gpu", "CLUSTER_NAME": "bed"}
    assert {name: found[f"SLURM_{name}"] for name in wanted} == wanted
    assert found["SLURM_JOB_NODELIST"].startswith("gpu")
    assert not {"SLURM_CONF", "SLURM_SUBMIT_DIR", "SLURM_JOB_GPUS"} & found.keys()


def test_who_may_not_use_docker_is_told_so(bob: Person) -> None:
    state, code, cause = failed(bob, IMAGE, "true")
    assert (state, code) == ("FAILED", "NotAllowed")
    assert cause.startswith("this user may not use Docker on gpu")
    assert "permission denied" in cause


@pytest.mark.long
def test_a_node_without_docker_and_an_image_that_cannot_be_pulled_are_told(bed: Bed, alice: Person) -> None:
    state, code, cause = failed(alice, "registry.invalid/nobody/nothing:1", "true")
    assert (state, code) == ("FAILED", "PullFailed")
    assert cause.startswith("registry.invalid/nobody/nothing:1 could not be pulled: ")
    with ExitStack() as hidden:
        for name in bed.nodes:
            hidden.enter_context(bed.without_engine(name))
        state, code, cause = failed(alice, IMAGE, "true")
    assert (state, code) == ("FAILED", "RuntimeUnavailable")
    assert cause.startswith("Docker does not run on gpu")


def test_a_container_over_its_memory_limit_is_out_of_memory(alice: Person) -> None:
    found = failed(alice, "--memory", "64m", IMAGE, "sh", "-c", "tail /dev/zero")
    assert found == ("OUT_OF_MEMORY", "OutOfMemory", "the kernel ended it: over its memory limit of 64 MiB")
