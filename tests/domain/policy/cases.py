"""Random servers: nodes, GPUs in every state, jobs with every feature, settings, actions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import Drain, GpuState, GpuView
from gputui.domain.job import ArrayRef, Attempt, Job
from gputui.domain.job_spec import GpuRequest, JobSpec
from gputui.domain.policy.availability import AWAITED
from gputui.domain.settings import PolicySettings, SchedulerSettings, Settings, TenantSettings, Window
from gputui.domain.snapshot import Controls, Node, Snapshot, Usage
from gputui.domain.state import JobState
from tests.factories import GIB, NOW, gpu, sample, uuid, view


@lru_cache(typed=True)
def any_of(*values: object) -> st.SearchStrategy[Any]:
    """Return the strategy that chooses one of these, made once: making it takes longer than a draw."""
    return st.sampled_from(values)


MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
TENANTS = any_of("alice", "alice", "bob", "carol")
WIDTHS = any_of(0, 1, 1, 1, 2, 2, 3, 4, 6, 8, (1, 2), (1, 3), (2, 4), (2, 8))
LIMITS = st.one_of(st.none(), st.integers(1, 600).map(lambda minutes: minutes * MINUTE))
AGES = st.one_of(st.integers(0, 900), st.integers(0, 400_000), any_of(600_000, 604_800, 700_000))
KINDS = any_of(*["free"] * 9, "foreign", "drained", "unknown", "awaited", "small", "small", "busy", "mig")
AHEAD = st.integers(1, 7200).map(lambda seconds: NOW + timedelta(seconds=seconds))


@dataclass(frozen=True)
class Case:
    """Server for which a plan is made."""

    snapshot: Snapshot
    settings: Settings


def rarely(strategy: st.SearchStrategy[object], default: object, one_in: int = 8) -> st.SearchStrategy[object]:
    return st.integers(1, one_in).flatmap(lambda n: strategy if n == one_in else st.just(default))


@st.composite
def requests(draw: st.DrawFn, plain: bool = False) -> GpuRequest:
    width = draw(WIDTHS)
    low, high = width if isinstance(width, tuple) else (width, width)
    if not low or plain:
        return GpuRequest(low, high)
    special = draw(any_of("", "", "", "", "", "everything", "devices", "memory", "model", "free"))
    if special == "everything":
        return GpuRequest(everything=True)
    if special == "devices":
        names = tuple(str(n) for n in draw(st.sets(st.integers(0, 5), min_size=1, max_size=3)))
        return GpuRequest(len(names), len(names), devices=names)
    memory = draw(any_of(30, 60, 100)) * GIB if special == "memory" else None
    model = draw(any_of("h100", "A100", "B200")) if special == "model" else None
    return GpuRequest(low, high, memory=memory, model=model, free_memory=60 * GIB if special == "free" else None)


REQUESTS = requests()


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    return JobSpec(
        image=draw(any_of("busybox", "busybox", "busybox", "cuda", None)),
        command=("true",),
        name=draw(any_of("train", "eval", "")),
        tenant=draw(TENANTS),
        gpus=draw(REQUESTS),
        time_limit=draw(LIMITS),
        nice=draw(any_of(0, 0, 0, 100, -300)),
    )


SPECS = specs()


@st.composite
def waiting(draw: st.DrawFn, number: int, others: list[int]) -> Job:
    """Return a waiting job, perhaps with settings of its own."""
    spec, age = draw(SPECS), timedelta(seconds=draw(AGES))
    priority = draw(any_of(50, 50, 50, 0, 30, 80, 100))
    job = Job(number, replace(spec, priority=priority), NOW - age, priority=priority)
    feature = draw(st.integers(0, 13))
    if feature == 0:
        # who held it and since when are words for people: at whatever time, they make it no older
        ago = draw(any_of(None, 0, 3600, -3600, 10**7))
        held_at = None if ago is None else NOW - timedelta(seconds=ago)
        reason = draw(any_of(None, "held after 20 starts"))
        return job.evolve(held=True, hold_reason=reason, held_by=draw(any_of("", "bob")), held_at=held_at)
    if feature == 1 and others:
        after = tuple(draw(st.sets(st.sampled_from(others), min_size=1, max_size=2)))
        well = draw(st.booleans())
        return job.evolve(spec=replace(job.spec, after=after if well else (), after_any=() if well else after))
    if feature == 2:
        return job.evolve(spec=replace(job.spec, begin_at=draw(AHEAD)))
    if feature == 3:
        over = Attempt(1, (), started_at=NOW - HOUR, ended_at=NOW - MINUTE)
        return job.evolve(not_before=NOW + draw(st.integers(1, 600)) * timedelta(seconds=1), attempts=(over,))
    if feature == 4:
        return job.evolve(topped_at=NOW - draw(st.integers(0, 3)) * MINUTE)
    if feature == 5:
        return job.evolve(avoid_gpus=tuple(uuid(n) for n in draw(st.sets(st.integers(0, 7), max_size=3))))
    if feature == 6:
        return job.evolve(array=ArrayRef(draw(any_of(9001, 9002)), number, draw(any_of(1, 2))))
    return job


@st.composite
def settings(draw: st.DrawFn, gpus: int) -> Settings:
    tenants = tuple(
        TenantSettings(
            name,
            weight=draw(any_of(1.0, 2.0, 0.5)),
            gpus=draw(any_of(None, None, 1, 2, 3, 5)),
            running=draw(any_of(None, None, None, 1, 2)),
        )
        for name in draw(st.sets(any_of("alice", "bob")))
    )
    windows = draw(st.lists(window(gpus), max_size=2)) if draw(st.integers(0, 3)) == 0 else []
    policy = PolicySettings(
        predict=draw(st.booleans()),
        patience=draw(any_of(timedelta(0), 5 * MINUTE, HOUR)),
        promote_after=draw(any_of(10 * DAY, 4 * DAY, HOUR, timedelta(0))),
        newcomer_credit=draw(any_of(10 * DAY, DAY, timedelta(0))),
        age_unit=draw(any_of(36 * HOUR, HOUR)),
        max_time=draw(any_of(None, None, 2 * HOUR)),
        standing_priority=draw(any_of(None, None, None, 80)),
        left_free=draw(any_of((), (), (), ("0",), ("1", "2"))),
        prefer=draw(any_of((), (), ("3", "1"))),
        tenants=tenants,
        reservations=tuple(replace(each, name=f"w{n}") for n, each in enumerate(windows)),
    )
    return Settings(SchedulerSettings(cpu_jobs=draw(any_of(8, 2, 1, 0))), policy=policy)


@st.composite
def window(draw: st.DrawFn, gpus: int) -> Window:
    start = NOW + timedelta(minutes=draw(st.integers(-60, 240)))
    names = tuple(str(n) for n in draw(st.sets(st.integers(0, max(0, gpus - 1)), min_size=1, max_size=4)))
    named = draw(st.booleans())
    tenant = draw(any_of("alice", "bob", None))
    priority = draw(any_of(80, None)) if tenant else 80
    end = start + timedelta(minutes=draw(st.integers(1, 300)))
    return Window("", start, end, 0 if named else len(names), names if named else (), tenant, priority)


@st.composite
def rows(draw: st.DrawFn, first: int, count: int) -> tuple[GpuView, ...]:
    return tuple(draw(row(first + n)) for n in range(count))


@st.composite
def row(draw: st.DrawFn, number: int) -> GpuView:
    kind = draw(KINDS)
    plain = gpu(number)
    if kind == "small":
        return view(number, gpu=replace(plain, model="NVIDIA A100-SXM4-40GB", memory_total=40 * GIB))
    if kind == "busy":
        return view(number, sample=sample(number, memory_used=30 * GIB))
    if kind == "mig":
        return view(number, GpuState.DRAINED, gpu=replace(plain, mig_enabled=True))
    if kind == "drained":
        return view(number, GpuState.DRAINED, drain=Drain("", "root", NOW))
    if kind == "awaited":
        return view(number, GpuState.UNKNOWN, why=AWAITED)
    if kind == "unknown":
        return view(number, GpuState.UNKNOWN, why="its last reading is 9s old", stale=True)
    return view(number, GpuState.FOREIGN if kind == "foreign" else GpuState.FREE)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A server with up to sixteen GPUs on one node or two, and up to a score of jobs."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=2))
    if draw(st.integers(0, 39)) == 0:
        sizes = [0]
    views = [draw(rows(sum(sizes[:n]), size)) for n, size in enumerate(sizes)]
    if draw(st.integers(0, 19)) == 0:
        views = [tuple(view(v.gpu.index, GpuState.UNKNOWN, why="the driver hangs") for v in vs) for vs in views]
    jobs = _running(draw, [v for vs in views for v in vs if v.state is GpuState.FREE])
    held = {name: job for job in jobs for name in job.gpus}
    drained = draw(st.booleans())
    views = [tuple(_taken(v, held, drained and n == 0) for n, v in enumerate(vs)) for vs in views]
    jobs += [draw(finished(200 + n)) for n in range(draw(st.integers(0, 3)))]
    others = [job.id for job in jobs]
    for number in range(1, 1 + draw(st.integers(1, 9))):
        jobs.append(draw(waiting(number, others)))
        others.append(number)
    up = draw(st.integers(0, 15)) != 0
    docker = RuntimeStatus("docker", up, "Docker 28" if up else "Docker does not answer")
    runtimes = (docker, RuntimeStatus("process", True, "host"))
    controls = Controls(paused=True, paused_by="root") if draw(st.integers(0, 24)) == 0 else Controls()
    snapshot = Snapshot(
        taken_at=NOW,
        nodes=tuple(Node(f"node{n}", vs, runtimes=runtimes) for n, vs in enumerate(views)),
        jobs=tuple(draw(st.permutations(jobs))),
        controls=controls,
        usage=Usage(NOW - DAY, {"alice": 1e5}) if draw(st.booleans()) else Usage(),
    )
    return Case(snapshot, draw(settings(sum(sizes))))


def _taken(row: GpuView, held: dict[str, Job], drained: bool) -> GpuView:
    if row.gpu.uuid not in held:
        return row
    drain = Drain("", "root", NOW) if drained else None
    return replace(row, state=GpuState.ALLOCATED, job_id=held[row.gpu.uuid].id, drain=drain)


def _running(draw: st.DrawFn, free: list[GpuView]) -> list[Job]:
    """Return jobs that hold some of the free GPUs, and jobs without GPUs."""
    jobs: list[Job] = []
    for number in range(101, 101 + draw(st.integers(0, 4))):
        width = min(draw(any_of(0, 1, 1, 2, 3)), len(free))
        mine, free = free[:width], free[width:]
        began = NOW - timedelta(minutes=draw(st.integers(0, 120)))
        attempt = Attempt(1, tuple(v.gpu.uuid for v in mine), claimed_at=began, started_at=began)
        spec = replace(draw(SPECS), gpus=GpuRequest(width, width))
        array = draw(any_of(None, None, ArrayRef(9001, number, 2)))
        job = Job(number, spec, began, JobState.RUNNING, array=array, started_at=began, attempts=(attempt,))
        jobs.append(job)
    return jobs


@st.composite
def finished(draw: st.DrawFn, number: int) -> Job:
    ended = NOW - timedelta(minutes=draw(st.integers(1, 3000)))
    began = ended - timedelta(minutes=draw(st.integers(1, 300)))
    attempt = Attempt(1, (uuid(0),), claimed_at=began, started_at=began, ended_at=ended)
    spec = replace(draw(SPECS), gpus=GpuRequest(1, 1))
    return Job(number, spec, began, JobState.COMPLETED, started_at=began, ended_at=ended, attempts=(attempt,))
