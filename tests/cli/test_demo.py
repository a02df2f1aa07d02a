"""Simulated world of the demo: an hour of history, new jobs, and a foreign, a drained and a capped GPU."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import islice
from pathlib import Path
from threading import Event

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters, hosting
from gputui.cli.demo import MOST_WAITING, PAST, Arrivals, coming_jobs, first_jobs, record_past
from gputui.config import Options, ProbeSpec
from gputui.domain.errors import GputuiError, NotFoundError
from gputui.domain.gpu_history import STEP
from gputui.domain.gpu_processes import process_rows, process_target, with_host_values
from gputui.domain.job_spec import Submission
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.gpus.simulated import SimulatedProbe
from tests.factories import ACTOR, NOW, FakeClock, running, snapshot, view
from tests.memory_store import MemoryJobStore
from tests.waiting import until

CAPPED, FOREIGN, DRAINED = 2, 5, 6


@pytest.fixture
def store() -> MemoryJobStore:
    return MemoryJobStore()


@pytest.fixture
def actions(store: MemoryJobStore) -> Actions:
    return Actions(store, FakeClock(), ACTOR)


def options(directory: Path) -> Options:
    return replace(Options(state=directory), probe=ProbeSpec(simulated=8), runtime="process")


def test_the_last_hour_has_ended_jobs_with_logs_and_a_failure_with_its_traceback(
    store: MemoryJobStore, actions: Actions, tmp_path: Path
) -> None:
    gpus = adapters.make_probe(options(tmp_path)).latest().gpus
    record_past(store, actions, tmp_path, gpus, NOW)
    jobs = list(store.jobs().values())
    assert len(jobs) == len(PAST)
    assert all(job.state.is_terminal and job.ended_at and job.ended_at <= NOW for job in jobs)
    (failed,) = [job for job in jobs if job.state is JobState.FAILED]
    assert failed.end_words.startswith("torch.OutOfMemoryError: CUDA out of memory")
    log = (tmp_path / (failed.attempts[0].log_path or "")).read_text()
    assert "Traceback (most recent call last):" in log
    assert all((tmp_path / (job.attempts[0].log_path or "-")).stat().st_size > 500 for job in jobs)


def test_the_graphs_begin_with_an_hour_of_those_jobs(actions: Actions, store: MemoryJobStore, tmp_path: Path) -> None:
    here, now = options(tmp_path), bootstrap.clock().now()
    gpus = adapters.make_probe(here).latest().gpus
    record_past(store, actions, tmp_path, gpus, now)
    steps = hosting.demo_past(here, store, now - timedelta(hours=1))
    assert len(steps) == pytest.approx(timedelta(hours=1) / STEP, abs=2)
    means = [sum(step.gpus[gpu.uuid].utilization or 0 for step in steps) / len(steps) for gpu in gpus]
    assert means[FOREIGN] == pytest.approx(0.35)
    assert means[DRAINED] < 0.6
    assert all(mean > 0.5 for index, mean in enumerate(means) if index not in {FOREIGN, DRAINED})
    last = steps[-60:]
    assert all(any((step.gpus[gpu.uuid].utilization or 0) > 0.5 for step in last) for gpu in gpus[:5])


def test_one_gpu_has_a_foreign_container_and_another_a_power_cap(store: MemoryJobStore, tmp_path: Path) -> None:
    made = hosting.DemoMachine(options(tmp_path), lambda: store).adapters()
    (container,) = made.runtimes["process"].foreign()
    reading = made.probe.latest()
    uuids = [gpu.uuid for gpu in reading.gpus]
    assert (container.name, container.user, container.devices) == ("jupyter-carol", "carol", (uuids[FOREIGN],))
    assert "jupyter" in container.image
    (process,) = reading.samples[uuids[FOREIGN]].processes or ()
    assert (process.container_id, process.user) == (container.id, "carol")
    limits = [reading.samples[uuid].power_limit or 0 for uuid in uuids]
    assert limits[CAPPED] < 0.7 * limits[0]


def test_small_demo_has_no_foreign_container(store: MemoryJobStore, tmp_path: Path) -> None:
    made = hosting.DemoMachine(replace(options(tmp_path), probe=ProbeSpec(simulated=2)), lambda: store).adapters()
    assert made.runtimes["process"].foreign() == ()


def test_processes_have_memory_processor_use_and_age_but_get_no_signals(store: MemoryJobStore, tmp_path: Path) -> None:
    machine = hosting.DemoMachine(options(tmp_path), lambda: store)
    use = machine.foreign_use()
    assert use.rows((22_110,)) == {}, "before there are GPUs"
    made = machine.adapters()
    assert isinstance(made.probe, SimulatedProbe)
    now = bootstrap.clock().now()
    begun = [running(7, on=[gpu.uuid]) for gpu in made.probe.gpus[:1]]
    made.probe.follow([job.with_attempt(started_at=now - timedelta(minutes=3)) for job in begun])
    rows = process_rows(snapshot(gpus=[view(sample=found) for found in made.probe.latest().samples.values()]))
    known = with_host_values(rows, use.rows(tuple(row.pid for row in rows if row.pid is not None)))
    minutes = sorted(row.age // timedelta(minutes=1) for row in known if row.age is not None)
    assert minutes == [3, 5 * 60 + 48]
    assert all(1 < row.cpu < 5 for row in known if row.cpu is not None)
    assert all(3 < row.memory / 2**30 < 19 for row in known if row.memory is not None)
    assert all(row.cpu and row.memory for row in known)
    target = process_target(next(row for row in known if row.pid == 22_110))
    assert target is not None
    for act in (lambda: use.signal(target, "TERM"), lambda: use.environment(target)):
        with pytest.raises(GputuiError, match="pid 22110 is simulated"):
            act()


def test_its_foreign_container_has_a_page_and_output_and_can_be_stopped(store: MemoryJobStore, tmp_path: Path) -> None:
    machine = hosting.DemoMachine(options(tmp_path), lambda: store)
    made, use = machine.adapters(), machine.foreign_use()
    (container,) = made.runtimes["process"].foreign()
    detail = use.container("jupyter-carol")
    assert (detail.id, detail.user, detail.is_running) == (container.id, "carol", True)
    whole = list(use.logs(container.id, tail=None, follow=False))
    assert list(use.logs(container.id, tail=2, follow=False)) == whole[-2:]
    followed = use.logs(container.id, tail=None, follow=True, stamped=True)
    lines = iter(followed)
    assert whole[0] in next(lines)
    followed.close()
    assert len(list(lines)) == len(whole) - 1
    woken = Event()
    made.runtimes["process"].watch(woken.set)
    assert use.stop(container.id).startswith("container jupyter-carol: stopped after 0.0 s")
    assert woken.is_set(), "the scheduler sees at once that the GPU is free"
    assert made.runtimes["process"].foreign() == ()
    assert not any(sample.processes for sample in made.probe.latest().samples.values())
    assert not use.container("jupyter-carol").is_running
    with pytest.raises(NotFoundError, match="there is no container other"):
        use.container("other")
    assert [entry.verb for entry in store.audit_log()] == ["stop-container", "stop-container"]


def test_jobs_keep_coming_until_many_wait(store: MemoryJobStore, actions: Actions) -> None:
    arrivals = Arrivals(lambda: store, actions, every=0.001)
    arrivals.start()
    until(lambda: len(store.jobs()) >= MOST_WAITING)
    arrivals.stop()
    assert not arrivals.is_alive()
    assert len(store.jobs()) == MOST_WAITING


def test_the_first_jobs_and_those_that_come_show_what_there_is() -> None:
    coming = list(islice(coming_jobs(random.Random(7)), 60))
    assert len({each.spec.name for each in coming}) == 60
    fails = [each for each in coming if any("--fail-at" in word for word in each.spec.command)]
    assert 3 < len(fails) < 25
    # A failed job and the jobs that fit the six usable GPUs come before it.
    left, running = 6, 0
    jobs: list[Submission] = [each for each in first_jobs() if not each.held]
    for each in sorted(jobs, key=lambda each: -each.spec.priority):
        if each.spec.gpus.minimum > left:
            break
        left, running = left - each.spec.gpus.minimum, running + 1
    assert 1 + running < 6
    assert len(jobs) > running
