"""Snapshots of bad days beyond those of `sample`: faults of driver, engine, disk, clock, and acts of people."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import (
    Drain,
    Gpu,
    GpuSample,
    GpuState,
    GpuView,
    Health,
    HealthCode,
    Holder,
    ProbeCode,
    ProbeStatus,
    Sharer,
)
from gputui.domain.job import Attempt, Job
from gputui.domain.snapshot import Controls, Notice, Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from tests.factories import GIB, NOW, gpu, job, running, uuid, view
from tests.tui import plans, sample

SOCKET = "unix:///var/run/docker.sock"
STORE = "/var/lib/gputui/queue.json"
HELD = Reason(PendingReason.JOB_HELD_USER, "held by its user")
SICK = (
    Health(HealthCode.LOST, "lost: the driver cannot reach it; reset it or reboot the host"),
    Health(HealthCode.LOST, "lost: the driver no longer lists it"),
    Health(HealthCode.NEEDS_RESET, "the driver asks for a reset of the GPU"),
    Health(HealthCode.XID, "Xid 48: double-bit ECC error"),
    Health(HealthCode.ECC, "3 uncorrected memory errors since the driver was loaded; reset the GPU"),
    Health(HealthCode.REMAP_FAILED, "a faulty memory row could not be remapped; the board must be replaced"),
    Health(HealthCode.REMAP_PENDING, "a memory row waits to be remapped at the next reset; usable until then"),
    Health(HealthCode.UNKNOWN, "cannot be identified: GPU requires reset"),
)
"""Every fault of a GPU."""


def no_gpus() -> Snapshot:
    """Return a snapshot with a driver but without GPUs."""
    text = "the driver works, but it lists no GPU. `lspci | grep -i nvidia` shows whether the host has one"
    return sample.with_node(gpus=(), probe=ProbeStatus(ProbeCode.NO_GPUS, text))


def docker_hung() -> Snapshot:
    """Return a snapshot with an engine that accepts calls and answers none."""
    text = f"Docker at {SOCKET} did not answer in time (`systemctl status docker`)"
    return sample.with_node(runtimes=(RuntimeStatus("docker", up=False, text=text),))


def sick() -> Snapshot:
    """Return a snapshot with a GPU of every fault; job 101 was on one of them, and 104 on another."""
    views = []
    for index, health in enumerate(SICK):
        base = sample.busy(index) if health.code is not HealthCode.LOST else view(index, sample=None, age=None)
        is_well = health.code is HealthCode.REMAP_PENDING
        state = GpuState.FREE if is_well else GpuState.UNKNOWN
        holder = {2: 101, 3: 104}.get(index)
        views.append(replace(base, state=state, health=health, job_id=holder, why="" if is_well else health.text))
    return sample.with_node(gpus=tuple(views))


def not_supported() -> Snapshot:
    """Return a snapshot with GPUs that answer NOT_SUPPORTED to every call."""
    views = []
    for index in range(4):
        bare = Gpu(uuid(index), index, "NVIDIA GB10")
        reading = GpuSample(uuid(index), NOW, processes=())
        views.append(GpuView(bare, GpuState.FREE, Health(), sample=reading, age=timedelta(0)))
    held = replace(views[0], state=GpuState.ALLOCATED, job_id=101)
    return sample.with_node(gpus=(held, *views[1:]))


def late() -> Snapshot:
    """Return a snapshot of a scheduler that has been silent for minutes."""
    return replace(sample.viewer(), taken_at=NOW - timedelta(minutes=3))


def clock_back() -> Snapshot:
    """Return a snapshot after the clock was set back by an hour: all events are in the future."""
    hour = timedelta(hours=1)
    ahead = [one.evolve(submitted_at=one.submitted_at + hour) for one in sample.jobs() if one.state is JobState.PENDING]
    begun = [_begun_later(one, hour) for one in sample.jobs() if one.state is JobState.RUNNING]
    base = sample.with_job(sample.rich_snapshot(), [*ahead, *begun])
    return replace(base, taken_at=NOW + hour)


def _begun_later(base: Job, by: timedelta) -> Job:
    assert base.submitted_at is not None
    changed = base.evolve(submitted_at=base.submitted_at + by, started_at=NOW + by)
    return changed.with_attempt(started_at=NOW + by, claimed_at=NOW + by)


def disk_low() -> Snapshot:
    text = "412M left on the disk of /var/lib/gputui: queue and logs need room"
    return sample.rich_snapshot(notices=(Notice("warning", text),))


def damaged() -> Snapshot:
    """Return a snapshot with damaged lines of the journal."""
    text = f"{STORE}.wal.41.damaged: kept for its damaged lines, which are lost to the queue"
    return sample.rich_snapshot(notices=(Notice("warning", text),))


def unreadable() -> Snapshot:
    """Return a snapshot with an unreadable queue."""
    text = (
        f"{STORE}: not a queue of gputui: Expecting ',' delimiter: line 1 column 4711 (char 4710): "
        "move the file away and put a copy in its place; nothing is started until this is mended"
    )
    return replace(sample.empty_queue(), notices=(Notice("error", text),))


def drained() -> Snapshot:
    """Drain every GPU, while jobs wait."""
    drain = Drain("driver update at 18:00, ticket 4711", "alice", NOW)
    views = [replace(one, drain=drain) for one in sample.gpus()]
    free = [replace(one, state=GpuState.DRAINED) if one.state is GpuState.FREE else one for one in views]
    return replace(sample.with_node(gpus=tuple(free)), controls=Controls(drains={one.gpu.uuid: drain for one in views}))


def all_held() -> Snapshot:
    """Leave only held jobs in the queue."""
    jobs = [one.evolve(held=True) if one.state is JobState.PENDING else one for one in sample.jobs()]
    waiting = tuple(one.id for one in jobs if one.state is JobState.PENDING)
    reasons = dict.fromkeys(waiting, HELD)
    return sample.rich_snapshot(jobs=tuple(jobs), order=waiting, reasons=reasons, expected_starts={})


def long_queue() -> Snapshot:
    """Return a snapshot with ten thousand waiting jobs."""
    return sample.many_jobs(10_000)


def instances() -> Snapshot:
    """Return a snapshot of four GPUs divided into instances, two of which are held."""
    views = []
    for index in range(4):
        parent = replace(view(index), gpu=replace(gpu(index), mig_enabled=True), state=GpuState.UNKNOWN)
        views.append(replace(parent, why="cut into instances"))
        views += [_instance(index, place, profile) for place, profile in enumerate(("3g.40gb", "2g.20gb", "1g.10gb"))]
    held = {views[1].gpu.uuid: 101, views[2].gpu.uuid: 104}
    made = tuple(
        replace(one, state=GpuState.ALLOCATED, job_id=held[one.gpu.uuid]) if one.gpu.uuid in held else one
        for one in views
    )
    on = [running(number, on=(name,), name=f"small-{number}", tenant="bob") for name, number in held.items()]
    return sample.with_job(sample.with_node(gpus=made), on)


def _instance(index: int, place: int, profile: str) -> GpuView:
    name = f"MIG-{index}{place}000000-0000-5000-8000-000000000000"
    size = int(profile.partition(".")[2].removesuffix("gb")) * GIB
    cut = Gpu(name, index, "NVIDIA H100 80GB HBM3", size, mig_parent=uuid(index), mig_profile=profile, mig_index=place)
    reading = GpuSample(name, NOW, memory_used=size // 3, memory_total=size, processes=())
    return GpuView(cut, GpuState.FREE, Health(), sample=reading, age=timedelta(0))


def vanished() -> Snapshot:
    """Return a snapshot in which the GPUs of job 101 are no longer listed."""
    return sample.with_node(gpus=sample.gpus()[2:])


def shared() -> Snapshot:
    """Return a snapshot with three jobs on one GPU, a throttled GPU, and a foreign process without a name."""
    three = [running(number, on=(uuid(0),), name=f"notebook-{number}", tenant="carol") for number in (101, 104, 105)]
    together = replace(
        sample.busy(0, 101),
        job_ids=(101, 104, 105),
        sharers=tuple(Sharer(number, 20 * GIB) for number in (101, 104, 105)),
        closed="60G of 80G are promised",
    )
    hot = sample.busy(1, 101)
    assert hot.sample is not None
    slowed = replace(hot.sample, throttle=("too hot (hardware)", "power cap"), temperature=93.0)
    unknown = Holder("process", "", None, 4711, None, 3 * GIB)
    taken = replace(sample.busy(2), state=GpuState.FOREIGN, holders=(unknown,), why="a process of somebody else")
    views = (together, replace(hot, sample=slowed, job_id=None), taken, *sample.gpus()[3:])
    return replace(sample.with_job(sample.with_node(gpus=views), three), progress={})


def all_at_once() -> Snapshot:
    """Combine a missing driver, a missing engine, no scheduler, a full disk and a pause."""
    base = sample.no_gpu()
    node = replace(base.nodes[0], runtimes=docker_hung().nodes[0].runtimes)
    return replace(
        base,
        nodes=(node,),
        leader=None,
        leads_here=False,
        controls=Controls(True, "kernel update at 14:00", "alice"),
        notices=sample.disk_full().notices,
    )


def gone() -> Snapshot:
    """Return a snapshot after the container of job 101 was removed by hand."""
    words = "its container was removed or lost by the engine before its end was seen, so its end is unknown"
    cause = Cause(CauseCode.END_UNKNOWN, words)
    attempt = Attempt(1, (uuid(0), uuid(1)), NOW - timedelta(hours=2), "c0ffee0000aa", NOW - timedelta(hours=2), NOW)
    over = job(101, name="llama-7b-sft", tenant="alice", gpus=2).evolve(
        state=JobState.FAILED, started_at=attempt.started_at, ended_at=NOW, cause=cause
    )
    ended = over.evolve(attempts=(replace(attempt, cause=cause),))
    return sample.with_job(sample.rich_snapshot(), [ended])


def plan_paused() -> Snapshot:
    """Return a full node whose scheduler is paused, so nothing of the plan comes true."""
    return plans.contended(controls=Controls(True, "kernel update at 14:00", "alice"))


def plan_sick() -> Snapshot:
    """Return a full node with a lost and an unread GPU, and jobs that can never start."""
    lost = replace(view(0), state=GpuState.UNKNOWN, health=SICK[0], sample=None, age=None, job_id=101)
    views = (lost, *plans.rows()[1:4], replace(plans.rows()[4], stale=True, state=GpuState.UNKNOWN), *plans.rows()[5:])
    return plans.contended(nodes=(replace(plans.contended().nodes[0], gpus=views),))


THAT_CHANGE_PANES: tuple[Callable[[], Snapshot], ...] = (
    sick,
    not_supported,
    drained,
    long_queue,
    instances,
    shared,
    all_at_once,
)
