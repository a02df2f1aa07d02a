"""Reasons why a job waits, from its pod, its events and Kueue's workload, with their own words beside ours."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gputui.cluster.kubernetes.jobs import JobParts, newest, sentence, told
from gputui.cluster.kubernetes.manifest import QUEUE
from gputui.cluster.kubernetes.objects import KubeEvent, KubePod, KubeWorkload, condition, is_true
from gputui.domain.state import PendingReason, Reason, utc_moment

_R = PendingReason
_WORDS = {
    "Inadmissible": (_R.QUOTA_EXCEEDED, "Kueue cannot admit it"),
    "Misconfigured": (_R.QUOTA_EXCEEDED, "Kueue cannot admit it"),
    "ExceedsMaxQuota": (_R.QUOTA_EXCEEDED, "asks for more than its queue can ever have"),
    "Suspended": (_R.SCHEDULER_PAUSED, "its queue is stopped"),
    "NoMatchingFlavor": (_R.NODE_UNKNOWN, "no nodes of its queue fit"),
    "TopologyPlacementFailed": (_R.RESOURCES, "no nodes near each other are free"),
    "WaitingForPreemptedWorkloads": (_R.RESOURCES, "waits for the end of jobs that Kueue preempts for it"),
    "WaitingForPodsReady": (_R.PRIORITY, "waits until the pods of earlier jobs run"),
    "Waiting": (_R.PRIORITY, "waits until the pods of earlier jobs run"),
    "PendingEvaluation": (_R.PRIORITY, "Kueue has not looked at it yet"),
    "OnHold": (_R.BACK_OFF, "another program keeps it out of its queue"),
    "AdmissionGated": (_R.BACK_OFF, "another program keeps it out of its queue"),
}
"""Code and words for a job without quota, by Kueue's reason; for any other reason it waits for quota."""
_BY_USER = "Deactivated"
HELD = Reason(_R.JOB_HELD_USER, "held (Suspended)")
_FAULTS = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "RegistryUnavailable": "its image cannot be pulled",
    "SignatureValidationFailed": "its image cannot be pulled",
    "ImageInspectError": "its image cannot be read",
    "ErrImageNeverPull": "its image is not on the node",
    "InvalidImageName": "the name of its image is not valid",
    "CreateContainerConfigError": "its container cannot be set up",
    "CreateContainerError": "its container cannot be created",
}
"""Words for what keeps a container from starting, by the reason for which it waits."""
_UNDER_WAY = frozenset({"Pending", "ContainerCreating", "PodInitializing"})
_NO_ROOM = ("Insufficient", "Too many pods", "cannot allocate all claims")
"""Words of the scheduler about nodes that have not enough free; claims are those of dynamic resource allocation."""


def _held_in_queue(workload: KubeWorkload) -> Reason:
    """Return why a job is out of its queue: somebody holds it, or Kueue has given it up."""
    evicted = condition(workload.status.conditions, "Evicted")
    if evicted is None or evicted.status != "True" or not (evicted.reason or "").startswith("DeactivatedDueTo"):
        return Reason(_R.JOB_HELD_USER, f"held ({_BY_USER})")
    words = sentence("Kueue has taken it out of its queue until it is released", told(evicted.message), evicted.reason)
    return Reason(_R.JOB_HELD_USER, words)


def _queue_reason(workload: KubeWorkload | None, queue: str, now: datetime) -> Reason:
    """Return why a job waits in a queue: Kueue starts it once the queue has quota for it, and all checks agree."""
    if workload is None:
        return Reason(_R.PRIORITY, f"Kueue has not put it into its queue {told(queue)} yet (no Workload)")
    conditions = workload.status.conditions
    reserved = condition(conditions, "QuotaReserved")
    if is_true(conditions, "Evicted"):
        return _of_evicted(workload, now)
    if reserved is None:
        return Reason(_R.PRIORITY, "Kueue has not looked at it yet (no QuotaReserved)")
    if reserved.status == "True":
        checks = [each for each in workload.status.admission_checks or () if each.state != "Ready"]
        if not checks:
            return Reason(_R.PRIORITY, "Kueue has quota for it and starts it (QuotaReserved)")
        told_of = (sentence(told(each.name), told(each.message), told(each.state, "Pending")) for each in checks)
        what = f"Kueue has quota for it, and waits for its checks: {'; '.join(told_of)} (QuotaReserved)"
        return Reason(_R.BACK_OFF, what)
    word = told(reserved.reason, "Pending")
    code, words = _WORDS.get(word, (_R.QUOTA_EXCEEDED, "waits for quota of its queue"))
    return Reason(code, sentence(words, told(reserved.message), word))


def _of_evicted(workload: KubeWorkload, now: datetime) -> Reason:
    """Return why a job that has run, or was about to, is in its queue again."""
    evicted = condition(workload.status.conditions, "Evicted")
    reserved = condition(workload.status.conditions, "QuotaReserved")
    assert evicted is not None
    words = sentence("sent back to its queue by Kueue", told(evicted.message), told(evicted.reason, "Evicted"))
    later = told(reserved.message) if reserved is not None and reserved.status == "False" else ""
    words += f"; {later}" if later and later != told(evicted.message) else ""
    again = workload.status.requeue_state.requeue_at if workload.status.requeue_state else None
    if again is not None and again > now:
        return Reason(_R.BACK_OFF, f"{words}; Kueue tries again at {utc_moment(again, now)}", (again,))
    return Reason(_R.QUOTA_EXCEEDED, words)


def reason_of(parts: JobParts, events: Iterable[KubeEvent], now: datetime) -> Reason:
    """Return why a job waits, from the latest of its events."""
    if parts.is_held:
        return _held_in_queue(parts.workload) if parts.is_queued and parts.workload is not None else HELD
    pod = newest(parts.pods)
    if parts.is_queued and (pod is None or parts.job.spec.suspend):
        return _queue_reason(parts.workload, parts.job.metadata.label(QUEUE), now)
    if pod is None:
        failed = next((event for event in events if event.reason == "FailedCreate"), None)
        most = parts.job.spec.parallelism
        if failed is None and parts.job.is_array and most != parts.job.spec.completions:
            return Reason(_R.RESOURCES, f"{most} elements of its array run at a time (parallelism)")
        if failed is None:
            return Reason(_R.PRIORITY, "Kubernetes has not made a pod for it yet (no pod)")
        message = told(failed.message)
        code = _R.QUOTA_EXCEEDED if "quota" in message else _R.BACK_OFF
        return Reason(code, sentence("its pod cannot be created", message, "FailedCreate"))
    return _of_pod(pod)


def _of_pod(pod: KubePod) -> Reason:
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return Reason(_R.PRIORITY, "Kubernetes has not looked at it yet (Pending)")
    word, message = told(scheduled.reason, "Pending"), told(scheduled.message)
    if word == "SchedulingGated":
        return Reason(_R.BACK_OFF, f"another program keeps it back by a gate: {message} ({word})")
    if not message or any(words in message for words in _NO_ROOM):
        place = told(pod.status.nominated_node_name)
        words = f"node {place} is being freed for it" if place else "waits for resources"
        return Reason(_R.RESOURCES, sentence(words, message, word))
    return Reason(_R.NODE_UNKNOWN, sentence("no node takes it", message, word))


def progress_of(pod: KubePod, events: Iterable[KubeEvent]) -> str:
    """Return what a pod with a node waits for before its container runs, from the latest of its events."""
    waiting = pod.container.waiting
    word = told(waiting.reason if waiting else None, "Pending")
    if waiting is not None and word not in _UNDER_WAY:
        return sentence(_FAULTS.get(word, "its container cannot be started"), told(waiting.message), word)
    told_since = (event for event in events if event.reason != "FailedScheduling")  # since then a node has taken it
    if (warning := next(told_since, None)) is not None:
        return sentence("it cannot be started yet", told(warning.message), told(warning.reason, word))
    return f"its container is being made ({word})"
