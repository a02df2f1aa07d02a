"""Short factories of objects for tests: `job()`, `gpu()`, `view()`, `snapshot()`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from gputui.config.settings_file import load_merged
from gputui.domain.access import Actor
from gputui.domain.gpu import Gpu, GpuSample, GpuState, GpuView, Health
from gputui.domain.job import ArrayRef, Attempt, BootTime, Job
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.recurring import Recurrence, RecurringJob
from gputui.domain.runs import runs_of
from gputui.domain.settings import Settings
from gputui.domain.snapshot import Node, Snapshot
from gputui.domain.state import JobState

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ACTOR = Actor(uid=1000, user="alice")
GIB = 1024**3


class FakeClock:
    """Clock that stands still until it is advanced."""

    def __init__(self, now: datetime = NOW) -> None:
        self.time = now
        self.awake = 1000.0

    def now(self) -> datetime:
        return self.time

    def boot_time(self) -> BootTime:
        return BootTime("boot", self.awake)

    def advance(self, seconds: float, shown: float | None = None) -> None:
        """Advance by that many seconds; the wall clock shows `shown` if it is set meanwhile."""
        self.awake += seconds
        self.time += timedelta(seconds=seconds if shown is None else shown)


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def spec(gpus: int | tuple[int, int] = 0, **changes: Any) -> JobSpec:
    low, high = gpus if isinstance(gpus, tuple) else (gpus, gpus)
    fields: dict[str, Any] = {
        "image": "busybox",
        "command": ("true",),
        "name": "train",
        "tenant": "alice",
        "gpus": GpuRequest(low, high),
    }
    return JobSpec(**{**fields, **changes})


def job(job_id: int = 1, *, gpus: int | tuple[int, int] = 0, age: float = 0, **changes: Any) -> Job:
    """Return a waiting job, submitted `age` seconds before NOW; keywords of JobSpec go into its spec."""
    in_spec = {key: changes.pop(key) for key in tuple(changes) if key in JobSpec.__struct_fields__}
    in_spec.pop("gpus", None)
    the_spec = changes.pop("spec", None) or spec(gpus, **in_spec)
    changes.setdefault("priority", the_spec.priority)
    return Job(id=job_id, spec=the_spec, submitted_at=NOW - timedelta(seconds=age), **changes)


def array(indices: Iterable[int], first: int = 7, limit: int | None = None, **changes: Any) -> Job:
    """Return waiting elements with these indices as one entry; keywords as of `job`."""
    found = runs_of(first, tuple(indices))
    return job(first, array=ArrayRef(first, found[0].index, limit), **changes).with_runs(found)


def recurring(expression: str = "0 * * * *", zone: str = "UTC", **changes: Any) -> RecurringJob:
    """Return a recurring job that was added at NOW and has no id yet; keywords of Submission go into that."""
    in_submission = {key: changes.pop(key) for key in tuple(changes) if key in Submission.__struct_fields__}
    submission = Submission(**{"spec": spec(), **in_submission})
    return replace(Recurrence(expression, zone).begun(submission, ZoneInfo(zone), ACTOR, NOW), **changes)


def running(job_id: int = 1, *, on: Iterable[str] = (), **changes: Any) -> Job:
    """Return a job that runs on the GPUs of those UUIDs."""
    held = tuple(on)
    started = NOW - timedelta(seconds=60)
    attempt = Attempt(1, held, claimed_at=started, container_id=f"c{job_id}", started_at=started)
    return job(job_id, gpus=len(held), **changes).evolve(
        state=JobState.RUNNING, started_at=started, attempts=(attempt,)
    )


def gpu(index: int = 0, **changes: Any) -> Gpu:
    fields: dict[str, Any] = {
        "uuid": uuid(index),
        "index": index,
        "model": "NVIDIA H100 80GB HBM3",
        "memory_total": 80 * GIB,
        "pci_bus_id": f"00000000:{0x10 + index:02X}:00.0",
        "numa_node": index // 4,
        "minor": index,
        "power_limit": 700.0,
    }
    return Gpu(**{**fields, **changes})


def sample(index: int = 0, *, at: datetime = NOW, **changes: Any) -> GpuSample:
    fields: dict[str, Any] = {
        "utilization": 0.0,
        "memory_used": 0,
        "memory_total": 80 * GIB,
        "temperature": 35.0,
        "power": 70.0,
        "power_limit": 700.0,
        "sm_clock": 345,
        "processes": (),
        "processes_at": at,
    }
    return GpuSample(uuid=uuid(index), sampled_at=at, **{**fields, **changes})


def view(index: int = 0, state: GpuState = GpuState.FREE, **changes: Any) -> GpuView:
    fields: dict[str, Any] = {"health": Health(), "sample": sample(index), "age": timedelta(0)}
    return GpuView(gpu=changes.pop("gpu", gpu(index)), state=state, **{**fields, **changes})


def snapshot(jobs: Iterable[Job] = (), gpus: int | Iterable[GpuView] = 0, **changes: Any) -> Snapshot:
    views = tuple(view(i) for i in range(gpus)) if isinstance(gpus, int) else tuple(gpus)
    fields: dict[str, Any] = {"taken_at": NOW, "nodes": (Node("here", views),), "jobs": tuple(jobs)}
    return Snapshot(**{**fields, **changes})


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """Return the settings of one file and the environment, which takes precedence; defaults for all others."""
    return load_merged(None, path, environ).settings
