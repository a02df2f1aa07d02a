"""Reasons why a job waits, from the conditions of its pod, events and Kueue's workload, with their own words beside."""

from __future__ import annotations

from collections.abc import Iterable

from gputui.cluster.kubernetes.objects import KubeEvent, KubePod, KubeWorkload, condition
from gputui.cluster.kubernetes.phases import told
from gputui.domain.state import PendingReason, Reason

_R = PendingReason
HELD = Reason(_R.JOB_HELD_USER, "held (Suspended)")
_FAULTS = {
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImagePull": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node",
    "InvalidImageName": "the name of its image is not valid",
    "CreateContainerConfigError": "its container cannot be set up",
    "CreateContainerError": "its container cannot be created",
}
"""Words for what keeps a container from starting, by the reason for which it waits."""


def reason_of(pod: KubePod | None, workload: KubeWorkload | None, events: Iterable[KubeEvent]) -> Reason:
    """Return why a job waits that is not held, from the latest of its events."""
    if workload is not None and pod is None:
        return _of_workload(workload)
    if pod is None:
        return _without_pod(events)
    scheduled = condition(pod.status.conditions, "PodScheduled")
    if scheduled is None or scheduled.status == "True":
        return Reason(_R.PRIORITY, "Kubernetes has not looked at it yet (Pending)")
    word, message = told(scheduled.reason, "Pending"), told(scheduled.message)
    if word == "SchedulingGated":
        return Reason(_R.BACK_OFF, f"another program keeps it back by a gate: {message} ({word})")
    if "Insufficient" in message or not message:
        return Reason(_R.RESOURCES, _sentence("waits for resources", message, word))
    return Reason(_R.NODE_UNKNOWN, _sentence("no node takes it", message, word))


def _without_pod(events: Iterable[KubeEvent]) -> Reason:
    failed = next((event for event in events if event.reason == "FailedCreate"), None)
    if failed is None:
        return Reason(_R.PRIORITY, "Kubernetes has not made a pod for it yet (no pod)")
    message = told(failed.message)
    code = _R.QUOTA_EXCEEDED if "quota" in message else _R.BACK_OFF
    return Reason(code, _sentence("its pod cannot be created", message, "FailedCreate"))


def _of_workload(workload: KubeWorkload) -> Reason:
    """Return Kueue's reason: it starts a job once its queue has quota for it."""
    evicted = condition(workload.status.conditions, "Evicted")
    reserved = condition(workload.status.conditions, "QuotaReserved")
    if reserved is not None and reserved.status == "True":
        return Reason(_R.PRIORITY, "Kueue has quota for it and starts it once its checks are over (QuotaReserved)")
    if reserved is None:
        return Reason(_R.PRIORITY, "Kueue has not looked at it yet (no QuotaReserved)")
    word, message = told(reserved.reason, "Pending"), told(reserved.message)
    if evicted is not None and evicted.status == "True":
        return Reason(
            _R.QUOTA_EXCEEDED, _sentence("sent back to its queue by Kueue", message, told(evicted.reason, word))
        )
    if word == "Inadmissible":
        return Reason(_R.QUOTA_EXCEEDED, _sentence("Kueue cannot admit it", message, word))
    return Reason(_R.QUOTA_EXCEEDED, _sentence("waits for quota of its queue", message, word))


def progress_of(pod: KubePod, events: Iterable[KubeEvent]) -> str:
    """Return what a pod with a node waits for before its container runs, from the latest of its events."""
    waiting = pod.container.waiting
    word = told(waiting.reason if waiting else None, "Pending")
    if waiting is not None and word in _FAULTS:
        return _sentence(_FAULTS[word], told(waiting.message), word)
    if (warning := next(iter(events), None)) is not None:
        return _sentence("it cannot be started yet", told(warning.message), told(warning.reason, word))
    return f"its container is being made ({word})"


def _sentence(words: str, message: str, word: str) -> str:
    return f"{words}: {message} ({word})" if message else f"{words} ({word})"
