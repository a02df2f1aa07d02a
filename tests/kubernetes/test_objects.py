"""Pods of other programs' making: containers beside that of the job, and what nodes and controllers do to pods."""

from __future__ import annotations

import json
from typing import Any

from gputui.cluster.kubernetes.jobs import cause_of, exit_code_of
from gputui.cluster.kubernetes.objects import KubeJob, KubeNode, KubePod, read_object
from gputui.cluster.kubernetes.picture import nodes_of
from gputui.cluster.kubernetes.records import log_query
from gputui.domain.errors import Cause, CauseCode
from tests.cases import cases

FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached its limit"}


def container(name: str, gpus: int = 0, *, stays: bool = False) -> dict[str, Any]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return {"name": name, "image": "busybox", **limits, **({"restartPolicy": "Always"} if stays else {})}


def pod_of(spec: dict[str, Any], status: dict[str, Any] | None = None, default: str = "") -> KubePod:
    annotations = {"kubectl.kubernetes.io/default-container": default} if default else {}
    meta = {"name": "train-x", "namespace": "lab", "annotations": annotations}
    found = read_object(json.dumps({"metadata": meta, "spec": spec, "status": status or {}}).encode(), KubePod)
    assert found is not None
    return found


@cases(
    ("before", "gpus"),
    [
        ([], 3),
        ([container("download", 2)], 3),
        ([container("warm-up", 4)], 4),
        ([container("exporter", 1, stays=True)], 4),
        ([container("exporter", 1, stays=True), container("warm-up", 4)], 5),
    ],
)
def test_init_containers_take_gpus_before_or_beside_the_others(before: list[dict[str, Any]], gpus: int) -> None:
    assert pod_of({"initContainers": before, "containers": [container("a", 1), container("b", 2)]}).spec.gpus == gpus


def test_containers_and_nodes() -> None:
    # the container of the job is not one that a mesh puts before it
    spec = {"containers": [container("istio-proxy"), container("job")]}
    ends = [
        {"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in (("istio-proxy", 0), ("job", 3))
    ]
    pod = pod_of(spec, {"containerStatuses": ends})
    assert (pod.main.name, exit_code_of(pod), log_query(pod)["container"]) == ("job", 3, "job")
    theirs = {"containers": [container("proxy"), container("main")]}
    assert pod_of(theirs).main.name == "proxy"
    assert pod_of(theirs, default="main").main.name == "main"
    # instances and shares of GPUs are shown beside whole ones
    capacity = {"nvidia.com/gpu": "1", "nvidia.com/gpu.shared": "2", "nvidia.com/mig-1g.10gb": "2", "cpu": "8"}
    node = node_of(capacity, **{"nvidia.com/gpu.memory": "81920", "nvidia.com/mig-1g.10gb.memory": "9728"})
    limits = {"nvidia.com/mig-1g.10gb": "1", "nvidia.com/gpu.shared": "1", "nvidia.com/gpu": "0", "memory": "1Gi"}
    placed = {"nodeName": "gpu1", "containers": [{"name": "main", "resources": {"limits": limits}}]}
    owner = {"kind": "PyTorchJob", "name": "bert", "uid": "o1", "controller": True}
    meta = {"name": "bert-0", "namespace": "vision", "ownerReferences": [owner]}
    data = json.dumps({"metadata": meta, "spec": placed, "status": {"phase": "Running"}}).encode()
    there = read_object(data, KubePod)
    assert there is not None
    assert there.spec.gpus == 2
    [shown] = nodes_of([node], [there], {})
    states = [(view.gpu.uuid, view.gpu.mig_profile, view.state.value) for view in shown.gpus]
    assert states == [
        ("gpu1:0", None, "FREE"),
        ("gpu1:1", None, "ALLOCATED"),
        ("gpu1:2", None, "FREE"),
        ("gpu1:3", "1g.10gb", "ALLOCATED"),
        ("gpu1:4", "1g.10gb", "FREE"),
    ]
    who = "in use: pod vision/bert-0 of PyTorchJob bert has 1"
    assert shown.gpus[1].why == f"1 of 2 shares of GPUs {who}"
    assert shown.gpus[3].why == f"1 of 2 instances 1g.10gb {who}"
    assert [(view.gpu.memory_total or 0) // 1024**3 for view in (shown.gpus[0], shown.gpus[3])] == [80, 9]
    # a job tells that its pod was taken away once that is gone
    words = "Pod lab/train-x has condition DisruptionTarget matching FailJob rule at index 0"
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": words}
    item = {"metadata": {"name": "train"}, "status": {"conditions": [failed]}}
    job = read_object(json.dumps(item).encode(), KubeJob)
    assert job is not None
    told = f"its pod was preempted, evicted or removed with its node: {words} (PodFailurePolicy)"
    assert cause_of(job, None) == Cause(CauseCode.CONTAINER_LOST, told)


def node_of(capacity: dict[str, str], **labels: str) -> KubeNode:
    item = {"metadata": {"name": "gpu1", "labels": labels}, "status": {"capacity": capacity, "allocatable": capacity}}
    found = read_object(json.dumps(item).encode(), KubeNode)
    assert found is not None
    return found


@cases(
    ("status", "cause"),
    [
        (
            {"reason": "UnexpectedAdmissionError", "message": "Pod was rejected: no healthy nvidia.com/gpu"},
            Cause(
                CauseCode.RUNTIME_ERROR,
                "refused by node gpu1: Pod was rejected: no healthy nvidia.com/gpu (UnexpectedAdmissionError)",
            ),
        ),
        (
            {"reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."},
            Cause(
                CauseCode.CONTAINER_LOST,
                "lost with node gpu1: Pod was terminated in response to imminent node shutdown. (Terminated)",
            ),
        ),
        (
            {
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "EvictionByEvictionAPI",
                        "message": "Eviction API: evicting",
                    }
                ]
            },
            Cause(CauseCode.CONTAINER_LOST, "removed from node gpu1: Eviction API: evicting (EvictionByEvictionAPI)"),
        ),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
            Cause(CauseCode.PREEMPTED, "preempted by Kubernetes for another pod (PreemptionByScheduler)"),
        ),
    ],
)
def test_a_pod_that_its_node_or_a_controller_ended(status: dict[str, Any], cause: Cause) -> None:
    job = read_object(json.dumps({"metadata": {"name": "train"}, "status": {"conditions": [FAILED]}}).encode(), KubeJob)
    assert job is not None
    pod = pod_of({"nodeName": "gpu1", "containers": [container("job", 1)]}, {"phase": "Failed"} | status)
    assert cause_of(job, pod) == cause
