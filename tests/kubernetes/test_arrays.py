"""Arrays as one indexed Job: elements have ids, states, ends and records of their own."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gputui.domain.action import Cancel, Hold, Release
from gputui.domain.cluster import array_of, index_of
from gputui.domain.errors import CauseCode, ClusterRefusedError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId, Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.state import JobState
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until


def states(harness: KubernetesHarness, ids: tuple[JobId, ...]) -> list[JobState]:
    return [harness.kube.job(job_id).state for job_id in ids]


def ended(harness: KubernetesHarness, job_id: JobId) -> Job:
    return until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it has ended")


def test_an_array_is_one_job_whose_elements_end_each_in_its_way(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(replace(spec(1), name="many"), array=(0, 1, 2))], "k1")
    [job] = harness.fake.objects.all("jobs")
    assert (job["metadata"]["name"], job["spec"]["completions"], job["spec"]["parallelism"]) == ("many-k1", 3, 3)
    assert (job["spec"]["backoffLimitPerIndex"], "backoffLimit" in job["spec"]) == (0, False)
    assert job["spec"]["podFailurePolicy"]["rules"][0]["action"] == "FailIndex"
    env = {each["name"]: each for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert env["GPUTUI_ARRAY_INDEX"]["valueFrom"] == {"fieldRef": {"fieldPath": path}}
    assert env["GPUTUI_JOB_ID"]["value"] == "k1-$(GPUTUI_ARRAY_INDEX)"
    assert [index_of(each) for each in ids] == [0, 1, 2]
    assert states(harness, ids) == [JobState.RUNNING] * 3
    harness.finish(harness.kube.job(ids[1]), 3)
    harness.finish(harness.kube.job(ids[0]), 0)
    assert (ended(harness, ids[1]).exit_code, ended(harness, ids[0]).exit_code) == (3, 0)
    assert states(harness, ids) == [JobState.COMPLETED, JobState.FAILED, JobState.RUNNING]
    harness.finish(harness.kube.job(ids[2]), 0)
    assert ended(harness, ids[2]).state is JobState.COMPLETED
    assert [line.partition(b" ")[2] for line in harness.kube.log(ended(harness, ids[1]), tail=None, follow=False)] == [
        b"ready"
    ]


def test_each_element_stays_in_the_history_after_kubernetes_removed_the_job(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(spec(1), array=(0, 1, 2))], "k1")
    for job_id, code in zip(ids, (0, 4, 0), strict=True):
        harness.finish(harness.kube.job(job_id), code)
        ended(harness, job_id)
    [job] = harness.fake.objects.all("jobs")
    harness.fake.objects.remove("jobs", job)
    harness.fake.controller.run()
    until(harness.kube.snapshot, lambda shown: not shown.jobs, "it is gone")
    assert {job.id: job.exit_code for job in harness.kube.history()} == dict(zip(ids, (0, 4, 0), strict=True))


def test_elements_of_an_array_that_vanished_unseen_have_an_end_that_is_unknown(harness: KubernetesHarness) -> None:
    ids = harness.open(state="mine").submit([Submission(spec(1), array=(0, 1, 2))], "k1")
    assert [job.id for job in harness.open(state="mine").history()] == []  # all are there
    [job] = harness.fake.objects.all("jobs")
    harness.fake.objects.remove("jobs", job)
    harness.fake.controller.run()
    later = harness.open(state="mine")
    causes = {job.id: job.cause and job.cause.code for job in later.history()}
    assert causes == dict.fromkeys(ids, CauseCode.END_UNKNOWN)


def test_no_more_than_the_limit_run_at_a_time(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(spec(1), array=tuple(range(5)), array_limit=2)], "k1")
    assert states(harness, ids) == [JobState.RUNNING] * 2 + [JobState.PENDING] * 3
    [waiting] = (job for job in harness.kube.snapshot().jobs if job.state is JobState.PENDING)
    assert waiting.shown_id == f"{array_of(ids[2])}_[2-4%2]"
    assert harness.kube.snapshot().reasons[waiting.id].text == "2 elements of its array run at a time (parallelism)"
    harness.finish(harness.kube.job(ids[0]), 1)
    until(lambda: states(harness, ids)[2], lambda state: state is JobState.RUNNING, "the next one runs")


def test_one_element_is_cancelled_and_the_others_go_on(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(spec(1), array=tuple(range(4)), array_limit=3)], "k1")
    assert harness.kube.act(Cancel((ids[1],))) == (ids[1],)
    job = ended(harness, ids[1])
    assert (job.state, job.cause and job.cause.code) == (JobState.CANCELLED, CauseCode.CANCELLED)
    until(lambda: states(harness, ids)[3], lambda state: state is JobState.RUNNING, "its place is taken")
    assert ended(harness, ids[1]).state is JobState.CANCELLED
    assert harness.open(user="bob").job(ids[1]).state is JobState.CANCELLED  # whoever looks
    assert harness.kube.act(Cancel(ids)) == (ids[0], *ids[2:])
    until(lambda: harness.fake.objects.all("jobs"), lambda jobs: not jobs, "the rest was one request")
    assert [request for request in harness.fake.requests if request.startswith("DELETE")][1:] == [
        "DELETE /apis/batch/v1/namespaces/lab/jobs/train-k1"
    ]
    assert job.array is not None
    assert harness.kube.act(Cancel((job.array.id,))) == ()  # all of it has ended
    with pytest.raises(NotFoundError):
        harness.kube.act(Cancel((job.array.id + 1,)))


def test_an_element_that_ends_well_when_it_is_cancelled_was_cancelled(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(spec(1), array=(0, 1))], "k1")
    harness.kube.act(Cancel((ids[0],)))
    [job] = harness.fake.objects.all("jobs")
    marks = {"completedIndexes": "0", "failedIndexes": ""}  # its program returned 0 on SIGTERM
    harness.fake.objects.change("jobs", job, lambda item: item["status"].update(marks))
    assert ended(harness, ids[0]).state is JobState.CANCELLED


def test_names_leave_room_for_the_index_in_the_names_of_pods(harness: KubernetesHarness) -> None:
    asked = Submission(spec(name="a" * 60), array=tuple(range(1000)), array_limit=1)
    harness.kube.submit([asked], "0123456789abcdef0123456789abcdef")
    [job] = harness.fake.objects.all("jobs")
    assert len(f"{job['metadata']['name']}-999") <= 63


def test_an_element_without_a_pod_is_cancelled_with_its_array_only(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(spec(1), array=(0, 1), array_limit=1)], "k1")
    with pytest.raises(ClusterRefusedError, match=r"job \d{10}_1: not cancelled: it has no pod yet"):
        harness.kube.act(Cancel((ids[1],)))
    assert states(harness, ids) == [JobState.RUNNING, JobState.PENDING]


def test_an_array_with_a_limit_is_held_and_released_as_a_whole(harness: KubernetesHarness) -> None:
    ids = harness.kube.submit([Submission(spec(1), held=True, array=(0, 1, 2), array_limit=2)], "k1")
    assert [job.held for job in harness.kube.snapshot().jobs] == [True]
    with pytest.raises(ClusterRefusedError, match="held and released as a whole"):
        harness.kube.act(Release((ids[0],)))
    assert harness.kube.act(Release(ids)) == ids
    until(lambda: states(harness, ids), lambda found: found.count(JobState.RUNNING) == 2, "two run")
    with pytest.raises(ClusterRefusedError, match="held and released as a whole"):
        harness.kube.act(Hold(ids))


def test_ids_are_the_same_on_a_release_with_a_job_for_each_element(make: MakeHarness) -> None:
    new, old = make("v1.29.0"), make("v1.28.9")
    ids = [harness.kube.submit([Submission(spec(), array=(0, 1, 2))], "k1") for harness in (new, old)]
    assert [len(harness.fake.objects.all("jobs")) for harness in (new, old)] == [1, 3]
    assert ids[0] == ids[1]


def test_kueue_gets_a_job_for_each_element_unless_their_number_is_limited(make: MakeHarness) -> None:
    harness = make(kueue=1, settings=ClusterSettings(kueue="gpus"))
    harness.kube.submit([Submission(spec(1), array=(0, 1))], "k1")
    assert len(harness.fake.objects.all("jobs")) == 2
    harness.kube.submit([Submission(spec(1), array=(0, 1), array_limit=1)], "k2")
    assert len(harness.fake.objects.all("jobs")) == 3


def test_an_array_in_a_queue_of_kueue_is_held_as_a_whole(make: MakeHarness) -> None:
    harness = make(kueue=0, settings=ClusterSettings(kueue="gpus"))
    ids = harness.kube.submit([Submission(spec(1), array=(0, 1, 2), array_limit=2)], "k1")
    assert states(harness, ids) == [JobState.PENDING] * 3
    with pytest.raises(ClusterRefusedError, match="held and released as a whole"):
        harness.kube.act(Hold((ids[1],)))
    assert harness.kube.act(Hold(ids)) == ids
    held = until(harness.kube.snapshot, lambda shown: all(job.held for job in shown.jobs), "its workload is not active")
    assert [tuple(job.ids) for job in held.jobs] == [ids]
