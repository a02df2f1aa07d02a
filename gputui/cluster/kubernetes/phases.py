"""States of jobs and causes of their ends, from jobs and pods of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gputui.cluster.kubernetes.objects import KubeCondition, KubeJob, KubePod, KubeTerminated, condition, is_true
from gputui.domain.cause import Cause, CauseCode, cause_of_exit
from gputui.domain.state import JobState
from gputui.domain.text import plain

_DEADLINE = "DeadlineExceeded"
_LOST = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
_NOT_STARTED = frozenset({"StartError", "ContainerCannotRun"})
_MOST_WORDS = 300


def told(*parts: str | None) -> str:
    """Return the first text that says something, on one line: other programs wrote it."""
    found = next((text for text in parts if text), "")
    return plain(" ".join(found.split()))[:_MOST_WORDS]


def sentence(words: str, message: str, word: str | None) -> str:
    """Return our words, what Kubernetes says, and its own word for it."""
    return f"{words}: {message} ({word})" if message else f"{words} ({word})"


def newest(pods: Iterable[KubePod]) -> KubePod | None:
    """Return the pod that was made last."""
    return max(pods, key=lambda pod: (_moment(pod.metadata.creation_timestamp), pod.metadata.name), default=None)


def state_of(job: KubeJob, pods: Iterable[KubePod]) -> JobState:
    """Return the state of a job with these pods."""
    known = list(pods)
    if _ends_by_deletion(job):
        return JobState.COMPLETING
    if end_of(job) is not None and _is_behind(newest(known)):
        return JobState.COMPLETING
    if is_true(job.status.conditions, "Complete"):
        return JobState.COMPLETED
    if is_true(job.status.conditions, "Failed"):
        return _failure(job, newest(known))
    states = {_of_pod(pod) for pod in known}
    if job.spec.suspend:
        return JobState.PENDING
    order = (JobState.RUNNING, JobState.CONFIGURING, JobState.PENDING, JobState.COMPLETING)
    return next((state for state in order if state in states), JobState.PENDING)


def _ends_by_deletion(job: KubeJob) -> bool:
    """Return whether a job is deleted that had not ended before: the ends of its pods are no ends of its own."""
    deleted, ended = job.metadata.deletion_timestamp, end_of(job)
    return deleted is not None and (ended is None or ended >= deleted)


def _is_behind(pod: KubePod | None) -> bool:
    """Return whether the end of the last pod of an ended job is still to come: jobs and pods are watched separately.

    A job ends after its pod, or has its pod deleted. Without the pod's end, its exit code and cause are unknown.
    """
    return pod is not None and _of_pod(pod) is JobState.RUNNING


def _of_pod(pod: KubePod) -> JobState:
    if pod.is_over or pod.metadata.deletion_timestamp is not None:
        return JobState.COMPLETING
    if pod.container.terminated is not None:
        return JobState.COMPLETING
    if pod.status.phase == "Pending":
        return JobState.CONFIGURING if pod.spec.node_name else JobState.PENDING
    return JobState.RUNNING


def _failure(job: KubeJob, pod: KubePod | None) -> JobState:
    end = pod.container.terminated if pod is not None else None
    if end is not None and end.reason == "OOMKilled":
        return JobState.OUT_OF_MEMORY
    failed = condition(job.status.conditions, "Failed")
    if (failed is not None and failed.reason == _DEADLINE) or (pod is not None and pod.status.reason == _DEADLINE):
        return JobState.TIMEOUT
    return JobState.FAILED


def end_of(job: KubeJob) -> datetime | None:
    """Return when a job has ended."""
    if job.status.completion_time is not None:
        return job.status.completion_time
    failed = condition(job.status.conditions, "Failed")
    return failed.last_transition_time if failed is not None and failed.status == "True" else None


def exit_code_of(pod: KubePod | None) -> int | None:
    """Return the exit code of a pod's container; None while it runs, and where it never did."""
    end = pod.container.terminated if pod is not None else None
    return end.exit_code if end is not None else None


def cause_of(job: KubeJob, pod: KubePod | None) -> Cause | None:
    """Return why a job failed, with Kubernetes' own words; None if it did not."""
    if not is_true(job.status.conditions, "Failed"):
        return None
    state, end = _failure(job, pod), pod.container.terminated if pod is not None else None
    if state is JobState.TIMEOUT:
        return Cause(CauseCode.TIME_LIMIT, f"ran into its time limit ({_DEADLINE})")
    if state is JobState.OUT_OF_MEMORY:
        return Cause(CauseCode.OUT_OF_MEMORY, "ran over its memory limit (OOMKilled)")
    if pod is not None and (found := _of_infrastructure(pod)) is not None:
        return found
    if end is not None and end.exit_code:
        return _of_end(end)
    failed = condition(job.status.conditions, "Failed")
    words = told(failed.message if failed else None, "failed")
    reason = told(failed.reason if failed else None, "Failed")
    if reason == "PodFailurePolicy" and "DisruptionTarget" in words:
        what = "its pod was preempted, evicted or removed with its node"
        return Cause(CauseCode.CONTAINER_LOST, sentence(what, words, reason))
    if pod is None:
        return Cause(CauseCode.END_UNKNOWN, f"{words} ({reason}); its pod is gone")
    return Cause(CauseCode.RUNTIME_ERROR, f"{words} ({reason})")


def _of_end(end: KubeTerminated) -> Cause | None:
    if end.reason in _NOT_STARTED:
        return Cause(
            CauseCode.COMMAND_NOT_FOUND, f"could not be started: {told(end.message, end.reason)} ({end.reason})"
        )
    return cause_of_exit(end.exit_code or 0)


def _of_infrastructure(pod: KubePod) -> Cause | None:
    where, reason = f"node {told(pod.spec.node_name, '?')}", told(pod.status.reason)
    disrupted = condition(pod.status.conditions, "DisruptionTarget")
    if reason == "Preempting" or _is_preempted(disrupted):
        return Cause(
            CauseCode.PREEMPTED, f"preempted by Kubernetes for another pod ({reason or 'PreemptionByScheduler'})"
        )
    if reason == "Evicted":
        return Cause(
            CauseCode.CONTAINER_LOST, f"evicted from {where}: {told(pod.status.message, 'no reason')} (Evicted)"
        )
    if reason in _LOST:
        return Cause(CauseCode.CONTAINER_LOST, f"lost with {where}: {told(pod.status.message, reason)} ({reason})")
    if disrupted is not None and disrupted.status == "True":
        words, word = told(disrupted.message, "no reason"), told(disrupted.reason, "DisruptionTarget")
        return Cause(CauseCode.CONTAINER_LOST, f"removed from {where}: {words} ({word})")
    if _is_deleted(pod):
        return Cause(CauseCode.CONTAINER_LOST, f"its pod on {where} was deleted in Kubernetes")
    if reason and pod.container.terminated is None:  # the node has its own look at what it may run
        return Cause(CauseCode.RUNTIME_ERROR, f"refused by {where}: {told(pod.status.message, reason)} ({reason})")
    return None


def _is_deleted(pod: KubePod) -> bool:
    """Return whether somebody deleted a pod whose container had not ended."""
    deleted, end = pod.metadata.deleted_at, pod.container.terminated
    return deleted is not None and (end is None or end.finished_at is None or end.finished_at >= deleted)


def _is_preempted(disrupted: KubeCondition | None) -> bool:
    return disrupted is not None and disrupted.status == "True" and disrupted.reason == "PreemptionByScheduler"


def _moment(at: datetime | None) -> float:
    return at.timestamp() if at else 0.0
