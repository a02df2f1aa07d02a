"""Reasons of jobs in queues of Kueue, from workloads as its releases write them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from gputui.cluster.kubernetes.jobs import JobParts
from gputui.cluster.kubernetes.objects import KubeJob, KubePod, KubeWorkload, read_object
from gputui.cluster.kubernetes.picture import reason_of
from gputui.domain.state import PendingReason, Reason
from tests.cases import cases

_R = PendingReason
NOW = datetime(2026, 9, 11, 8, 0, tzinfo=UTC)
QUOTA = "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor h200, 1 more"
PREEMPTED = "Preempted to accommodate a workload (UID: 91c3, JobUID: 4e02) due to prioritization in the ClusterQueue"
JOB = {
    "metadata": {"name": "train", "namespace": "lab", "uid": "j1", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}},
    "spec": {"suspend": True},
}


def condition(kind: str, status: bool, reason: str, message: str) -> dict[str, Any]:
    at = "2026-09-11T07:59:58Z"
    told = {"type": kind, "status": str(status), "reason": reason, "message": message, "lastTransitionTime": at}
    return told | {"observedGeneration": 1}


def reason(status: dict[str, Any] | None, *, active: bool = True, pods: tuple[KubePod, ...] = ()) -> Reason:
    """Return the reason of a job whose workload has this status; None: there is no workload."""
    job = read_object(json.dumps(JOB).encode(), KubeJob)
    assert job is not None
    workload = None
    if status is not None:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j1", "controller": True}
        meta = {"name": "job-train-6f1d2", "namespace": "lab", "uid": "w1", "ownerReferences": [owner]}
        item = {"metadata": meta, "spec": {"queueName": "gpus", "active": active}, "status": status}
        workload = read_object(json.dumps(item).encode(), KubeWorkload)
    return reason_of(JobParts(job, 1, pods, workload, None, "/apis/kueue.x-k8s.io/v1beta2"), (), NOW)


@cases(
    ("word", "code", "words"),
    [
        ("Pending", _R.QUOTA_EXCEEDED, "waits for quota of its queue"),
        ("WaitingForQuota", _R.QUOTA_EXCEEDED, "waits for quota of its queue"),
        ("ExceedsMaxQuota", _R.QUOTA_EXCEEDED, "asks for more than its queue can ever have"),
        ("Inadmissible", _R.QUOTA_EXCEEDED, "Kueue cannot admit it"),
        ("Misconfigured", _R.QUOTA_EXCEEDED, "Kueue cannot admit it"),
        ("Suspended", _R.SCHEDULER_PAUSED, "its queue is stopped"),
        ("NoMatchingFlavor", _R.NODE_UNKNOWN, "no nodes of its queue fit"),
        ("TopologyPlacementFailed", _R.RESOURCES, "no nodes near each other are free"),
        ("WaitingForPreemptedWorkloads", _R.RESOURCES, "waits for the end of jobs that Kueue preempts for it"),
        ("WaitingForPodsReady", _R.PRIORITY, "waits until the pods of earlier jobs run"),
        ("PendingEvaluation", _R.PRIORITY, "Kueue has not looked at it yet"),
        ("AdmissionGated", _R.BACK_OFF, "another program keeps it out of its queue"),
    ],
)
def test_a_job_without_quota_has_the_reason_of_its_workload(word: str, code: PendingReason, words: str) -> None:
    found = reason({"conditions": [condition("QuotaReserved", False, word, QUOTA)]})
    assert found == Reason(code, f"{words}: {QUOTA} ({word})")


def test_jobs_of_kueue() -> None:
    # a job that Kueue has not seen
    assert reason(None) == Reason(_R.PRIORITY, "Kueue has not put it into its queue gpus yet (no Workload)")
    assert reason({}) == Reason(_R.PRIORITY, "Kueue has not looked at it yet (no QuotaReserved)")
    # a job with quota waits for its checks
    reserved = condition("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue lab")
    open_check = {"name": "provisioning", "state": "Pending", "message": "Waiting for 2 nodes", "retryCount": 1}
    checks = [open_check, {"name": "budget", "state": "Ready", "message": ""}]
    assert reason({"conditions": [reserved], "admissionChecks": checks}) == Reason(
        _R.BACK_OFF,
        "Kueue has quota for it, and waits for its checks: provisioning: Waiting for 2 nodes (Pending) (QuotaReserved)",
    )
    assert reason({"conditions": [reserved]}) == Reason(
        _R.PRIORITY, "Kueue has quota for it and starts it (QuotaReserved)"
    )
    # a job that Kueue preempted has no quota any more even if its pod still ends
    evicted = condition("Evicted", True, "Preempted", PREEMPTED)
    preempted = condition("Preempted", True, "InClusterQueue", PREEMPTED)
    before = condition("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue lab")
    scheduled = {"conditions": [{"type": "PodScheduled", "status": "True"}], "phase": "Running"}
    meta = {"name": "train-x", "uid": "p1", "deletionTimestamp": "2026-09-11T07:59:59Z"}
    pod = read_object(json.dumps({"metadata": meta, "status": scheduled}).encode(), KubePod)
    assert pod is not None
    words = f"sent back to its queue by Kueue: {PREEMPTED} (Preempted)"
    expected = Reason(_R.QUOTA_EXCEEDED, words)
    assert reason({"conditions": [before, evicted, preempted]}, pods=(pod,)) == expected
    waits = condition("QuotaReserved", False, "Pending", QUOTA)
    assert reason({"conditions": [waits, evicted, preempted]}) == Reason(_R.QUOTA_EXCEEDED, f"{words}; {QUOTA}")
    # Kueue tells when it tries a job again
    words = "Exceeded the PodsReady timeout lab/job-train-6f1d2"
    evicted = condition("Evicted", True, "PodsReadyTimeout", words)
    again = {"count": 2, "requeueAt": "2026-09-11T08:02:00Z"}
    told = f"sent back to its queue by Kueue: {words} (PodsReadyTimeout)"
    assert reason({"conditions": [evicted], "requeueState": again}) == Reason(
        _R.BACK_OFF, f"{told}; Kueue tries again at 08:02 UTC", (datetime(2026, 9, 11, 8, 2, tzinfo=UTC),)
    )
    over = {"count": 2, "requeueAt": "2026-09-11T07:02:00Z"}
    assert reason({"conditions": [evicted], "requeueState": over}) == Reason(_R.QUOTA_EXCEEDED, told)
    # a job that Kueue gave up says why
    by_user = condition("Evicted", True, "Deactivated", "The workload is deactivated")
    assert reason({"conditions": [by_user]}, active=False) == Reason(_R.JOB_HELD_USER, "held (Deactivated)")
    message = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"
    given_up = condition("Evicted", True, "DeactivatedDueToRequeuingLimitExceeded", message)
    assert reason({"conditions": [given_up]}, active=False) == Reason(
        _R.JOB_HELD_USER,
        f"Kueue has taken it out of its queue until it is released: {message} (DeactivatedDueToRequeuingLimitExceeded)",
    )
