"""Slurm's reasons why a job waits, in the words of ours with Slurm's beside them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

from gputui.domain.state import PendingReason, Reason, utc_moment

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
_SPLIT = "UnavailableNodes:"


def is_admin_hold(word: str) -> bool:
    """Return whether an administrator holds the job: its user may not release it."""
    return word == "JobHeldAdmin"


def is_hold(word: str) -> bool:
    """Return whether that reason is a hold."""
    return word in _REASONS and _REASONS[word][0] is _R.JOB_HELD_USER


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
        nodes = word.partition(_SPLIT)[2].strip()
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
