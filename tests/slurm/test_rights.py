"""What users of a real Slurm may do to each other's jobs, and what each is told, through gputui's commands."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gputui.domain.action import Hold
from gputui.domain.job_spec import JobSpec, Submission
from gputui.domain.state import JobState
from tests.slurm.bed import IMAGE, Bed
from tests.slurm.person import Person
from tests.slurm.test_cluster import cluster_of
from tests.slurm.test_poll import cluster_at

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

HELD = ("--hold", "--time-limit", "10m", IMAGE, "sleep", "600")


def submitted(person: Person, *words: str) -> int:
    return int(person.run("submit", *words).out)


def test_a_job_that_another_state_directory_submitted_is_found_at_once(bed: Bed, tmp_path: Path) -> None:
    watching = cluster_at(tmp_path / "watching", bed.environ, timedelta(hours=1))
    assert watching.snapshot().jobs is not None
    other = cluster_of(bed, tmp_path / "other")
    (job_id,) = other.submit([Submission(JobSpec(command=("true",)), held=True)], str(uuid4()))
    array = other.submit([Submission(JobSpec(command=("true",)), held=True, array=(0, 1))], str(uuid4()))
    assert watching.job(job_id).state is JobState.PENDING
    assert watching.job(array[1]).array == other.job(array[1]).array


def test_a_job_that_has_begun_since_the_last_look_is_not_held(bed: Bed, tmp_path: Path) -> None:
    watching = cluster_at(tmp_path, bed.environ, timedelta(hours=1))
    job = Submission(JobSpec(command=("sleep", "600")), held=True)
    (job_id,) = cluster_of(bed, tmp_path).submit([job], str(uuid4()))
    assert watching.job(job_id).held
    bed.run("scontrol", "release", str(job_id))
    bed.wait(lambda: bed.jobs()[job_id] == "RUNNING", "it runs")
    assert watching.job(job_id).held
    assert watching.act(Hold((job_id,))) == ()
    assert " Priority=0 " not in bed.run("scontrol", "-o", "show", "job", str(job_id)).stdout


def test_a_priority_outlasts_hold_and_release(bed: Bed, alice: Person) -> None:
    for node in bed.nodes:
        bed.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=none may start")
    job_id = submitted(alice, "--priority", "30", *HELD)
    seen = []
    for verb in ("release", "hold", "release"):
        alice.run(verb, str(job_id))
        job = alice.jobs()[job_id]
        seen.append((job["priority"], job["held"]))
    assert seen == [(30, False), (30, True), (30, False)]


def test_a_held_job_is_not_started_by_another_priority(alice: Person) -> None:
    job_id = submitted(alice, *HELD)
    result = alice.run("priority", str(job_id), "30", check=False)
    job = alice.jobs()[job_id]
    assert (job["state"], job["held"]) == ("PENDING", True)
    assert job["priority"] == (50 if result.code else 30)
    assert result.code == 0 or "it is held, and this Slurm would let it start" in result.err


def test_of_several_jobs_each_is_told_though_one_is_refused(alice: Person, bob: Person) -> None:
    theirs, hers = submitted(bob, *HELD), submitted(alice, *HELD)
    result = alice.run("cancel", str(theirs), str(hers), check=False)
    assert result.code == 1
    assert f"job {theirs}: not cancelled: access denied: " in result.err
    assert f"); cancelled: job {hers}\n" in result.err
    assert (alice.states([theirs]), alice.states([hers])) == (["PENDING"], ["CANCELLED"])


def test_the_time_limit_of_a_job_without_one_is_the_partitions_and_is_told(alice: Person) -> None:
    told = "time limit 1h, the default of partition gpu"
    assert told in alice.run("submit", "--dry-run", IMAGE, "true").err
    result = alice.run("submit", "--hold", IMAGE, "true")
    assert f"gputui: job {result.out.strip()}: {told}\n" in result.err
    assert alice.jobs()[int(result.out)]["time_limit"] == 3600


def test_a_limit_beyond_the_partitions_is_refused_before_it_is_submitted(bed: Bed, alice: Person) -> None:
    before = alice.jobs().keys()
    bed.run("scontrol", "update", "PartitionName=gpu", "MaxTime=2:00:00")
    try:
        settings = {"GPUTUI_STATE": str(alice.home / "fresh")}  # which knows no earlier answer of Slurm
        words = ("submit", "--time-limit", "3h", IMAGE, "true")
        result = alice.run(*words, check=False, environ=settings)
    finally:
        bed.run("scontrol", "update", "PartitionName=gpu", "MaxTime=INFINITE")
    assert (result.code, alice.jobs().keys()) == (2, before)
    assert "--time-limit: partition gpu allows 2h at most" in result.err


def test_a_user_is_told_in_our_words_that_only_operators_raise_priorities(alice: Person) -> None:
    before = alice.jobs().keys()
    result = alice.run("submit", "--priority", "70", IMAGE, "true", check=False)
    assert (result.code, alice.jobs().keys()) == (1, before)
    assert "only Slurm's operators may raise a priority above 50" in result.err


def test_an_operator_changes_the_time_limit_of_anothers_job(alice: Person, root: Person) -> None:
    job_id = submitted(alice, *HELD)
    told = root.run("edit", str(job_id), "--time-limit", "30m").err
    assert told == f"edited job {job_id}: time-limit 30m (was 10m)\n"
    assert alice.jobs()[job_id]["time_limit"] == 1800


def test_a_job_of_another_is_shown_as_what_it_is(bed: Bed, alice: Person, root: Person) -> None:
    job_id = submitted(alice, *HELD)
    shown = root.run("show", str(job_id)).out
    assert "not known here: its user submitted it by gputui elsewhere" in shown
    assert "gputui:" not in shown
    script = bed.run("sbatch", "--hold", "--parsable", "--output=/dev/null", "--wrap=true", user="bob").stdout
    assert "none: a batch script of its user" in root.run("show", script.strip()).out
    assert f" {IMAGE}\n" in alice.run("show", str(job_id)).out


def test_a_job_that_has_ended_is_not_run_again_where_slurm_refuses_it(bed: Bed, tmp_path: Path) -> None:
    cluster = cluster_of(bed, tmp_path)
    (job_id,) = cluster.submit([Submission(JobSpec(command=("true",)))], str(uuid4()))
    bed.wait(lambda: cluster.job(job_id).state.is_terminal, "the job has ended")
    assert cluster.job(job_id).runs_once
