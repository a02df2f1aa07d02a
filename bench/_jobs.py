"""A queue of many waiting jobs, whose scheduler is paused."""

from __future__ import annotations

from pathlib import Path

from gputui import bootstrap
from gputui.config import resolve
from gputui.domain.action import Pause
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.submit_action import SubmitJobs


def store_waiting_jobs(state: Path, count: int) -> None:
    """Store `count` waiting jobs of 1 to 8 GPUs and five tenants in a state directory with a paused scheduler."""
    options = resolve(state=str(state), environ={})
    store = bootstrap.open_store(options)
    try:
        actions = bootstrap.actions(store, options)
        actions.act(Pause("benchmark"))
        actions.act(SubmitJobs(tuple(Submission(_spec(number)) for number in range(count))))
    finally:
        store.close()


def _spec(number: int) -> JobSpec:
    gpus = 2 ** (number % 4)
    return JobSpec(
        command=("true",),
        name=f"train-{number}",
        tenant=("alice", "bob", "carol", "dan", "eve")[number % 5],
        gpus=GpuRequest(gpus, gpus),
        priority=number % 101,
    )
