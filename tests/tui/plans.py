"""Snapshots with interesting plans: a full node with a queue, a window, and sixty-four GPUs."""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.gpu import Drain, GpuState, GpuView, Health, HealthCode, Holder
from gputui.domain.job import Job
from gputui.domain.settings import PolicySettings, Window
from gputui.domain.snapshot import Node, Snapshot
from tests.factories import NOW, job, running, uuid, view
from tests.tui.sample import DOCKER, HERE, OK

HOUR = timedelta(hours=1)
KEPT = PolicySettings(
    predict=False,
    max_time=24 * HOUR,
    reservations=(Window("exam week", NOW + 7 * HOUR, NOW + 10 * HOUR, gpus=("4", "5", "6"), tenant="ci"),),
)


def since(base: Job, started: timedelta) -> Job:
    """Return the job, running since then."""
    return base.evolve(started_at=NOW - started).with_attempt(started_at=NOW - started, claimed_at=NOW - started)


def running_jobs() -> tuple[Job, ...]:
    """Return running jobs: two with limits, one without, one beyond its plan."""
    sft = running(101, on=(uuid(0), uuid(1)), name="llama-7b-sft", tenant="alice", time_limit=8 * HOUR)
    vit = running(102, on=(uuid(2), uuid(3)), name="vit-pretrain", tenant="bob", time_limit=3 * HOUR)
    return (
        since(sft, 2.25 * HOUR),
        since(vit, 1.5 * HOUR),
        since(running(103, on=(uuid(4),), name="resnet-ablation", tenant="bob"), 22 * HOUR),
        since(running(104, on=(uuid(5),), name="forgotten-notebook", tenant="carol"), 30 * HOUR),
    )


def waiting_jobs() -> tuple[Job, ...]:
    """Return waiting jobs: the head asks for four GPUs; behind it jobs of all widths, one held."""
    return (
        job(106, name="llama-70b-eval", tenant="alice", gpus=4, age=7200, time_limit=2 * HOUR),
        job(107, name="whisper-finetune", tenant="carol", gpus=2, age=3600, time_limit=1 * HOUR),
        job(108, name="segformer-city", tenant="alice", gpus=2, age=3000, time_limit=4 * HOUR),
        job(109, name="nightly-bench", tenant="ci", gpus=1, age=900, time_limit=HOUR, held=True),
        job(110, name="unet-medical", tenant="bob", gpus=1, age=60),
        job(111, name="dpo-sweep", tenant="bob", gpus=2, age=30, time_limit=6 * HOUR),
    )


def rows() -> tuple[GpuView, ...]:
    """Return GPUs: six held by jobs, one drained, one with a foreign process."""
    held = {name: one.id for one in running_jobs() for name in one.gpus}
    busy = tuple(view(i, GpuState.ALLOCATED, job_id=held[uuid(i)]) for i in range(6))
    drain = Drain("fan noise, ticket 812", "alice", NOW)
    other = Holder("container", "jupyter-bob", "bob", 22110)
    return (
        *busy,
        view(6, GpuState.DRAINED, drain=drain, why="drained"),
        view(7, GpuState.FOREIGN, holders=(other,), why="a container that is not gputui's is on it"),
    )


def contended(**changes: object) -> Snapshot:
    """Return a full node with a queue."""
    base = Snapshot(
        taken_at=NOW,
        nodes=(Node("node1", rows(), OK, "560.35.05", (DOCKER,)),),
        jobs=(*running_jobs(), *waiting_jobs()),
        leader=HERE,
        leads_here=True,
        order=(106, 107, 108, 110, 111, 109),
    )
    return replace(base, **changes)


def large() -> Snapshot:
    """Return sixty-four GPUs in two nodes, some of them sick."""
    on = [tuple(uuid(number * 4 + place) for place in range(4)) for number in range(15)]
    jobs = [
        since(running(200 + number, on=gpus, name=f"run-{number}", time_limit=(4 + number) * HOUR), 3 * HOUR)
        for number, gpus in enumerate(on)
    ]
    held = {name: one.id for one in jobs for name in one.gpus}
    views = [view(i, GpuState.ALLOCATED, job_id=held[uuid(i)]) if uuid(i) in held else view(i) for i in range(64)]
    lost = Health(HealthCode.LOST, "fell off the bus (Xid 79): reboot the host")
    views[63] = view(63, GpuState.UNKNOWN, health=lost, sample=None, age=None)
    wide = [
        job(300 + number, name=f"wide-{number}", gpus=8, age=1000.0 - number, time_limit=2 * HOUR)
        for number in range(6)
    ]
    nodes = (
        Node("node1", tuple(views[:32]), OK, None, (DOCKER,)),
        Node("node2", tuple(views[32:]), OK, None, (DOCKER,)),
    )
    return contended(nodes=nodes, jobs=(*jobs, *wide), order=tuple(one.id for one in wide))
