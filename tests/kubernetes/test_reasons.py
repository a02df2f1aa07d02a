"""Reasons of waiting jobs, with the words of Kubernetes and of Kueue beside ours; what is shown of foreign jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gputui.domain.action import DrainGpus, Hold, Release, ResumeGpus
from gputui.domain.gpu import GpuState
from gputui.domain.job_spec import Submission
from gputui.domain.settings import ClusterSettings
from gputui.domain.state import JobState, PendingReason, Reason
from tests.factories import spec
from tests.kubernetes.conftest import MakeHarness
from tests.kubernetes.harness import KubernetesHarness
from tests.kubernetes.waiting import until

KUEUE = ClusterSettings(kueue="lab")


def reason(harness: KubernetesHarness, job_id: int) -> Reason:
    return harness.kube.snapshot().reasons[job_id]


def test_pods_that_no_node_has_room_for(harness: KubernetesHarness) -> None:
    # a pod without room waits for resources
    [job_id] = harness.kube.submit([Submission(spec(3))], "k1")
    assert reason(harness, job_id) == Reason(
        PendingReason.RESOURCES,
        "waits for resources: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu. (Unschedulable)",
    )
    # a pod for which others are preempted says where
    [job_id] = harness.kube.submit([Submission(spec(3))], "k1")
    pod = harness.pod(harness.kube.job(job_id))
    harness.fake.objects.change("pods", pod, lambda item: item["status"].update(nominatedNodeName="gpu2"))
    until(
        lambda: reason(harness, job_id).text,
        lambda text: text.startswith("node gpu2 is being freed for it: 0/3 nodes are available"),
        "the node is told",
    )


def test_a_pod_that_no_node_takes_waits_for_nodes(harness: KubernetesHarness) -> None:
    harness.kube.act(DrainGpus(("gpu1", "gpu2", "gpu3"), "moving house"))
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    found = reason(harness, job_id)
    assert found.code is PendingReason.NODE_UNKNOWN
    assert "3 node(s) were unschedulable" in found.text


def test_a_pod_over_the_quota_of_its_namespace_waits_for_quota(harness: KubernetesHarness) -> None:
    harness.fake.controller.quota = 0
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    found = until(lambda: reason(harness, job_id), lambda found: "quota" in found.text, "the event is seen")
    assert found.code is PendingReason.QUOTA_EXCEEDED
    assert found.text.endswith("exceeded quota: pods, limited: pods=0 (FailedCreate)")


def test_a_pod_whose_image_is_missing_says_so(harness: KubernetesHarness) -> None:
    harness.fake.controller.unpullable.add("busybox")
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    snapshot = until(harness.kube.snapshot, lambda snapshot: snapshot.progress, "the pod is seen")
    assert harness.kube.job(job_id).state is JobState.CONFIGURING
    assert snapshot.progress[job_id].startswith("its image cannot be pulled: Back-off pulling image")


def test_a_pod_that_cannot_be_started_has_the_words_of_its_warning(harness: KubernetesHarness) -> None:
    harness.fake.controller.unpullable.add("busybox")
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    pod = harness.pod(harness.kube.job(job_id))
    making = {"waiting": {"reason": "ContainerCreating"}}
    harness.fake.objects.change("pods", pod, lambda item: item["status"]["containerStatuses"][0].update(state=making))
    words = 'MountVolume.SetUp failed for volume "data": hostPath type check failed'
    about = {"kind": "Pod", "uid": pod["metadata"]["uid"]}
    event = {"metadata": {"name": "e1", "namespace": "lab"}, "involvedObject": about, "type": "Warning"}
    harness.fake.objects.create("events", event | {"reason": "FailedMount", "message": words})
    expected = f"it cannot be started yet: {words} (FailedMount)"
    until(lambda: harness.kube.snapshot().progress.get(job_id), lambda told: told == expected, "the warning is seen")


def test_an_old_warning_of_the_scheduler_is_no_obstacle_once_a_node_has_the_pod(harness: KubernetesHarness) -> None:
    harness.fake.controller.unpullable.add("busybox")
    [job_id] = harness.kube.submit([Submission(spec(1))], "k1")
    pod = harness.pod(harness.kube.job(job_id))
    making = {"waiting": {"reason": "ContainerCreating"}}
    harness.fake.objects.change("pods", pod, lambda item: item["status"]["containerStatuses"][0].update(state=making))
    event = {"metadata": {"name": "e1", "namespace": "lab"}, "type": "Warning", "reason": "FailedScheduling"}
    about = {"kind": "Pod", "uid": pod["metadata"]["uid"]}
    harness.fake.objects.create("events", event | {"involvedObject": about, "message": "0/3 nodes are available"})
    expected = "its container is being made (ContainerCreating)"
    until(lambda: harness.kube.snapshot().progress.get(job_id), lambda told: told == expected, "the event is seen")


def test_a_job_of_kueue_waits_for_quota_and_starts(make: MakeHarness) -> None:
    harness = make(settings=KUEUE, kueue=2)
    first, second = harness.kube.submit([Submission(spec(2)), Submission(spec(1))], "k1")
    found = until(lambda: harness.kube.snapshot().reasons, lambda found: "needed" in str(found), "Kueue has judged")
    [waiting] = found
    assert waiting in (first, second)
    assert found[waiting].code is PendingReason.QUOTA_EXCEEDED
    assert "insufficient unused quota for nvidia.com/gpu" in found[waiting].text
    assert not harness.kube.job(waiting).held  # Kueue suspends it, nobody holds it
    [running] = {first, second} - {waiting}
    harness.fake.controller.finish(harness.pod(harness.kube.job(running)), 0)
    until(lambda: harness.kube.job(waiting).state, lambda state: state is JobState.RUNNING, "the other one starts")


def test_a_job_of_kueue_is_held_and_released(make: MakeHarness) -> None:
    harness = make(settings=KUEUE, kueue=2)
    [job_id] = harness.kube.submit([Submission(spec(1), held=True)], "k1")
    assert harness.kube.job(job_id).held
    assert not harness.fake.objects.all("workloads")  # Kueue does not know of it yet
    assert harness.kube.act(Release((job_id,))) == (job_id,)
    until(lambda: harness.kube.job(job_id).state, lambda state: state is JobState.RUNNING, "it starts")
    [waiting] = harness.kube.submit([Submission(spec(2))], "k2")
    until(harness.kube.snapshot, lambda seen: "needed" in str(seen.reasons), "Kueue has judged")
    assert harness.kube.act(Hold((waiting,))) == (waiting,)
    assert harness.kube.job(waiting).held
    assert harness.fake.objects.all("workloads")[-1]["spec"]["active"] is False
    assert harness.kube.act(Release((waiting,))) == (waiting,)
    assert not harness.kube.job(waiting).held


def foreign(harness: KubernetesHarness, name: str, **more: Any) -> None:
    """Create a job that another tool made."""
    container = {
        "name": "main",
        "image": "evil/\x1b[31mimage",
        "command": ["sh", "-c"],
        "args": ["echo $$HOME\x07"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    template = {"spec": {"containers": [container], "activeDeadlineSeconds": 60}}
    item = {"metadata": {"name": name, "namespace": "other", "labels": {}} | more, "spec": {"template": template}}
    harness.fake.objects.create("jobs", item | {"status": {}})
    harness.fake.controller.run()


def test_jobs_of_other_tools_are_shown_without_control_characters(harness: KubernetesHarness) -> None:
    notes = {
        "gputui.name": "a\x1b]0;owned\x07[bold]b\u202e",
        "gputui.user": "mallory\n\x1b[2J",
        "gputui.comment": "\x9b31m",
    }
    foreign(harness, "theirs", annotations=notes)
    [job] = harness.kube.snapshot().jobs
    for text in (job.name, job.submitted_by, job.spec.comment, job.spec.tenant, job.spec.image or ""):
        assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 or letter == "\u202e" for letter in text), text
    assert (job.spec.tenant, job.spec.gpus.minimum, job.spec.command[-1][:10]) == ("other", 1, "echo $HOME")
    assert job.state is JobState.RUNNING


def test_an_object_that_cannot_be_read_does_not_hide_the_others(harness: KubernetesHarness) -> None:
    foreign(harness, "odd", labels={"gputui.array": "x" * 60, "gputui.index": "99999999999"})
    broken = {"metadata": {"name": "broken", "namespace": "lab", "labels": {}}, "spec": {"suspend": "perhaps"}}
    broken["spec"]["template"] = {"spec": {"containers": [{"name": "x", "image": "y"}]}}  # type: ignore[index]
    harness.fake.objects.create("jobs", broken | {"status": {}})
    assert [job.name for job in harness.kube.snapshot().jobs] == ["odd"]


def test_gpus_of_a_node_are_counted(harness: KubernetesHarness) -> None:
    harness.fake.add_node("gpu4", 4)
    harness.kube.act(DrainGpus(("gpu1", "gpu2", "gpu3"), "moving house"))
    first, second = harness.kube.submit([Submission(spec(1)), Submission(spec(2))], "k1")
    until(lambda: harness.kube.job(second).state, lambda state: state is JobState.RUNNING, "both run")
    node = next(node for node in harness.kube.snapshot().nodes if node.name == "gpu4")
    assert [view.state for view in node.gpus] == [*[GpuState.ALLOCATED] * 3, GpuState.FREE]
    assert not any(view.job_ids for view in node.gpus)
    assert set(node.gpus[0].why.removeprefix("3 of 4 in use: ").split(", ")) == {
        f"job {first} train has 1",
        f"job {second} train has 2",
    }
    assert (node.gpus[0].gpu.uuid, node.gpus[0].gpu.model) == ("gpu4:0", "NVIDIA H200")


def test_a_drained_node_has_its_reason_and_a_node_that_is_not_ready_its_own(harness: KubernetesHarness) -> None:
    harness.kube.act(DrainGpus(("gpu1",), "fan\nnoise"))
    drain = harness.kube.snapshot().nodes[0].gpus[0].drain
    assert drain is not None
    assert (drain.reason, drain.by) == ("fan noise", "alice")
    assert abs((datetime.now(UTC) - drain.at).total_seconds()) < 600
    node = harness.fake.objects.get("nodes", "", "gpu2")
    away = [{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}]
    harness.fake.objects.change("nodes", node, lambda item: item["status"].update(conditions=away))
    views = until(
        lambda: harness.kube.snapshot().nodes[1].gpus, lambda views: views[0].state is GpuState.UNKNOWN, "it is away"
    )
    assert views[0].why == "node gpu2 is not ready: Kubelet stopped posting node status."
    harness.kube.act(ResumeGpus(("gpu1",)))
    assert not any(view.drain for view in harness.kube.snapshot().gpus)
