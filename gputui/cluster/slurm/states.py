"""Slurm's states of jobs in the words of ours, and the causes of their ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache

from gputui.domain.cause import Cause, CauseCode, cause_of_exit, signal_name
from gputui.domain.state import JobState

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
}
HELD = frozenset({"REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
SUSPENDED = frozenset({"SUSPENDED", "STOPPED"})


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
) -> Cause | None:
    """Return why a job ended in a state of Slurm's; None if it succeeded or has not ended."""
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
    if not nodes:
        return Cause(CauseCode.RUNTIME_ERROR, f"Slurm could not start it ({reason or state})")
    if signal == _NO_OUTPUT:
        return Cause(
            CauseCode.RUNTIME_ERROR, f"could not be started on node {where}: its output cannot be written there"
        )
    if signal and not exit_code:
        return Cause(CauseCode.SIGNALLED, f"ended by {signal_name(signal)}")
    return cause_of_exit(exit_code) if exit_code else Cause(CauseCode.NON_ZERO_EXIT, "failed (FAILED)")


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
