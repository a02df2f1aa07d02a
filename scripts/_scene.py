"""A busy afternoon on a simulated server: what the screenshots show. Fixed seed, fixed clock."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from gputui.domain.arrays import Entries
from gputui.domain.container import ForeignContainer, RuntimeStatus
from gputui.domain.errors import Cause, CauseCode
from gputui.domain.gpu import Drain, GpuProcess, ProbeReading
from gputui.domain.idle_gpus import IdleTracker
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import ContainerOptions, GpuRequest, JobSpec
from gputui.domain.policy.plan import plan
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Controls, Leader, Snapshot
from gputui.domain.state import JobState
from gputui.engine.tick.planner import Observations, leader_snapshot
from gputui.engine.tick.snapshot_builder import QueueView, with_plan
from gputui.engine.tick.workers import Observation
from gputui.gpus.simulated import SimulatedProbe, ticks_of

NOW = datetime(2026, 3, 2, 14, 32, 7, tzinfo=UTC)
STORE = "k3v9x2m7q4ta"
SEED = 7
GIB = 1024**3
LEADER = Leader(2211, "atlas", "alice", "console", NOW - timedelta(hours=5))
DOCKER = RuntimeStatus("docker", up=True, text="Docker 28.2.2", version="28.2.2")
HOST = RuntimeStatus("process", up=True, text="host processes")


FAILED = 2
"""Id of the job whose output ends in an error."""


class Clock:
    """Clock that stands still."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> datetime:
        return self.time


class Scene:
    """Eight GPUs, a queue, and the time of day."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.idle = IdleTracker(Settings())
        self.probe = SimulatedProbe(8, clock=self.clock, seed=SEED, store_id=STORE)
        uuids = [gpu.uuid for gpu in self.probe.gpus]
        self.jobs = tuple(_jobs(uuids))
        self.probe.follow([job for job in self.jobs if job.gpus])
        self.foreign: tuple[ForeignContainer, ...] = (
            ForeignContainer("4be1" * 16, "jupyter-carol", "carol", (uuids[6],), "jupyter/pytorch:2026"),
        )
        process = GpuProcess(30112, 21 * GIB, "carol", "python", container_id="4be1" * 16)
        self.probe.foreign(6, process)
        self.probe.want_pcie(uuids[0])  # as its screen does
        drain = Drain("fan noise, ticket 812", "alice", NOW - timedelta(hours=1))
        self.controls = Controls(drains={uuids[7]: drain})

    @classmethod
    def first_day(cls) -> Scene:
        """Return the server as gputui finds it: an empty queue, and processes of five users on all GPUs."""
        scene = cls()
        scene.jobs, scene.foreign, scene.controls = (), (), Controls()
        scene.probe.follow(())
        for gpu, load, *processes in FOREIGN:
            scene.probe.foreign(gpu, *(_process(*values) for values in processes), load=load)
        return scene

    def at(self, now: datetime, **changes: object) -> Snapshot:
        """Return the snapshot at that time."""
        self.clock.time = now
        reading = self.probe.reading_at(now)
        return self.of(reading, now, **changes)

    def of(self, reading: ProbeReading, now: datetime, **changes: object) -> Snapshot:
        """Return the snapshot with that reading of the GPUs."""
        seen = (Observation(DOCKER, 1, (), self.foreign), Observation(HOST, 1, (), ()))
        world = Observations(reading, seen, {}, {9: "pulling registry.lab/vit:2.1: 45 %"}, ())
        jobs = Entries({job.id: job for job in self.jobs})
        queue = QueueView(jobs, tuple(job for job in self.jobs if job.state.is_active), controls=self.controls)
        snapshot = leader_snapshot(STORE, queue, world, LEADER, Settings(), now)
        snapshot = replace(snapshot, nodes=self.idle.marked(snapshot.nodes, jobs, now), **changes)
        return with_plan(snapshot, plan(snapshot, Settings(), now))

    def minutes_before(self, minutes: int, every: timedelta) -> Iterator[Snapshot]:
        """Return the earlier snapshots, for the graphs."""
        now = NOW - timedelta(minutes=minutes)
        while now < NOW:
            yield self.at(now)
            now += every


FOREIGN: tuple[tuple[int, float, *tuple[tuple[int, str, str, float, float], ...]], ...] = (
    (0, 0.97, (41213, "alice", "python -m torch.distributed.run train.py --config llama-7b.yaml", 62, 52)),
    (1, 0.96, (41214, "alice", "python -m torch.distributed.run train.py --config llama-7b.yaml", 61, 52)),
    (2, 0.91, (77120, "bob", "python finetune.py --model whisper-large --lr 3e-5", 34, 5.4)),
    (3, 0.0, (22110, "carol", "/opt/conda/bin/python -m ipykernel_launcher -f kernel-8c1.json", 38, 79)),
    (4, 0.0, (22931, "carol", "/opt/conda/bin/python -m ipykernel_launcher -f kernel-d07.json", 11, 77)),
    (5, 0.43, (90455, "dave", "/usr/bin/vllm serve Qwen/Qwen2.5-32B-Instruct --port 8000", 71, 312)),
    (
        6,
        0.58,
        (90460, "dave", "/usr/bin/vllm serve BAAI/bge-m3 --port 8001", 6, 312),
        (64011, "erin", "./lmp -in melt.in", 9, 1.2),
    ),
    (7, 0.0, (13502, "root", "/usr/bin/python3 /root/test.py", 0.4, 505)),
)
"""GPU and its load; then of each process pid, user, command, GiB and age in hours."""


def _process(pid: int, user: str, command: str, size: float, hours: float) -> GpuProcess:
    return GpuProcess(pid, int(size * GIB), user, command, ticks=ticks_of(NOW - timedelta(hours=hours)))


def _spec(name: str, tenant: str, gpus: int | tuple[int, int] = 1, **changes: object) -> JobSpec:
    low, high = gpus if isinstance(gpus, tuple) else (gpus, gpus)
    fields: dict[str, object] = {
        "image": "registry.lab/train:3.2",
        "command": ("python", "train.py", "--config", f"{name}.yaml"),
        "name": name,
        "tenant": tenant,
        "gpus": GpuRequest(low, high),
        "time_limit": timedelta(hours=12),
        "options": ContainerOptions(env=(("WANDB_API_KEY", "secret"), ("NCCL_DEBUG", "WARN")), shm_size=16 * GIB),
    }
    return JobSpec(**{**fields, **changes})  # type: ignore[arg-type]


def _job(job_id: int, spec: JobSpec, minutes: float, **changes: object) -> Job:
    submitted = NOW - timedelta(minutes=minutes)
    job = Job(job_id, spec, submitted, priority=spec.priority, submitted_by=spec.tenant)
    return job.evolve(**changes)


def _running(job_id: int, spec: JobSpec, minutes: float, gpus: Iterable[str], number: int = 1) -> Job:
    started = NOW - timedelta(minutes=minutes)
    earlier = tuple(
        Attempt(
            n,
            tuple(gpus),
            started,
            f"{n:064x}",
            started - timedelta(minutes=9),
            started - timedelta(minutes=2),
            1,
            Cause(CauseCode.NON_ZERO_EXIT, "exit code 1"),
            f"logs/{job_id}/{n}.log",
        )
        for n in range(1, number)
    )
    attempt = Attempt(number, tuple(gpus), started, f"{job_id:064x}", started)
    job = _job(job_id, spec, minutes + 14)
    return job.evolve(state=JobState.RUNNING, started_at=started, attempts=(*earlier, attempt))


def _ended(job_id: int, spec: JobSpec, minutes: float, state: JobState, code: int, cause: Cause | None = None) -> Job:
    started, ended = NOW - timedelta(minutes=minutes + 31), NOW - timedelta(minutes=minutes)
    attempt = Attempt(1, (), started, f"{job_id:064x}", started, ended, code, cause, f"logs/{job_id}/1.log")
    job = _job(job_id, spec, minutes + 60)
    return job.evolve(state=state, started_at=started, ended_at=ended, exit_code=code, cause=cause, attempts=(attempt,))


def _failed_once(job: Job) -> Job:
    broke, ended = Cause(CauseCode.NON_ZERO_EXIT, "exit code 1"), NOW - timedelta(seconds=6)
    begun = ended - timedelta(minutes=4)
    attempt = Attempt(1, (), begun, "d" * 64, begun, ended, 1, broke, f"logs/{job.id}/1.log")
    return job.evolve(attempts=(attempt,), cause=broke, not_before=NOW + timedelta(seconds=34))


def _jobs(uuids: list[str]) -> Iterator[Job]:
    oom = Cause(
        CauseCode.GPU_OUT_OF_MEMORY, "out of GPU memory (exit code 1): torch.OutOfMemoryError: CUDA out of memory"
    )
    yield _ended(1, _spec("tokenize-shards", "alice"), 190, JobState.COMPLETED, 0)
    yield _ended(2, _spec("dpo-beta-0.3", "bob"), 55, JobState.OUT_OF_MEMORY, 1, oom)
    yield _running(3, _spec("llama-7b-sft", "alice", 2, priority=60), 134, uuids[0:2])
    yield _running(5, _spec("vit-large-pretrain", "bob", 2), 47, uuids[2:4])
    yield _running(6, _spec("whisper-finetune", "alice", 1, retries=2), 12, uuids[4:5], number=2)
    eval_spec = _spec("vit-eval", "bob", image="registry.lab/vit:2.1")
    yield _job(9, eval_spec, 3, state=JobState.CONFIGURING)
    yield _job(10, _spec("llama-70b-eval", "alice", 6, priority=80), 96)
    yield _job(11, _spec("sdxl-lora", "bob", (2, 4)), 71)
    yield _job(12, _spec("reward-model", "alice", 2, after=(3,)), 64)
    yield _failed_once(_job(13, _spec("clip-retrieval", "bob", 1, retries=3), 40))
    yield _job(14, _spec("nightly-bench", "ci", 4, begin_at=NOW + timedelta(hours=6, minutes=28)), 33)
    yield _job(15, _spec("gpt-scaling-sweep", "bob", 4), 21, held=True)
    yield _job(16, _spec("etl-images", "carol", 0, image=None, command=("python", "etl.py"), after_any=(5,)), 8)


@cache
def log_lines() -> tuple[bytes, ...]:
    """Return the output of the selected job."""
    return _printed("llama-7b-sft")[:140]


@cache
def failed_lines() -> tuple[bytes, ...]:
    """Return the output of the failed job, to its end."""
    return _printed("dpo-beta-0.3", "--fail-at", "120")


def _printed(name: str, *options: str) -> tuple[bytes, ...]:
    command = [sys.executable, "-m", "gputui.cli.trainer", "--name", name, "--steps", "900", "--seed", "7", *options]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
    }
    words = [*command, "--time-scale", "0"]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=not options)
    return tuple(done.stdout.split(b"\n"))
