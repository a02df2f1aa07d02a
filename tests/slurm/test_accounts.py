"""Jobs that Slurm has forgotten, from a real slurmdbd, and limits of accounts as reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gputui.domain.cluster import element_id
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.state import JobState
from tests.e2e.commands import Commands
from tests.slurm.accounts import ACCOUNT, lacking
from tests.slurm.bed import PATIENCE, Bed
from tests.slurm.person import Person
from tests.slurm.release import version
from tests.slurm.test_cluster import cluster_of

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(lacking() is not None, reason=lacking() or ""),
]

LONG = 4 * PATIENCE
_IN_JSON = (24, 11)
"""Release whose sacct tells exit codes from 128 on in JSON alone; that of 22.05 never does, that of 26.05 always."""


@pytest.fixture(scope="module")
def accounting() -> Iterator[Bed]:
    """Yield a cluster with accounts whose controller forgets jobs at once."""
    bed = Bed(nodes=2, accounts=True, min_job_age=2)
    try:
        yield bed.start()
    finally:
        bed.destroy()


@pytest.fixture
def alice(accounting: Bed) -> Iterator[Person]:
    commands = Commands(accounting.into_head)
    someone = Person(accounting, commands, "alice")
    yield someone
    accounting.clear()
    commands.close()


def submit(bed: Bed, *words: str, user: str = "alice") -> str:
    """Submit a job as other tools do; return its number."""
    return bed.run("sbatch", "--parsable", "--output=/dev/null", *words, user=user).stdout.strip()


def newcomer(alice: Person, name: str) -> dict[str, str]:
    """Return the environment of somebody who has no records of gputui."""
    return {"GPUTUI_STATE": str(alice.home / name)}


def told(job: dict[str, Any]) -> tuple[str, int | None, list[int]]:
    """Return state, exit code and the number of GPUs in each attempt."""
    return job["state"], job["exit_code"], [attempt["gpu_count"] for attempt in job["attempts"]]


def test_jobs_that_slurm_has_forgotten(accounting: Bed, alice: Person) -> None:
    ours = alice.submit("ours", gpus=2, code=3)
    every = submit(accounting, "--gres=gpu:1", "--exclusive", "--wrap=true")
    killed = submit(accounting, "--gpus=1", "--wrap=kill -9 $$", user="bob")
    array = submit(accounting, "--gres=gpu:1", "--array=0-1", "--wrap=exit $((SLURM_ARRAY_TASK_ID * 200))")
    held = submit(accounting, "--gres=gpu:1", "--hold", "--wrap=true")
    both = submit(accounting, "--gres=gpu:1", "--wrap=true", ":", "--gres=gpu:2")
    ended = submit(accounting, "--gres=gpu:1", "--wrap=sleep 600")
    accounting.wait(lambda: accounting.jobs().get(int(ended)) == "RUNNING", "it runs")
    accounting.run("scancel", held, ended, user="alice")
    accounting.wait(lambda: not accounting.jobs(), "Slurm has forgotten all jobs", LONG)
    seen = newcomer(alice, "later")
    history = {job["id"]: job for job in alice.run("history", "--json", environ=seen).json}
    assert {number: told(job) for number, job in history.items()} == {
        ours: ("FAILED", 3, [2]),
        int(every): ("COMPLETED", 0, [2]),
        int(killed): ("FAILED", 137, [1]),
        element_id(int(array), 0): ("COMPLETED", 0, [1]),
        element_id(int(array), 1): ("FAILED", 200 if version() > _IN_JSON else 200 - 128, [1]),
        int(held): ("CANCELLED", None, []),
        int(both): ("COMPLETED", 0, [1]),
        int(both) + 1: ("COMPLETED", 0, [2]),
        int(ended): ("CANCELLED", None, [1]),
    }
    assert {job["tenant"] for job in history.values()} == {ACCOUNT}
    assert history[int(killed)]["submitted_by"] == "bob"
    whole = 200 if version() >= _IN_JSON else 200 - 128
    assert f"ended by              exit code {whole}" in alice.run("show", f"{array}_1", environ=seen).out
    assert f"element 0 of array {array}" in alice.run("show", array, environ=seen).out


def test_limits_of_an_account_are_reasons(accounting: Bed, alice: Person) -> None:
    accounting.run("sacctmgr", "--immediate", "modify", "user", "alice", "set", "GrpTRES=gres/gpu=1")
    alice.submit("first", seconds=600)
    second = alice.submit("second", seconds=600)
    reason = "over a limit of its account: GPUs or other devices (AssocGrpGRES)"
    accounting.wait(lambda: reason in alice.run("explain", str(second), check=False).out, "the limit is told")


@pytest.mark.parametrize(("level", "drains"), [("Operator", False), ("Administrator", True)])
def test_operators_raise_priorities_and_administrators_drain_nodes_too(
    accounting: Bed, alice: Person, level: str, drains: bool
) -> None:
    accounting.run("sacctmgr", "--immediate", "modify", "user", "alice", "set", f"AdminLevel={level}")
    bobs = submit(accounting, "--begin=now+1hour", "--time=5", "--wrap=true", user="bob")
    environ = newcomer(alice, level)
    try:
        alice.run("priority", bobs, "70", environ=environ)
        alice.run("edit", bobs, "--time-limit", "10m", environ=environ)
        result = alice.run("drain", "gpu1", "--reason", "fans", check=False, environ=environ)
        slurms = accounting.run("scontrol", "update", "NodeName=gpu1", "State=RESUME", user="alice", check=False)
    finally:
        accounting.run("sacctmgr", "--immediate", "modify", "user", "alice", "set", "AdminLevel=None")
    refusal = "gputui: error: only Slurm's administrators may drain and resume nodes\n"
    assert (result.err if result.code else "") == ("" if drains else refusal)
    assert (slurms.returncode == 0) is drains


def test_the_queue_is_there_without_slurmdbd(accounting: Bed, alice: Person) -> None:
    seen = newcomer(alice, "without")
    job = alice.submit("waits", "--hold")
    assert accounting.accounts is not None
    with accounting.accounts.silent():
        assert [each["id"] for each in alice.run("queue", "--json", environ=seen).json] == [job]


def test_what_accounts_have_of_a_refused_submission_is_not_the_job(accounting: Bed, tmp_path: Path) -> None:
    cluster, key = cluster_of(accounting, tmp_path), str(uuid4())
    with pytest.raises(ClusterRefusedError, match="not available"):
        cluster.submit([Submission(JobSpec(command=("true",), gpus=GpuRequest(9, 9)))], key)
    (job_id,) = cluster.submit([Submission(JobSpec(command=("true",)), held=True)], key)
    assert cluster.job(job_id).state is JobState.PENDING
    accounting.clear()
