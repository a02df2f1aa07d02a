"""Forecasts of a cluster's engine in words."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import pytest

from gputui.cli import show, start_times, submit
from gputui.domain.cluster import Capability
from gputui.domain.errors import CapabilityError
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import Submission
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import EngineQueue
from tests.cases import cases
from tests.cluster.fake import FakeCluster
from tests.factories import NOW, FakeClock, array, job, snapshot, spec

LATER = NOW + timedelta(hours=2)
RESOURCES = Reason(PendingReason.RESOURCES, "needs 2 GPUs")


def on_node(job_id: int, node: str, state: JobState = JobState.RUNNING) -> Job:
    return job(job_id, state=state, attempts=(Attempt(1, (), container_id="c", started_at=NOW, node=node),))


def told(found: Snapshot, *ids: int) -> list[str]:
    return list(start_times.engine_starts(found, ids))


@cases(
    ("entry", "words"),
    [
        (on_node(12, "gpu3"), "job 12: running on gpu3"),
        (on_node(12, "gpu3", JobState.CONFIGURING), "job 12: configuring on gpu3"),
        (on_node(12, ""), "job 12: running"),
        (job(12, state=JobState.RUNNING), "job 12: running"),
        (job(12), "job 12: waits"),
    ],
)
def test_a_submitted_job_is_told_where_it_runs(entry: Job, words: str) -> None:
    assert told(snapshot([entry]), 12) == [words]


def test_what_a_submission_is_told() -> None:
    # a job that waits is told why and until when
    found = snapshot([job(7)], reasons={7: RESOURCES}, expected_starts={7: LATER})
    [words] = told(found, 7)
    assert words == f"job 7: needs 2 GPUs; about {LATER.astimezone():%H:%M} (Resources)"
    # a job that has left the queue is not told
    assert told(snapshot([job(7)]), 6, 7, 8) == ["job 7: waits"]
    # an array is told by its first entry
    found = snapshot([array((0, 1, 2), first=70, limit=1)], reasons={70: RESOURCES})
    assert told(found, 70) == [f"job {found.jobs[0].element(70).shown_id}: needs 2 GPUs (Resources)"]


def test_an_engine_cannot_change_the_terminal() -> None:
    found = snapshot([job(7)], reasons={7: Reason(PendingReason.RESOURCES, "a\x1b[2Jb")})
    assert "\x1b" not in told(found, 7)[0]


class Foreseeing(FakeCluster):
    """A cluster that foresees one start."""

    at: datetime | None = None

    def expected_start(self, submission: Submission) -> datetime | None:
        return self.at


@cases(
    ("at", "words"),
    [
        (None, "the engine cannot tell when it would start"),
        (NOW, "would start now"),
        (NOW - timedelta(seconds=1), "would start now"),
        (LATER, f"would start at {LATER.astimezone():%Y-%m-%d %H:%M}, in 2h00m"),
    ],
)
def test_a_rehearsed_job_is_told_its_start(clock: FakeClock, at: datetime | None, words: str) -> None:
    cluster = Foreseeing(clock)
    cluster.at = at
    jobs = (Submission(spec()), Submission(spec(name="b")))
    starts = EngineBackend(EngineQueue(cluster), Settings()).foresee(SubmitJobs(jobs)).starts
    assert list(submit.start_lines(jobs, starts, NOW)) == [f"job train: {words}", f"job b: {words}"]


def test_a_function_that_the_engine_lacks_is_refused(clock: FakeClock) -> None:
    store = EngineQueue(FakeCluster(clock, lacking={Capability.WHAT_IF: "Fake has no rehearsal"}))
    with pytest.raises(CapabilityError, match="Fake has no rehearsal"):
        EngineBackend(store, Settings()).about().caps.need(Capability.WHAT_IF)
    assert store.read().jobs == ()


@cases(
    ("changes", "expected"),
    [
        ({}, ["why       the engine gives no reason"]),
        ({"reasons": {8: RESOURCES}}, ["why       needs 2 GPUs"]),
        (
            {"expected_starts": {8: LATER}},
            [
                "why       the engine gives no reason",
                f"expected  {LATER.astimezone():%Y-%m-%d %H:%M:%S %Z}, in 2h00m",
            ],
        ),
        (
            {"expected_starts": {8: NOW - timedelta(hours=1)}},
            [
                "why       the engine gives no reason",
                f"expected  {(NOW - timedelta(hours=1)).astimezone():%Y-%m-%d %H:%M:%S %Z}, in 0s",
            ],
        ),
    ],
)
def test_an_explanation_has_place_reason_start_and_priority(changes: dict[str, Any], expected: Iterable[str]) -> None:
    entry = job(8)
    found = snapshot([job(7), entry], order=(7, 8), **changes)
    assert list(show.engine_story(entry, found)) == [
        "job 8 train: number 2 of 2 waiting",
        *expected,
        "priority  50",
    ]
