"""Seeded snapshot of a busy node, and variants for bad days: for tests and screenshots."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec.structs import replace

from gputui.domain.container import RuntimeStatus
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import (
    DiskUse,
    Drain,
    GpuProcess,
    GpuSample,
    GpuState,
    GpuView,
    Health,
    HealthCode,
    Holder,
    HostSample,
    Link,
    ProbeCode,
    ProbeStatus,
)
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import ContainerOptions
from gputui.domain.snapshot import Controls, Leader, Node, Notice, Snapshot
from gputui.domain.state import JobState, PendingReason, Reason
from tests.factories import GIB, NOW, job, running, sample, uuid, view

HERE = Leader(4711, "node1", "alice", "console", NOW - timedelta(hours=3))
SERVE = Leader(812, "node1", "root", "serve", NOW - timedelta(days=2))
HOST = HostSample(
    sampled_at=NOW,
    cpu=0.38,
    cores=64,
    load=12.4,
    memory_total=512 * GIB,
    memory_used=210 * GIB,
    swap_total=8 * GIB,
    swap_used=0,
    received=1.2e9,
    sent=3.1e8,
    disks=(DiskUse("/data", ("state", "docker"), 7000 * GIB, 1330 * GIB),),
)
OK = ProbeStatus(ProbeCode.OK, "8 GPUs are read", NOW)
DOCKER = RuntimeStatus("docker", up=True, text="Docker 27.3.1", version="27.3.1")


def busy(index: int, job_id: int | None = None, **changes: object) -> GpuView:
    """Return a busy GPU."""
    load = 0.62 + (index * 37 % 36) / 100
    reading = sample(
        index,
        utilization=load,
        memory_used=int((38 + index * 5) * GIB),
        temperature=58.0 + index * 2,
        power=480.0 + index * 21,
        sm_clock=1755,
    )
    state = GpuState.ALLOCATED if job_id is not None else GpuState.FREE
    return view(index, state, sample=reading, job_id=job_id, **changes)


def gpus() -> tuple[GpuView, ...]:
    """Return GPUs: two jobs on three, a foreign container, a drained one, a lost one, two free."""
    foreign = Holder("container", "jupyter-bob", "bob", 22110, "f00d" * 16, 31 * GIB)
    return (
        busy(0, 101),
        busy(1, 101),
        busy(2, 104),
        replace(busy(3), state=GpuState.FOREIGN, holders=(foreign,), why="a container that is not gputui's is on it"),
        view(4),
        view(5),
        view(6, GpuState.DRAINED, drain=Drain("fan noise, ticket 812", "alice", NOW), why="drained"),
        view(
            7,
            GpuState.UNKNOWN,
            health=Health(HealthCode.LOST, "fell off the bus (Xid 79): reboot the host"),
            sample=None,
            age=None,
        ),
    )


def jobs() -> tuple[Job, ...]:
    """Return jobs in every state that an operator meets."""
    trained = running(101, on=(uuid(0), uuid(1)), name="llama-7b-sft", tenant="alice", time_limit=timedelta(hours=8))
    trained = trained.evolve(started_at=NOW - timedelta(hours=2, minutes=14))
    pulled = job(105, name="vit-eval", tenant="bob", image="registry/vit:2", gpus=1)
    return (
        _ended(91, JobState.COMPLETED, "tokenize", 0),
        _ended(92, JobState.FAILED, "dpo-sweep", 1, Cause(CauseCode.NON_ZERO_EXIT, "exit code 1")),
        _ended(93, JobState.OUT_OF_MEMORY, "big-batch", 137, Cause(CauseCode.OUT_OF_MEMORY, "over its memory limit")),
        trained,
        running(104, on=(uuid(2),), name="resnet-ablation", tenant="bob"),
        replace(pulled, state=JobState.CONFIGURING),
        job(106, name="llama-70b-pretrain", tenant="alice", gpus=8, priority=90, age=7200),
        job(107, name="whisper-finetune", tenant="carol", gpus=(2, 4), age=3600, time_limit=timedelta(hours=4)),
        job(108, name="after-sft-eval", tenant="alice", gpus=1, age=3000, after=(101,)),
        job(109, name="nightly-bench", tenant="ci", gpus=1, priority=10, age=900, held=True),
        job(110, name="cpu-etl", tenant="carol", age=60, image=None, command=("python", "etl.py")),
    )


def _ended(job_id: int, state: JobState, name: str, exit_code: int, cause: Cause | None = None) -> Job:
    started = NOW - timedelta(minutes=47)
    ended = NOW - timedelta(minutes=job_id - 80)
    attempt = Attempt(1, (uuid(4),), started, f"c{job_id}", started, ended, exit_code, cause)
    return job(job_id, name=name, tenant="alice", gpus=1, age=9000, retries=1).evolve(
        state=state, started_at=started, ended_at=ended, exit_code=exit_code, cause=cause, attempts=(attempt,)
    )


REASONS = {
    106: Reason(PendingReason.RESOURCES, "needs 8 GPUs, 2 are free; 6 more are expected by 17:46"),
    107: Reason(PendingReason.PRIORITY, "job 106 is before it and needs the free GPUs"),
    108: Reason(PendingReason.DEPENDENCY, "waits for job 101 to complete"),
    109: Reason(PendingReason.JOB_HELD_USER, "held by its user"),
    110: Reason(PendingReason.RESOURCES, "starts at the next tick"),
}


def rich_snapshot(**changes: object) -> Snapshot:
    """Return the snapshot of a busy day."""
    base = Snapshot(
        taken_at=NOW,
        nodes=(Node("node1", gpus(), OK, "560.35.05", (DOCKER,), HOST),),
        jobs=jobs(),
        leader=HERE,
        leads_here=True,
        order=(106, 107, 108, 110, 109),
        reasons=REASONS,
        expected_starts={106: NOW + timedelta(hours=5, minutes=46), 107: NOW + timedelta(minutes=38)},
        progress={105: "pulling registry/vit:2, 45 %"},
    )
    return replace(base, **changes)


def at_load(reading: GpuSample, load: float) -> GpuSample:
    """Return the reading at another load."""
    return replace(reading, utilization=load)


def with_sample(gpu: GpuView, reading: GpuSample | None) -> GpuView:
    """Return the GPU with another reading."""
    return replace(gpu, sample=reading)


def with_node(*, taken_at: datetime = NOW, **changes: object) -> Snapshot:
    """Return the snapshot with another node."""
    base = rich_snapshot(taken_at=taken_at)
    return replace(base, nodes=(replace(base.nodes[0], **changes),))


def no_gpu() -> Snapshot:
    text = "no NVIDIA driver library (libnvidia-ml.so.1) on this host. Install the driver, then start gputui again"
    return with_node(gpus=(), probe=ProbeStatus(ProbeCode.NO_LIBRARY, text))


def no_docker() -> Snapshot:
    text = (
        "no permission to speak to Docker at unix:///var/run/docker.sock (users in the group docker may, which equals "
        "root: `sudo usermod -aG docker USER`, then log in again)"
    )
    return with_node(runtimes=(RuntimeStatus("docker", up=False, text=text),))


def stale() -> Snapshot:
    why = "its last reading is 42 s old"
    old = tuple(
        replace(gpu, state=GpuState.UNKNOWN, stale=True, age=timedelta(seconds=42), why=why) for gpu in gpus()[:7]
    )
    probe = ProbeStatus(ProbeCode.WEDGED, "the driver has not answered for 42 s; a new probe is tried every 30 s")
    return with_node(gpus=(*old, gpus()[7]), probe=probe)


def empty_queue() -> Snapshot:
    return rich_snapshot(
        nodes=(Node("node1", tuple(view(i) for i in range(8)), OK, None, (DOCKER,)),),
        jobs=(),
        order=(),
        reasons={},
        expected_starts={},
        progress={},
    )


def viewer() -> Snapshot:
    return rich_snapshot(leader=SERVE, leads_here=False)


def nobody_leads() -> Snapshot:
    return rich_snapshot(leader=None, leads_here=False)


def paused() -> Snapshot:
    return rich_snapshot(controls=Controls(True, "kernel update at 14:00", "alice"))


def disk_full() -> Snapshot:
    text = (
        "no space is left in /var/lib/gputui: nothing was lost, but no job can be submitted or started. Free some space"
    )
    return rich_snapshot(notices=(Notice("error", text),))


NAMES = (
    "训练大模型-第三阶段-多语言数据集",
    "🚀🔥 fire-and-forget 👩‍🔬",
    "[bold red]not markup[/] [link=http://x]x[/link]",
    "\x1b[2J\x1b]0;owned\x07 escape \x1b[31m",
    "tab\there\r\nnew line",
    "\u202egnp.exe right-to-left",
    "한국어 작업 이름이 아주 길어요",
    "n" * 200,
)


def strange_names() -> Snapshot:
    waiting = tuple(job(i, name=name, tenant=name[:6], gpus=1) for i, name in enumerate(NAMES, 1))
    on_gpu = running(50, on=(uuid(0),), name=NAMES[0], tenant="用户")
    holder = Holder("container", NAMES[3], "[red]mallory[/]", 1)
    views = (busy(0, 50), replace(busy(1), state=GpuState.FOREIGN, holders=(holder, holder)))
    return rich_snapshot(
        nodes=(Node("节点", views, OK, None, (DOCKER,)),),
        jobs=(*waiting, on_gpu),
        order=tuple(range(1, len(NAMES) + 1)),
        reasons={1: Reason(PendingReason.RESOURCES, "需要 \x1b[31m8 GPUs[/]")},
    )


def secret_job() -> Job:
    """Return a job with every field that the detail screen shows."""
    options = ContainerOptions(
        env=(("WANDB_API_KEY", "hunter2-secret"), ("EPOCHS", "3")),
        volumes=("/data:/data:ro", "/scratch/alice:/out"),
        memory=64 * GIB,
        shm_size=16 * GIB,
        labels=(("team", "nlp"),),
    )
    first = Attempt(
        1,
        (uuid(3),),
        NOW - timedelta(hours=3),
        "c0ffee0000aa",
        NOW - timedelta(hours=3),
        NOW - timedelta(hours=2, minutes=20),
        None,
        Cause(CauseCode.GPU_LOST, "GPU 3 fell off the bus (Xid 79)"),
        charged=False,
    )
    second = Attempt(
        2,
        (uuid(0), uuid(1)),
        NOW - timedelta(hours=2, minutes=14),
        "badc0de00011",
        NOW - timedelta(hours=2, minutes=14),
    )
    base = job(
        101,
        name="llama-7b-sft",
        tenant="alice",
        spec=None,
        age=4 * 3600,
        image="nvcr.io/nvidia/pytorch:24.10-py3",
        command=("torchrun", "--nproc-per-node=2", "train.py"),
        time_limit=timedelta(hours=8),
        retries=2,
        options=options,
        gpus=2,
    )
    return base.evolve(
        state=JobState.RUNNING,
        started_at=NOW - timedelta(hours=2, minutes=14),
        attempts=(first, second),
        avoid_gpus=(uuid(3),),
        submitted_by="alice",
        priority=60,
    )


def many_jobs(count: int) -> Snapshot:
    """Return a long seeded queue."""
    rng = random.Random(7)
    tenants = ("alice", "bob", "carol", "dave")
    waiting = tuple(
        job(i, name=f"sweep-{rng.randrange(10**6):06}", tenant=rng.choice(tenants), gpus=1 + i % 4, age=float(i))
        for i in range(1, count + 1)
    )
    reasons = {job.id: Reason(PendingReason.PRIORITY, f"{job.id} jobs are before it") for job in waiting}
    return rich_snapshot(jobs=waiting, order=tuple(j.id for j in waiting), reasons=reasons, expected_starts={})


def with_job(snapshot: Snapshot, changed: Iterable[Job]) -> Snapshot:
    """Return the snapshot with these jobs in place of those of the same ids."""
    by_id = {job.id: job for job in changed}
    return replace(snapshot, jobs=tuple(by_id.get(job.id, job) for job in snapshot.jobs))


def warned() -> Snapshot:
    """Docker's live-restore is off, and another process schedules: so for days."""
    snapshot = viewer()
    node = snapshot.nodes[0]
    docker = replace(node.runtimes[0], warnings=("live-restore is off: jobs die when the Docker daemon restarts",))
    return replace(snapshot, nodes=(replace(node, runtimes=(docker,)),))


def linked() -> Snapshot:
    """Return the snapshot with GPUs that report links, processes and counts, as an HGX board does."""
    views = []
    for gpu in gpus():
        index = gpu.gpu.index
        links = tuple(_link(index, other) for other in range(8) if other != index)
        board = replace(
            gpu.gpu, links=links, numa_node=index // 4, pci_bus_id=f"0000:{index + 0x18:02X}:00.0", minor=index
        )
        views.append(replace(gpu, gpu=replace(board, persistence=True), sample=_full(gpu)))
    return with_node(gpus=tuple(views))


def _link(index: int, other: int) -> Link:
    if index // 4 == other // 4:
        return Link(uuid(other), "NVLINK", 18)
    return Link(uuid(other), "SYS")


def _full(gpu: GpuView) -> GpuSample | None:
    if gpu.sample is None:
        return None
    container = gpu.holders[0].container_id if gpu.holders else "c0ffee00" * 8
    process = GpuProcess(22110, gpu.sample.memory_used, "bob", "python -m ipykernel_launcher", container)
    return replace(
        gpu.sample,
        memory_utilization=0.41,
        memory_clock=2619,
        ecc_corrected=2,
        ecc_uncorrected=0,
        throttle=("power cap",) if gpu.gpu.index == 3 else (),
        processes=(process,) if gpu.sample.memory_used else (),
    )


def looked_at() -> Snapshot:
    """Return the snapshot with the detail readings of the first GPU."""
    first, *others = linked().gpus
    assert first.sample is not None
    processes = (
        *(replace(process, sm=0.58) for process in first.sample.processes or ()),
        GpuProcess(22984, 512 * 1024**2, "bob", "python -c 'import torch; torch.zeros(1).cuda()'", "f00df00d" * 8),
    )
    reading = replace(
        first.sample, processes=processes, pcie_tx=2.1e9, pcie_rx=3.6e9, nvlink_tx=83.5e9, nvlink_rx=82.9e9
    )
    return with_node(gpus=(replace(first, sample=reading), *others))


def many_gpus(count: int) -> Snapshot:
    """Return `count` GPUs in every state."""
    views = []
    for index in range(count):
        like = gpus()[index % 8]
        reading = None if like.sample is None else replace(like.sample, uuid=uuid(index))
        views.append(replace(like, gpu=replace(like.gpu, index=index, uuid=uuid(index)), sample=reading))
    return with_node(gpus=tuple(views))
