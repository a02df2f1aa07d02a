"""Capabilities of Kubernetes for a user."""

from __future__ import annotations

from gputui.cluster.kubernetes import calls
from gputui.cluster.kubernetes.site import KubeSite
from gputui.domain.cluster import FOR_ONE_MACHINE, Capability, Caps

ENGINE = "Kubernetes"
_C = Capability
_NEVER = {
    _C.MOVE: "Kubernetes orders its queue itself, by priority and age",
    _C.TOP: "Kubernetes orders its queue itself: submit the job with a higher priority",
    _C.EDIT: "a job in Kubernetes is not changed: cancel it and submit it again",
    _C.RAISE_PRIORITY: "Kubernetes fixes the priority of a job when it is submitted",
    _C.LOWER_PRIORITY: "Kubernetes fixes the priority of a job when it is submitted",
    _C.EXTEND: "Kubernetes fixes the time limit of a pod when it is made",
    _C.REQUEUE: "a job in Kubernetes runs once: submit it again",
    _C.DEPENDENCIES: "jobs in Kubernetes do not wait for each other",
    _C.TEST_ONLY: "Kubernetes does not forecast when a job starts",
    _C.WHAT_IF: "Kubernetes does not forecast when jobs start",
    _C.SIGNAL: "Kubernetes sends signals only to end a pod",
    _C.SUSPEND: "Kubernetes cannot stop the processes of a pod and keep its GPUs",
    _C.PAUSE: "Kubernetes has no pause for the whole cluster: drain nodes, or stop the queues of Kueue",
    _C.DRAIN_GPU: "Kubernetes drains nodes, not single GPUs",
    _C.RESERVE: "Kubernetes has no reservations",
    _C.RECURRING: "Kubernetes repeats jobs by CronJobs, not from here",
    _C.GPU_IDS: "Kubernetes tells how many GPUs of a node a pod has, not which",
}
_COMMANDS = {
    **FOR_ONE_MACHINE,
    "reserve": "an administrator keeps nodes for somebody by taints, or by quotas of Kueue",
    "tenant": "an administrator sets limits by ResourceQuotas of namespaces, or by quotas of Kueue",
    "cron": "submit at regular times by a CronJob",
    "pause": "an administrator stops a queue of Kueue: stopPolicy of its ClusterQueue",
    "unpause": "an administrator starts a queue of Kueue again: stopPolicy of its ClusterQueue",
}
_NO_SUSPEND = "Kubernetes suspends jobs from release 1.22 on, and this server is older"
_NO_HOLD = "this user may not change jobs: the right to patch jobs is missing"
_NO_CORDON = "only those who may change nodes can drain them: the right to patch nodes is missing"
_NO_EXEC = "this user may run no commands in pods: the right to create pods/exec is missing"
_NO_ATTACH = "this user may not attach to pods: the right to create pods/attach is missing"
_NO_LOGS = "this user may not read the output of pods: the right to get pods/log is missing"


def caps_of(site: KubeSite | None) -> Caps:
    """Return the capabilities; before the server has answered, those of a user with no rights beyond her own jobs."""
    lacking = dict(_NEVER)
    if site is None:
        lacking[_C.DRAIN_NODE] = _NO_CORDON
        return Caps(ENGINE, lacking, _COMMANDS)
    if not site.can_suspend:
        lacking[_C.HOLD] = _NO_SUSPEND
    elif not site.may(calls.HOLD):
        lacking[_C.HOLD] = _NO_HOLD
    if not site.may(calls.CORDON):
        lacking[_C.DRAIN_NODE] = _NO_CORDON
    if not site.may(calls.EXEC):
        lacking[_C.INSIDE] = _NO_EXEC
    if not site.may(calls.ATTACH):
        lacking[_C.STREAMS] = _NO_ATTACH
    if not site.may(calls.LOGS):
        lacking[_C.LIVE_LOG] = _NO_LOGS
    return Caps(ENGINE, lacking, _COMMANDS)
