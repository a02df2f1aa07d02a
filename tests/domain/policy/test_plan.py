"""Plans: which jobs start, in which order and where; and why the others wait."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import GpuState, GpuView, Health, HealthCode
from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import GpuRequest
from gputui.domain.policy.availability import UNANSWERED
from gputui.domain.policy.placement import suitable_gpus
from gputui.domain.policy.plan import Plan, plan
from gputui.domain.policy.planning_context import Durations
from gputui.domain.policy.whatif import timeline
from gputui.domain.settings import SchedulerSettings, Settings
from gputui.domain.snapshot import Controls, Node, Snapshot
from gputui.domain.state import JobState, PendingReason
from tests.cases import cases
from tests.factories import GIB, NOW, gpu, job, running, spec, uuid, view

UP = (RuntimeStatus("docker", True, "Docker 28"), RuntimeStatus("process", True, "host"))


def seen(jobs: list[Job], gpus: int | list[GpuView] = 4, **changes: Any) -> Snapshot:
    rows = tuple(view(i) for i in range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    node = Node("here", rows, runtimes=changes.pop("runtimes", UP))
    return Snapshot(taken_at=NOW, nodes=(node,), jobs=tuple(jobs), **changes)


def planned(jobs: list[Job], gpus: int | list[GpuView] = 4, **changes: Any) -> Plan:
    return plan(seen(jobs, gpus, **changes), Settings(), NOW)


def started(found: Plan) -> dict[int, tuple[str, ...]]:
    return {start.job_id: start.gpus for start in found.starts}


def why(found: Plan, job_id: int) -> tuple[PendingReason, str]:
    return found.reasons[job_id].code, found.reasons[job_id].text


def test_order_and_numbers_of_gpus() -> None:
    # order is priority then submit time then id
    jobs = [job(1, age=10), job(2, age=20), job(3, priority=60), job(4, age=20)]
    assert planned(jobs).order == (3, 2, 4, 1)
    # jobs put on top go first the latest before all
    first, second = NOW - timedelta(minutes=2), NOW - timedelta(minutes=1)
    jobs = [job(1, priority=100), job(2, topped_at=first), job(3, topped_at=second)]
    assert planned(jobs).order == (3, 2, 1)
    # GPUs go to the first in order and never twice
    found = planned([job(1, gpus=3, age=1), job(2, gpus=2, age=2), job(3, gpus=2)])
    assert started(found) == {2: (uuid(0), uuid(1)), 3: (uuid(2), uuid(3))}
    # a job gets all its GPUs or none
    found = planned([job(1, gpus=3)], gpus=2)
    assert started(found) == {}
    assert why(found, 1) == (PendingReason.RESOURCES, "needs 3 GPUs (only 2 suitable here): 2 free")
    # a range takes as many as are free
    assert len(started(planned([job(1, gpus=(2, 4))], gpus=3))[1]) == 3
    # all GPUs means every GPU of the node
    everything = job(1, spec=replace(spec(), gpus=GpuRequest(everything=True)))
    rows = [view(0), view(1, GpuState.FOREIGN)]
    assert started(planned([everything], 2)) == {1: (uuid(0), uuid(1))}
    assert started(planned([everything], rows)) == {}


def test_only_free_gpus_are_given() -> None:
    # only free GPUs are given
    rows = [view(i, state) for i, state in enumerate(GpuState)]
    found = planned([job(1, gpus=1), job(2, gpus=1)], rows)
    [placed] = started(found).values()
    assert placed == (uuid(list(GpuState).index(GpuState.FREE)),)
    words = "needs 1 GPU: 0 free, 2 held by jobs, 1 used by others, 1 drained, 1 unknown"
    assert why(found, 2)[1] == f"{words}; expected 2026-03-05 12:00 UTC when job 1 ends by the longest time allowed"
    # the reason does not call lost and sick GPUs drained
    codes = (HealthCode.LOST, HealthCode.XID, HealthCode.OK)
    rows = [view(i, GpuState.DRAINED, health=Health(code, "")) for i, code in enumerate(codes)]
    found = planned([job(1, gpus=1)], rows)
    assert why(found, 1)[1] == "needs 1 GPU: 0 free, 1 drained, 1 sick, 1 lost"
    # an assigned GPU is not free even if its view is
    found = planned([running(1, on=[uuid(0)]), job(2, gpus=1)], 2)
    assert started(found) == {2: (uuid(1),)}


def test_gpus_asked_for_by_name() -> None:
    # the beginning of a UUID names a GPU
    assert suitable_for("GPU-00000002") == [uuid(2)]
    assert suitable_for(uuid(3)) == [uuid(3)]
    assert suitable_for("GPU-000") == []
    # named devices model and memory are obeyed
    rows = [view(0), view(1, gpu=gpu(1, model="NVIDIA A100-SXM4-40GB", memory_total=40 * GIB))]
    named = job(1, spec=replace(spec(1), gpus=GpuRequest(1, 1, devices=("1",))))
    by_model = job(1, spec=replace(spec(1), gpus=GpuRequest(1, 1, model="a100")))
    by_memory = job(1, spec=replace(spec(1), gpus=GpuRequest(1, 1, memory=60 * GIB)))
    assert started(planned([named], rows)) == {1: (uuid(1),)}
    assert started(planned([by_model], rows)) == {1: (uuid(1),)}
    assert started(planned([by_memory], rows)) == {1: (uuid(0),)}


def suitable_for(name: str) -> list[str]:
    """Return the UUIDs of the GPUs that `--gpus device=name` may mean."""
    named = job(1, spec=replace(spec(1), gpus=GpuRequest(1, 1, devices=(name,))))
    return [each.uuid for each in suitable_gpus(named.spec.gpus, [gpu(i) for i in range(4)])]


def test_gpus_of_failed_attempts_are_avoided() -> None:
    # a retry avoids GPUs of failed attempts
    assert started(planned([job(1, gpus=1, avoid_gpus=(uuid(0),))], 2)) == {1: (uuid(1),)}
    # a retry uses GPUs of failed attempts if too few others exist
    assert started(planned([job(1, gpus=2, avoid_gpus=(uuid(0),))], 2)) == {1: (uuid(0), uuid(1))}
    assert started(planned([job(1, gpus=1, avoid_gpus=(uuid(0),))], 1)) == {1: (uuid(0),)}


def test_later_jobs_wait_for_earlier_ones() -> None:
    held = [view(0, GpuState.ALLOCATED), *(view(i) for i in range(1, 4))]
    found = planned([job(1, gpus=4, age=2), job(2, gpus=4, age=1), running(9, on=[uuid(0)])], held)
    assert why(found, 2)[0] is PendingReason.PRIORITY
    assert why(found, 2)[1].startswith("needs 4 GPUs: ")
    assert why(found, 2)[1].endswith("; 1 job ahead of it")


SOON = NOW + timedelta(seconds=90)
WAITS: dict[str, tuple[Job, PendingReason, str]] = {
    "held": (job(1, held=True), PendingReason.JOB_HELD_USER, "held by a user"),
    "held by the scheduler": (job(1, held=True, hold_reason="20 starts"), PendingReason.JOB_HELD_USER, "20 starts"),
    "begin": (job(1, begin_at=SOON), PendingReason.BEGIN_TIME, "begins at 12:01 UTC, in 1m30s"),
    "back-off": (job(1, not_before=SOON), PendingReason.BACK_OFF, "attempt 1 at 12:01 UTC, in 1m30s"),
    "after": (job(1, after=(9,)), PendingReason.DEPENDENCY, "after job 9_0 has completed: it is RUNNING"),
    "after any": (job(1, after_any=(9,)), PendingReason.DEPENDENCY, "after job 9_0 has ended: it is RUNNING"),
    "array": (job(1, array=ArrayRef(9, 1, 1)), PendingReason.QUOTA_EXCEEDED, "1 element of array 9 is running"),
}


@cases("case", WAITS)
def test_each_reason_to_wait_says_so(case: str) -> None:
    waiting, code, words = WAITS[case]
    found = planned([waiting, running(9, array=ArrayRef(9, 0, 1))])
    assert started(found) == {}
    assert found.reasons[1].code is code
    assert words in found.reasons[1].text


def test_what_stops_starts() -> None:
    # a dependency is met by completion and any by any end
    done, failed = job(8, state=JobState.COMPLETED), job(9, state=JobState.FAILED)
    found = planned([job(1, after=(8,)), job(2, after_any=(9,)), job(3, after=(9,)), done, failed])
    assert set(started(found)) == {1, 2}
    # a pause stops every start and names its user
    found = planned([job(1)], controls=Controls(paused=True, pause_reason="new driver", paused_by="root"))
    assert why(found, 1) == (PendingReason.SCHEDULER_PAUSED, "the scheduler was paused by root: new driver")
    found = planned([job(1)], controls=Controls(paused=True, pause_reason="new driver"))
    assert why(found, 1) == (PendingReason.SCHEDULER_PAUSED, "the scheduler was paused: new driver")
    # a runtime that does not answer holds its own jobs only
    down = (RuntimeStatus("docker", False, "Docker does not answer"), UP[1])
    found = planned([job(1), job(2, spec=spec(image=None))], runtimes=down)
    assert set(started(found)) == {2}
    assert why(found, 1) == (PendingReason.NODE_UNKNOWN, "Docker does not answer")
    # a host job that waits for Docker names the alternative
    rows = [view(0, GpuState.UNKNOWN, why=UNANSWERED)]
    code, text = why(planned([job(1, gpus=1, spec=spec(1, image=None))], rows), 1)
    assert code is PendingReason.NODE_UNKNOWN
    assert text.endswith("; if this machine has no Docker, start the scheduler with --runtime process")
    assert "--runtime" not in why(planned([job(1, gpus=1)], rows), 1)[1]
    # a server without known GPUs has its own reason
    rows = [view(0, GpuState.UNKNOWN, why="the driver hangs")]
    assert why(planned([job(1, gpus=1)], rows), 1) == (
        PendingReason.NODE_UNKNOWN,
        "no GPU can be judged free: the driver hangs",
    )
    # jobs without GPUs are limited in number
    settings = Settings(SchedulerSettings(cpu_jobs=2))
    found = plan(seen([job(1), job(2), running(3)]), settings, NOW)
    assert set(started(found)) == {1}
    assert found.reasons[2].code is PendingReason.QUOTA_EXCEEDED


JOBS = st.lists(
    st.builds(
        lambda n, width, priority, age, held: job(n, gpus=width, priority=priority, age=age, held=held),
        st.integers(1, 10_000),
        st.integers(0, 6),
        st.integers(0, 100),
        st.integers(0, 1000),
        st.booleans(),
    ),
    unique_by=lambda found: found.id,
    max_size=30,
)


@given(JOBS, st.lists(st.sampled_from(GpuState), max_size=8))
def test_plans_of_random_queues_assign_no_gpu_twice_and_explain_every_job(
    jobs: list[Job], states: list[GpuState]
) -> None:
    found = planned(jobs, [view(i, state) for i, state in enumerate(states)])
    given_out = [gpu_uuid for start in found.starts for gpu_uuid in start.gpus]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= {uuid(i) for i, state in enumerate(states) if state is GpuState.FREE}
    widths = {one.id: one.spec.gpus.minimum for one in jobs}
    assert all(len(start.gpus) == widths[start.job_id] for start in found.starts)
    assert set(started(found)) | set(found.reasons) == {one.id for one in jobs}
    assert not set(started(found)) & set(found.reasons)
    assert found == planned(list(reversed(jobs)), [view(i, state) for i, state in enumerate(states)])


def test_a_plan_creates_no_reference_cycles() -> None:
    over = [
        running(number, on=(uuid(0),)).evolve(
            state=JobState.COMPLETED, ended_at=NOW, started_at=NOW - timedelta(hours=1)
        )
        for number in range(1, 6)
    ]
    over = [one.with_attempt(started_at=NOW - timedelta(hours=1), ended_at=NOW) for one in over]
    waiting = [job(number, gpus=1 + number % 3, priority=number % 7) for number in range(20, 60)]
    snapshot = seen([*over, running(10, on=(uuid(1),)), *waiting])
    assert Durations(snapshot.jobs, Settings().policy, None).predicted

    def look_ahead() -> None:
        found = plan(snapshot, Settings(), NOW)
        assert all(found.reasons[job_id].text for job_id in found.reasons)
        timeline(snapshot, Settings(), NOW)

    look_ahead()  # the first one imports modules, which makes cycles
    while gc.collect():  # what one collection ends, the next one frees
        pass
    was_enabled = gc.isenabled()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        look_ahead()
        gc.collect()
        ours = [each for each in gc.garbage if "gputui" in (getattr(each, "__module__", None) or type(each).__module__)]
        assert ours == []  # threads that earlier tests left may drop cycles of their own meanwhile
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        if was_enabled:
            gc.enable()
