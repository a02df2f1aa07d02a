"""Ends of jobs, records of them, and their output after Kubernetes has removed them."""

from __future__ import annotations

from typing import Any

import pytest

from gputui.cluster.kubernetes.cluster import KubernetesCluster
from gputui.domain.action import Cancel
from gputui.domain.errors import Cause, CauseCode, ClusterUnavailableError, NotFoundError
from gputui.domain.job import Job
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState
from tests.cases import cases
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.fake.objects import now
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until


def texts(cluster: KubernetesCluster, job: Job, tail: int | None = None) -> list[bytes]:
    return [line.partition(b" ")[2] for line in cluster.log(job, tail=tail, follow=False)]


def ended(harness: KubernetesHarness, **end: Any) -> Job:
    """Return a job that has ended so."""
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    harness.fake.controller.finish(harness.pod(harness.kube.job(job_id)), **end)
    return until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it has ended")


def copies(harness: KubernetesHarness) -> int:
    """Return how often output was asked for."""
    return sum(request.endswith("/log") for request in harness.fake.requests)


@cases(
    ("end", "state", "cause"),
    [
        ({"exit_code": 0}, JobState.COMPLETED, None),
        ({"exit_code": 3}, JobState.FAILED, CauseCode.NON_ZERO_EXIT),
        ({"exit_code": 143}, JobState.FAILED, CauseCode.SIGNALLED),
        ({"exit_code": 137, "reason": "OOMKilled"}, JobState.OUT_OF_MEMORY, CauseCode.OUT_OF_MEMORY),
        ({"exit_code": 137, "pod_reason": "DeadlineExceeded"}, JobState.TIMEOUT, CauseCode.TIME_LIMIT),
        ({"exit_code": 137, "pod_reason": "Evicted"}, JobState.FAILED, CauseCode.CONTAINER_LOST),
        ({"exit_code": 137, "pod_reason": "NodeShutdown"}, JobState.FAILED, CauseCode.CONTAINER_LOST),
        ({"exit_code": 137, "pod_reason": "Preempting"}, JobState.FAILED, CauseCode.PREEMPTED),
        ({"exit_code": 128, "reason": "StartError"}, JobState.FAILED, CauseCode.COMMAND_NOT_FOUND),
    ],
)
def test_an_end_has_a_state_and_a_cause(
    make: MakeHarness, end: dict[str, Any], state: JobState, cause: CauseCode | None
) -> None:
    job = ended(make(), **end)
    assert (job.state, job.cause.code if job.cause else None) == (state, cause)
    assert job.exit_code == end["exit_code"]
    assert job.ended_at is not None


def test_a_job_that_kubernetes_removed_is_known_with_its_output(harness: KubernetesHarness) -> None:
    job = ended(harness, exit_code=3)
    for item in harness.fake.objects.all("jobs"):
        harness.fake.objects.remove("jobs", item)
    harness.fake.controller.run()
    until(harness.kube.snapshot, lambda snapshot: not snapshot.jobs, "it is gone")
    known = harness.kube.job(job.id)
    assert (known.state, known.exit_code) == (JobState.FAILED, 3)
    assert texts(harness.kube, known) == [b"ready"]
    assert texts(harness.kube, known, tail=0) == []
    assert [each.id for each in harness.kube.history()] == [job.id]
    with pytest.raises(NotFoundError):
        harness.open().job(job.id)  # another machine kept nothing


def test_a_cancelled_job_is_shown_until_its_pod_has_ended(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    harness.fake.controller.is_slow_to_end = True
    assert harness.kube.act(Cancel((job_id,))) == (job_id,)
    assert harness.kube.job(job_id).state is JobState.COMPLETING
    assert harness.kube.act(Cancel((job_id,))) == ()
    harness.fake.controller.end_deleted()
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it is gone")
    assert (job.state, job.cancelled_by) == (JobState.CANCELLED, "alice")
    assert texts(harness.kube, job) == [b"ready"]
    assert not harness.fake.objects.all("pods")


def test_a_cancelled_job_has_the_exit_code_and_the_last_output_of_its_container(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    pod = harness.pod(harness.kube.job(job_id))
    harness.fake.controller.is_slow_to_end = True
    harness.kube.act(Cancel((job_id,)))
    harness.fake.controller.write(pod, "saved")
    harness.fake.controller.finish(pod, 9)  # now Kubernetes calls the job failed, and still removes it
    until(harness.kube.snapshot, lambda _: copies(harness) == 2, "its end is seen")
    assert harness.kube.job(job_id).state is JobState.COMPLETING
    harness.fake.controller.end_deleted()
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it is gone")
    assert (job.state, job.exit_code, job.cancelled_by) == (JobState.CANCELLED, 9, "alice")
    assert texts(harness.kube, job) == [b"ready", b"saved"]


def test_a_node_that_has_removed_a_container_does_not_replace_its_output(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    pod = harness.pod(harness.kube.job(job_id))
    harness.fake.controller.is_slow_to_end = True
    harness.kube.act(Cancel((job_id,)))
    harness.fake.controller.lost_logs.add(pod["metadata"]["uid"])
    harness.fake.controller.finish(pod, 9)
    until(harness.kube.snapshot, lambda _: copies(harness) == 2, "its end is seen")
    assert texts(harness.kube, harness.kube.job(job_id)) == [b"ready"]
    harness.fake.controller.end_deleted()
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it is gone")
    assert (job.exit_code, texts(harness.kube, job)) == (9, [b"ready"])


def test_output_that_its_node_has_removed_is_read_from_the_copy(harness: KubernetesHarness) -> None:
    job = ended(harness, exit_code=3)
    harness.fake.controller.lost_logs |= {pod["metadata"]["uid"] for pod in harness.fake.objects.all("pods")}
    assert texts(harness.kube, job) == [b"ready"]
    with pytest.raises(NotFoundError, match="cannot be read: unable to retrieve container logs for docker://b186"):
        texts(harness.open(), job)


def test_a_job_whose_node_does_not_answer_says_so(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state is JobState.RUNNING, "it runs")
    assert job.attempt is not None
    node = harness.fake.objects.get("nodes", "", job.attempt.node)
    away = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]
    harness.fake.objects.change("nodes", node, lambda item: item["status"].update(conditions=away))
    expected = f"node {job.attempt.node} is not ready: Kubelet stopped posting node status."
    until(lambda: harness.kube.snapshot().progress.get(job_id), lambda told: told == expected, "the node is away")


def test_a_job_that_somebody_else_deletes_is_recorded_while_it_is_watched(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    until(harness.kube.snapshot, lambda _: any("watch" in each for each in harness.fake.requests), "it is watched")
    for item in harness.fake.objects.all("jobs"):
        harness.fake.objects.remove("jobs", item)
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it is gone")
    assert (job.state, job.cause and job.cause.text) == (JobState.CANCELLED, "deleted in Kubernetes")


def test_a_job_whose_pod_is_gone_has_the_cause_that_the_pod_told(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    until(harness.kube.snapshot, lambda _: any("watch" in each for each in harness.fake.requests), "it is watched")
    objects, pod = harness.fake.objects, harness.pod(harness.kube.job(job_id))
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "Taint"}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": now()}
    with objects.lock:
        objects.change("pods", pod, lambda item: item["status"].update(conditions=[disrupted], phase="Failed"))
        objects.change("jobs", objects.all("jobs")[0], lambda item: item["status"].update(conditions=[failed]))
        objects.remove("pods", pod)
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it has ended")
    assert job.attempt is not None
    assert (job.state, job.attempt.node) == (JobState.FAILED, "gpu1")
    assert job.cause == Cause(CauseCode.CONTAINER_LOST, "removed from node gpu1: Taint (DeletionByTaintManager)")
    later = harness.open(state="state-0")  # it has not watched, and reads the record
    assert later.job(job_id).cause == job.cause
    assert [each.cause for each in later.history()] == [job.cause]


def test_the_output_of_a_pod_that_is_being_removed_is_kept(harness: KubernetesHarness) -> None:
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    until(harness.kube.snapshot, lambda _: any("watch" in each for each in harness.fake.requests), "it is watched")
    objects, pod = harness.fake.objects, harness.pod(harness.kube.job(job_id))
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "lastTransitionTime": now()}
    objects.change("pods", pod, lambda item: item["metadata"].update(deletionTimestamp=now()))
    until(harness.kube.snapshot, lambda _: copies(harness) == 1, "its output is copied")
    with objects.lock:
        objects.change("jobs", objects.all("jobs")[0], lambda item: item["status"].update(conditions=[failed]))
        objects.remove("pods", pod)
    job = until(lambda: harness.kube.job(job_id), lambda job: job.state.is_terminal, "it has ended")
    assert job.cause == Cause(CauseCode.CONTAINER_LOST, "its pod on node gpu1 was deleted in Kubernetes")
    assert texts(harness.kube, job) == [b"ready"]


def test_the_output_of_a_job_that_has_not_started_is_waited_for(harness: KubernetesHarness) -> None:
    harness.fake.controller.unpullable.add("busybox")
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    job = harness.kube.job(job_id)
    with pytest.raises(NotFoundError):
        list(harness.kube.log(job, tail=None, follow=False))
    stream = harness.kube.log(job, tail=None, follow=True)
    harness.fake.controller.unpullable.clear()
    harness.fake.controller.run()
    assert next(iter(stream)).endswith(b" ready")
    stream.close()


def test_a_node_that_is_down_hides_the_output_of_its_jobs_and_nothing_else(harness: KubernetesHarness) -> None:
    harness.fake.silent_nodes.add("gpu1")
    first = ended(harness, exit_code=3)
    assert first.attempt is not None
    assert first.attempt.node == "gpu1"
    [other] = harness.kube.submit([Submission(spec(1))], "k2")
    for _ in range(4):  # more often than the output is asked for
        assert harness.kube.snapshot().job(other) is not None
    with pytest.raises(ClusterUnavailableError, match="i/o timeout"):
        texts(harness.kube, first)
    assert harness.kube.act(Cancel((other,))) == (other,)  # it is on that node too
    wanted = {first.id, other}
    until(lambda: {job.id for job in harness.kube.history()}, lambda ids: ids == wanted, "the watch shows both ends")
