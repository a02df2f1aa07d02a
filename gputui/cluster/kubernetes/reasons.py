"""Reasons why a job waits, from the conditions of its pod, and events, with Kubernetes' own words beside ours."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gputui.cluster.kubernetes import kueue, phases
from gputui.cluster.kubernetes.jobs import JobParts
from gputui.cluster.kubernetes.manifest import QUEUE
from gputui.cluster.kubernetes.objects import KubeEvent, KubePod, condition
from gputui.cluster.kubernetes.phases import sentence, told
from gputui.domain.state import PendingReason, Reason

_R = PendingReason
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


def reason_of(parts: JobParts, events: Iterable[KubeEvent], now: datetime) -> Reason:
    """Return why a job waits, from the latest of its events."""
    if parts.is_held:
        return kueue.held(parts.workload) if parts.is_queued and parts.workload is not None else HELD
    pod = phases.newest(parts.pods)
    if parts.is_queued and (pod is None or parts.job.spec.suspend):
        return kueue.reason_of(parts.workload, parts.job.metadata.label(QUEUE), now)
    return _without_pod(events) if pod is None else _of_pod(pod)


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


def _without_pod(events: Iterable[KubeEvent]) -> Reason:
    failed = next((event for event in events if event.reason == "FailedCreate"), None)
    if failed is None:
        return Reason(_R.PRIORITY, "Kubernetes has not made a pod for it yet (no pod)")
    message = told(failed.message)
    code = _R.QUOTA_EXCEEDED if "quota" in message else _R.BACK_OFF
    return Reason(code, sentence("its pod cannot be created", message, "FailedCreate"))


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
