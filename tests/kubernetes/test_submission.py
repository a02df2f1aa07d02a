"""Submissions: idempotent, refused before anything is created, in the shape that Kubernetes takes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.domain.errors import ClusterRefusedError, InputError
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.state import JobState
from tests.cases import cases
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.harness import KubernetesHarness


def test_a_job_runs_once_in_a_pod_that_is_never_restarted(harness: KubernetesHarness) -> None:
    asked = replace(spec(2), name="train", time_limit=timedelta(minutes=90), priority=80)
    harness.kube.submit([Submission(asked)], "k1")
    [job] = harness.fake.objects.all("jobs")
    pod = job["spec"]["template"]["spec"]
    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == ("train-k1", "lab")
    assert (job["spec"]["backoffLimit"], job["spec"]["ttlSecondsAfterFinished"]) == (0, 7 * 86400)
    assert (pod["restartPolicy"], pod["priorityClassName"], pod["activeDeadlineSeconds"]) == (
        *("Never", "batch-high"),
        5400,
    )
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"


def test_a_submission_that_was_killed_before_its_note_is_found_again(harness: KubernetesHarness) -> None:
    """The server has the job, and the journal of this machine ends before its number."""
    first = harness.open(state="shared")
    ids = first.submit([Submission(spec()), Submission(spec(), array=(0, 1))], "k1")
    journal = harness.directory / "shared" / "submissions.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines) + 1):  # killed after each note
        journal.write_bytes(b"".join(lines[:kept]))
        again = harness.open(state="shared")
        assert again.submit([Submission(spec()), Submission(spec(), array=(0, 1))], "k1") == ids
        assert len(harness.fake.objects.all("jobs")) == 2
    journal.unlink()  # another machine, or all notes lost
    assert harness.open().submit([Submission(spec()), Submission(spec(), array=(0, 1))], "k1") == ids


def test_two_consoles_agree_on_numbers_without_a_shared_file(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(spec()), Submission(spec(), array=(3, 5), held=True)], "k1")
    other = harness.open(user="bob")
    assert {job_id for job in other.snapshot().jobs for job_id in job.ids} == set(ids)
    assert all(len(str(job.id)) == 12 for job in other.snapshot().jobs if job.array is None)


@cases(
    ("asked", "option"),
    [
        (replace(spec(), retries=2), "--retries"),
        (replace(spec(), gpus=GpuRequest(1, 2)), "--gpus"),
        (replace(spec(), gpus=GpuRequest(1, 1, model="h100")), "--gpu-model"),
    ],
)
def test_what_no_pod_can_do_is_refused(harness: KubernetesHarness, asked: JobSpec, option: str) -> None:
    with pytest.raises(InputError) as refused:
        harness.kube.submit([Submission(asked)], "k1")
    assert refused.value.where == option
    assert not harness.fake.objects.all("jobs")


@cases(
    ("release", "array", "sweep"),
    [("v1.28.0", (0, 1), ()), ("v1.31.2", (1, 2), ()), ("v1.31.2", (0, 1), (("lr", "1,2"),))],
)
def test_a_limit_is_refused_for_elements_that_one_job_cannot_have(
    make: MakeHarness, release: str, array: tuple[int, ...], sweep: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(InputError, match="limit of elements"):
        make(release).kube.submit([Submission(spec(sweep=sweep), array=array, array_limit=1)], "k1")


def test_nothing_is_created_if_one_of_several_jobs_would_be_refused(harness: KubernetesHarness) -> None:
    token = harness.fake.access.add_user("ann")
    without = harness.open(token, "ann")
    with pytest.raises(ClusterRefusedError, match="access denied"):
        without.submit([Submission(spec())] * 2, "k1")
    assert not harness.fake.objects.all("jobs")


def test_the_namespace_of_the_settings_goes_first(make: MakeHarness) -> None:
    harness = make(settings=ClusterSettings(namespace="research"))
    [job_id] = harness.kube.submit([Submission(spec())], "k1")
    assert harness.fake.objects.all("jobs", "research")
    assert harness.kube.job(job_id).state is JobState.RUNNING


def test_a_key_that_cannot_be_a_name_is_refused(harness: KubernetesHarness) -> None:
    with pytest.raises(InputError, match="a key has"):
        harness.kube.submit([Submission(spec())], "../../x")


def test_the_name_of_another_job_is_not_taken_for_ours(harness: KubernetesHarness) -> None:
    harness.fake.objects.create(
        "jobs",
        {
            "metadata": {"name": "train-k1", "namespace": "lab", "labels": {}},
            "spec": {"suspend": True, "template": {"spec": {"containers": [{"name": "x", "image": "y"}]}}},
        },
    )
    with pytest.raises(ClusterRefusedError, match="another job has this name"):
        harness.kube.submit([Submission(replace(spec(), name="train"))], "k1")
