"""An entry of an array plans exactly like its elements one by one."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.job import ArrayRef, Job
from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.policy.plan import plan
from gputui.domain.policy.whatif import explain, timeline
from gputui.domain.runs import Run
from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Snapshot
from tests.domain.policy.cases import HOUR, MINUTE, Case, any_of, cases
from tests.domain.policy.test_ranges import snapshot
from tests.factories import NOW, job, uuid
from tests.factories import running as runs_on
from tests.lane import examples

SLOW = settings(max_examples=examples(80), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def entries(draw: st.DrawFn, first: int = 1000) -> list[Job]:
    """Arrays, some of whose elements are gone, some limited in how many may run at a time."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        array, runs, job_id = first, [], first
        for _ in range(draw(st.integers(1, 3))):
            job_id += draw(st.integers(0, 2))
            count = draw(st.integers(1, 5))
            runs.append(Run(job_id, job_id - array, count))
            job_id += count
        low, high = draw(any_of((0, 0), (1, 1), (1, 1), (2, 2), (1, 2), (2, 4)))
        limit = draw(any_of(None, HOUR, 90 * MINUTE))
        tenant, priority = draw(any_of("alice", "bob")), draw(any_of(50, 50, 80))
        spec = JobSpec("busybox", ("true",), tenant=tenant, gpus=GpuRequest(low, high), time_limit=limit)
        base = Job(runs[0].id, replace(spec, priority=priority), NOW - draw(st.integers(0, 400)) * MINUTE)
        reference = ArrayRef(array, runs[0].index, draw(any_of(None, None, 1, 3)))
        base = base.evolve(array=reference, priority=priority, held=draw(st.integers(0, 9)) == 0)
        if draw(st.integers(0, 9)) == 0:
            base = base.evolve(spec=replace(base.spec, begin_at=NOW + HOUR))
        found.append(base.with_runs(tuple(runs)))
        first = job_id + draw(st.integers(0, 3))
    return found


def unfolded(seen: Snapshot) -> Snapshot:
    return replace(seen, jobs=tuple(one.element(job_id) for one in seen.jobs for job_id in one.ids))


@given(cases(), entries())
@SLOW
def test_an_entry_plans_like_its_elements(case: Case, arrays: list[Job]) -> None:
    folded = replace(case.snapshot, jobs=(*case.snapshot.jobs, *arrays))
    found, wanted = (plan(seen, case.settings, NOW) for seen in (folded, unfolded(folded)))
    assert found.starts == wanted.starts
    assert found.forecast == wanted.forecast
    assert (found.reservations, found.promised_at) == (wanted.reservations, wanted.promised_at)
    assert (found.preemptions, found.fragmentation) == (wanted.preemptions, wanted.fragmentation)
    entry_of = {job_id: one.id for one in folded.jobs for job_id in one.ids}
    assert found.order == tuple(dict.fromkeys(entry_of[job_id] for job_id in wanted.order))
    assert {job_id: found.reasons[job_id] for job_id in wanted.reasons} == dict(wanted.reasons)
    assert all(found.reasons[job_id] == wanted.reasons[job_id] for job_id in found.reasons)
    assert {entry_of[job_id] for job_id in found.reasons} == {entry_of[job_id] for job_id in wanted.reasons}
    assert len(found.reasons) == len({entry_of[job_id] for job_id in wanted.reasons})
    assert not any(start.job_id in found.reasons for start in found.starts)


@given(cases(), entries())
@settings(SLOW, max_examples=examples(20))
def test_an_entry_is_explained_and_drawn_like_its_elements(case: Case, arrays: list[Job]) -> None:
    folded = replace(case.snapshot, jobs=(*case.snapshot.jobs, *arrays))
    whole = unfolded(folded)
    assert timeline(folded, case.settings, NOW).bars == timeline(whole, case.settings, NOW).bars
    for entry in arrays:
        for job_id in {entry.id, *list(entry.ids)[-1:]}:
            told = explain(folded, entry.element(job_id), case.settings, NOW)
            wanted = explain(whole, entry.element(job_id), case.settings, NOW)
            assert (told.terms, told.position, told.waiting) == (wanted.terms, wanted.position, wanted.waiting)
            assert told.expected_start_at == wanted.expected_start_at


def test_the_rest_of_an_entry_is_an_entry() -> None:
    """An entry whose first element starts is known by the id of the next element."""
    array = job(10, gpus=1, tenant="a").evolve(array=ArrayRef(10, 0)).with_runs((Run(10, 0, 4),))
    found = plan(snapshot([array], gpus=1), Settings(), NOW)
    assert [start.job_id for start in found.starts] == [10]
    assert list(found.reasons) == [11]
    assert 10 not in found.reasons
    assert found.reasons[13].text.startswith("needs 1 GPU")
    assert found.reasons[13].text.endswith("2 jobs ahead of it")
    assert set(found.forecast) == {11, 12, 13}
    assert found.order == (10,)


def test_a_range_waits_for_more_beside_a_capped_one_of_its_array() -> None:
    patient = Settings(policy=PolicySettings(patience=timedelta(hours=1)))
    array = job(10, gpus=(1, 2), tenant="a").evolve(array=ArrayRef(10, 0)).with_runs((Run(10, 0, 3),))
    seen = snapshot([array, runs_on(1, on=[uuid(0)], time_limit=HOUR)], gpus=2)
    found, wanted = plan(seen, patient, NOW), plan(unfolded(seen), patient, NOW)
    assert (found.starts, found.forecast) == (wanted.starts, wanted.forecast)
