"""Pods of other programs' making: containers beside that of the job, and what nodes and controllers do to pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gputui.cluster.kubernetes.logs import log_query
from gputui.cluster.kubernetes.objects import KubeJob, KubePod, Reader
from gputui.cluster.kubernetes.phases import cause_of, exit_code_of
from gputui.domain.cause import Cause, CauseCode

FAILED = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached its limit"}


def container(name: str, gpus: int = 0, *, stays: bool = False) -> dict[str, Any]:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    return {"name": name, "image": "busybox", **limits, **({"restartPolicy": "Always"} if stays else {})}


def pod_of(spec: dict[str, Any], status: dict[str, Any] | None = None, default: str = "") -> KubePod:
    annotations = {"kubectl.kubernetes.io/default-container": default} if default else {}
    meta = {"name": "train-x", "namespace": "lab", "annotations": annotations}
    found = Reader(KubePod).read(json.dumps({"metadata": meta, "spec": spec, "status": status or {}}).encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
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


def test_the_container_of_the_job_is_not_one_that_a_mesh_puts_before_it() -> None:
    spec = {"containers": [container("istio-proxy"), container("job")]}
    ends = [
        {"name": name, "state": {"terminated": {"exitCode": code}}} for name, code in (("istio-proxy", 0), ("job", 3))
    ]
    pod = pod_of(spec, {"containerStatuses": ends})
    assert (pod.main.name, exit_code_of(pod), log_query(pod)["container"]) == ("job", 3, "job")
    theirs = {"containers": [container("proxy"), container("main")]}
    assert pod_of(theirs).main.name == "proxy"
    assert pod_of(theirs, default="main").main.name == "main"


def test_a_job_tells_that_its_pod_was_taken_away_once_that_is_gone() -> None:
    words = "Pod lab/train-x has condition DisruptionTarget matching FailJob rule at index 0"
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": words}
    item = {"metadata": {"name": "train"}, "status": {"conditions": [failed]}}
    job = Reader(KubeJob).read(json.dumps(item).encode())
    assert job is not None
    told = f"its pod was preempted, evicted or removed with its node: {words} (PodFailurePolicy)"
    assert cause_of(job, None) == Cause(CauseCode.CONTAINER_LOST, told)


@pytest.mark.parametrize(
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
    job = Reader(KubeJob).read(json.dumps({"metadata": {"name": "train"}, "status": {"conditions": [FAILED]}}).encode())
    assert job is not None
    pod = pod_of({"nodeName": "gpu1", "containers": [container("job", 1)]}, {"phase": "Failed"} | status)
    assert cause_of(job, pod) == cause
