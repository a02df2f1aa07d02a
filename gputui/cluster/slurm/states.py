"""Slurm's states of jobs, its reasons why they wait, and the causes of their ends, in the words of ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache

from gputui.domain.errors import Cause, CauseCode, cause_of_exit, signal_name
from gputui.domain.state import JobState, PendingReason, Reason, utc_moment

_STATES: Mapping[str, JobState] = {
    "PENDING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "CONFIGURING": JobState.CONFIGURING,
    "POWER_UP_NODE": JobState.CONFIGURING,
    "EXPEDITING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "UPDATE_DB": JobState.RUNNING,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "PREEMPTED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    "FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "END_UNKNOWN": JobState.FAILED,
}
END_UNKNOWN = "END_UNKNOWN"
"""Our own word for the state of a job that ended while nobody looked, and whose exit code nobody noted."""
_HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})
_PLAIN_CAUSES: Mapping[str, tuple[CauseCode, str]] = {
    "CANCELLED": (CauseCode.CANCELLED, "cancelled"),
    "REVOKED": (CauseCode.CANCELLED, "started in another cluster"),
    "PREEMPTED": (CauseCode.PREEMPTED, "preempted by Slurm for another job"),
    "DEADLINE": (CauseCode.TIME_LIMIT, "its deadline has passed"),
    "NODE_FAIL": (CauseCode.CONTAINER_LOST, "{node} was lost"),
    "BOOT_FAIL": (CauseCode.RUNTIME_UNAVAILABLE, "{node} did not start"),
    "LAUNCH_FAILED": (CauseCode.RUNTIME_ERROR, "could not be started on {node}"),
    "RECONFIG_FAIL": (CauseCode.RUNTIME_UNAVAILABLE, "{node} could not be configured"),
}
_UNSATISFIED = "DependencyNeverSatisfied"
_NO_OUTPUT = 53
"""Signal that Slurm names for a batch script whose output file it cannot open."""
_LAST_SIGNAL = 64
_WITHOUT_CODE = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
_R = PendingReason
_REASONS: Mapping[str, tuple[PendingReason, str]] = {
    "Resources": (_R.RESOURCES, "waits for resources"),
    "Priority": (_R.PRIORITY, "jobs before it wait too"),
    "None": (_R.PRIORITY, "Slurm has not looked at it yet"),
    "Dependency": (_R.DEPENDENCY, "waits for other jobs"),
    "DependencyNeverSatisfied": (_R.DEPENDENCY, "waits for ever: a job that it depends on failed"),
    "BeginTime": (_R.BEGIN_TIME, "waits for its begin time"),
    "JobHeldUser": (_R.JOB_HELD_USER, "held by its user"),
    "JobHeldAdmin": (_R.JOB_HELD_USER, "held by an administrator"),
    "JobHoldMaxRequeue": (_R.JOB_HELD_USER, "held: it was requeued too often"),
    "job_requeued_in_held_state": (_R.JOB_HELD_USER, "held: it was requeued so"),
    "launch_failed_requeued_held": (_R.JOB_HELD_USER, "held: its start failed on the node"),
    "Reservation": (_R.RESERVATION, "waits for its reservation"),
    "ReservationDeleted": (_R.RESERVATION, "its reservation was deleted"),
    "JobArrayTaskLimit": (_R.RESOURCES, "as many elements of its array run as may at a time"),
    "Licenses": (_R.RESOURCES, "waits for licences"),
    "NodeDown": (_R.NODE_UNKNOWN, "a node that it needs is down"),
    "PartitionDown": (_R.SCHEDULER_PAUSED, "its partition starts no jobs: it is down"),
    "PartitionInactive": (_R.SCHEDULER_PAUSED, "its partition starts no jobs: it is inactive"),
    "PartitionNodeLimit": (_R.QUOTA_EXCEEDED, "asks for more nodes than its partition gives a job"),
    "PartitionTimeLimit": (_R.QUOTA_EXCEEDED, "its time limit is longer than its partition allows"),
    "InactiveLimit": (_R.QUOTA_EXCEEDED, "reached the partition's limit of inactive time"),
    "BadConstraints": (_R.RESOURCES, "no node has what it asks for"),
    "InvalidAccount": (_R.QUOTA_EXCEEDED, "its account is not valid"),
    "InvalidQOS": (_R.QUOTA_EXCEEDED, "its QOS is not valid"),
    "AccountingPolicy": (_R.QUOTA_EXCEEDED, "over a limit of its account"),
    "Cleaning": (_R.BACK_OFF, "its previous run is being cleaned up"),
    "Prolog": (_R.RESOURCES, "the prolog runs on its nodes"),
    "FrontEndDown": (_R.NODE_UNKNOWN, "no front end is up"),
    "SchedDefer": (_R.PRIORITY, "Slurm starts jobs at its next pass only"),
    "DeadLine": (_R.BEGIN_TIME, "cannot end before its deadline"),
    "BurstBufferResources": (_R.RESOURCES, "waits for burst buffers"),
    "BurstBufferStageIn": (_R.RESOURCES, "its data is being copied in"),
    "MaxJobCount": (_R.QUOTA_EXCEEDED, "Slurm has as many jobs as it takes"),
    "OutOfMemory": (_R.RESOURCES, "its last run ran out of memory"),
}
_LIMITED = (
    ("Minutes", ": time on GPUs, CPUs and the like"),
    ("Usage", ": use so far"),
    ("Submit", ": jobs in the queue"),
    ("Jobs", ": running jobs"),
    ("GRES", ": GPUs or other devices"),
    ("Cpu", ": CPUs"),
    ("Mem", ": memory"),
    ("Node", ": nodes"),
    ("Wall", ": run time"),
    ("Time", ": run time"),
    ("JobLimit", ": running jobs"),
)
"""Parts of Slurm's words for limits of accounts and QOS, in the order of search, and what is limited."""
_UNAVAILABLE = "ReqNodeNotAvail"


@lru_cache(maxsize=1024)
def state_of(word: str) -> JobState:
    """Return our state for Slurm's, `CANCELLED by 1000` included; a state of a later Slurm counts as running."""
    return _STATES.get(word.split(" ")[0].rstrip("+"), JobState.RUNNING)


def cause_of(
    word: str,
    exit_code: int | None,
    signal: int | None,
    *,
    nodes: tuple[str, ...] = (),
    limit: timedelta | None = None,
    reason: str = "",
    told: str = "",
) -> Cause | None:
    """Return why a job ended in a state of Slurm's; None if it succeeded or has not ended.

    `told` is what the batch script knew better: the code of a cause, a blank and a sentence.
    """
    state, where = word.split(" ")[0].rstrip("+"), ", ".join(nodes)
    if state == "TIMEOUT":
        return Cause(CauseCode.TIME_LIMIT, f"ran into its time limit{f' of {limit}' if limit else ''} (TIMEOUT)")
    if state == "OUT_OF_MEMORY":
        return Cause(CauseCode.OUT_OF_MEMORY, "ran over its memory limit (OUT_OF_MEMORY)")
    if state == "CANCELLED" and reason == _UNSATISFIED:
        return Cause(CauseCode.CANCELLED, f"cancelled by Slurm: a job that it depends on failed ({reason})")
    if state in _PLAIN_CAUSES:
        code, text = _PLAIN_CAUSES[state]
        return Cause(code, f"{text.format(node=f'node {where}' if where else 'a node')} ({state})")
    if state_of(word) is not JobState.FAILED:
        return None
    code_told, _, sentence = told.partition(" ")
    with suppress(ValueError):
        return Cause(CauseCode(code_told), sentence)
    if not nodes:
        return Cause(CauseCode.RUNTIME_ERROR, f"Slurm could not start it ({reason or state})")
    if signal == _NO_OUTPUT:
        return Cause(
            CauseCode.RUNTIME_ERROR, f"could not be started on node {where}: its output cannot be written there"
        )
    if signal and not exit_code:
        return Cause(CauseCode.SIGNALLED, f"ended by {signal_name(signal)}")
    return cause_of_exit(exit_code) if exit_code else Cause(CauseCode.NON_ZERO_EXIT, "failed (FAILED)")


def exit_code_of(word: str, exit_code: int | None, signal: int | None) -> int | None:
    """Return one number for exit code and signal, as shells do: 137 for SIGKILL.

    None where Slurm has the 0 of a job that did not come to its end, or a 1 of its own: a lost or cancelled one has no
    exit code.
    """
    if word in _WITHOUT_CODE or signal == _NO_OUTPUT:
        return None
    if exit_code:
        return exit_code
    if signal and signal <= _LAST_SIGNAL:  # 125 stands for memory that ran out
        return 128 + signal
    return exit_code if state_of(word) is JobState.COMPLETED else None


def is_admin_hold(word: str) -> bool:
    """Return whether an administrator holds the job: its user may not release it."""
    return word == "JobHeldAdmin"


def is_held(state: str, reason: str) -> bool:
    """Return whether a job that waits in that state, for that reason, is held."""
    return state in _HELD or (reason in _REASONS and _REASONS[reason][0] is _R.JOB_HELD_USER)


def reason_of(word: str, dependency: str, begins_at: datetime | None, now: datetime) -> Reason:
    """Return the reason for a word of Slurm's, with its dependencies or its begin time."""
    if begins_at is not None and word.split(",")[0].strip() == "BeginTime":
        return Reason(_R.BEGIN_TIME, f"begins at {utc_moment(begins_at, now)} (BeginTime)", (begins_at,))
    return _timeless(word, dependency)


@lru_cache(maxsize=1024)
def _timeless(word: str, dependency: str) -> Reason:
    """Return the reason for a word of Slurm's. Cached: thousands of jobs wait for one reason."""
    head = word.split(",")[0].strip()
    if head.startswith(_UNAVAILABLE):
        nodes = word.partition("UnavailableNodes:")[2].strip()
        which = f": {nodes}" if nodes else ""
        return Reason(_R.NODE_UNKNOWN, f"nodes that it needs are down, drained or reserved{which} ({_UNAVAILABLE})")
    code, text = _REASONS.get(head) or _guessed(head)
    if code is _R.DEPENDENCY and dependency:
        text += f": {dependency}"
    return Reason(code, f"{text} ({head})")


def _guessed(word: str) -> tuple[PendingReason, str]:
    """Return the kind of one of Slurm's many limits: `QOSMaxGRESPerUser`, `AssocGrpCpuLimit`."""
    who = "its QOS" if word.startswith("QOS") else "its account"
    if word.endswith("NotAllowed"):
        return _R.QUOTA_EXCEEDED, f"its partition does not take {who}"
    if word.startswith(("QOS", "Assoc", "Max", "Grp")) or word.endswith("Limit"):
        what = next((what for part, what in _LIMITED if part in word), "")
        return _R.QUOTA_EXCEEDED, f"over a limit of {who}{what}"
    if "Resv" in word or word.startswith("Reservation"):
        return _R.RESERVATION, "a reservation stands in its way"
    if "Held" in word or "Hold" in word or "held" in word:
        return _R.JOB_HELD_USER, "held"
    if "Node" in word or "Down" in word:
        return _R.NODE_UNKNOWN, "nodes that it needs are not there"
    return _R.RESOURCES, "waits"
