"""Reasons why Kueue keeps a job in its queue, from the job's workload, with Kueue's own words beside ours."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gputui.cluster.kubernetes.objects import KubeAdmissionCheck, KubeWorkload, condition, is_true
from gputui.cluster.kubernetes.phases import sentence, told
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


def held(workload: KubeWorkload) -> Reason:
    """Return why a job is out of its queue: somebody holds it, or Kueue has given it up."""
    evicted = condition(workload.status.conditions, "Evicted")
    if evicted is None or evicted.status != "True" or not (evicted.reason or "").startswith("DeactivatedDueTo"):
        return Reason(_R.JOB_HELD_USER, f"held ({_BY_USER})")
    words = sentence("Kueue has taken it out of its queue until it is released", told(evicted.message), evicted.reason)
    return Reason(_R.JOB_HELD_USER, words)


def reason_of(workload: KubeWorkload | None, queue: str, now: datetime) -> Reason:
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
        return _of_admission(workload)
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


def _of_admission(workload: KubeWorkload) -> Reason:
    """Return what a job with quota waits for."""
    open_checks = "; ".join(_of_checks(workload.status.admission_checks or ()))
    if open_checks:
        return Reason(_R.BACK_OFF, f"Kueue has quota for it, and waits for its checks: {open_checks} (QuotaReserved)")
    return Reason(_R.PRIORITY, "Kueue has quota for it and starts it (QuotaReserved)")


def _of_checks(checks: tuple[KubeAdmissionCheck, ...]) -> Iterator[str]:
    for check in checks:
        if check.state != "Ready":
            yield sentence(told(check.name), told(check.message), told(check.state, "Pending"))
