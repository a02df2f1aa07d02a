"""Texts of the console about a job that a change would preempt."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.action import SetPriority
from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState
from gputui.domain.job import Attempt
from gputui.domain.policy.whatif import change_of, compared
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState
from gputui.tui.present.timeline import Outlook, Subject, what_if_lines
from tests.factories import NOW, job, uuid, view

HOUR = timedelta(hours=1)


def test_a_preempted_job_is_shown_to_start_again() -> None:
    low = job(1, name="low", gpus=1, preemptible=True, time_limit=2 * HOUR, priority=0)
    began = Attempt(1, (uuid(0),), claimed_at=NOW - HOUR, started_at=NOW - HOUR)
    low = replace(low, state=JobState.RUNNING, started_at=NOW - HOUR, attempts=(began,))
    node = Node("here", (view(0, GpuState.ALLOCATED, job_id=1),), runtimes=(RuntimeStatus("docker", True, ""),))
    picture = Snapshot(
        taken_at=NOW, nodes=(node,), jobs=(low, job(2, gpus=1, name="wide", priority=20, time_limit=HOUR))
    )
    found = compared(
        picture, change_of(SetPriority((2,), 100), NOW), Settings(policy=PolicySettings(preemption=True)), NOW
    )
    outlook = Outlook(picture, NOW, found, is_current=True, names={1: "low", 2: "wide"})
    lines = ["".join(text for text, _ in line) for line in what_if_lines(Subject("x", (2,)), outlook, 90, 20)]
    [told] = [line for line in lines if "starts again" in line]
    assert told.startswith("▼     1 low")
    assert "   runs now -> 13:01" in told
    assert any("▼ delays 1 job" in line and "never" not in line for line in lines)
