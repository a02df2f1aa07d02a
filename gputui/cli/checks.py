"""What `doctor` looks at: each a pure judgement of facts, with what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from gputui.domain.container import RuntimeStatus
from gputui.domain.gpu import HealthCode, ProbeCode, ProbeReading
from gputui.domain.snapshot import Leader
from gputui.domain.units import format_duration, format_size, plural

BORN = datetime.fromisoformat("2025-06-01T00:00:00+00:00")
"""Before gputui was written: a clock that says so is wrong."""
MANY_SECONDS = timedelta(seconds=5)
LITTLE_SPACE = 1024**3
NO_SPACE = 64 * 1024**2
FEW_INODES = 1000


class Level(StrEnum):
    """How a check went."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    level: Level
    text: str
    hint: str = ""
    """What to do."""


def of_probe(reading: ProbeReading) -> Iterator[Check]:
    """The driver and each GPU."""
    if reading.status.code is not ProbeCode.OK:
        yield Check("driver", Level.FAIL, reading.status.text)
        return
    driver = f"driver {reading.driver_version}" if reading.driver_version else "no driver's version"
    level = Level.OK if reading.gpus else Level.FAIL
    yield Check("driver", level, f"{plural(len(reading.gpus), 'GPU')}, {driver}")
    for note in reading.notes:
        yield Check("driver", Level.WARN, note)
    for gpu in reading.gpus:
        sample = reading.samples.get(gpu.uuid)
        if sample and sample.health.code is not HealthCode.OK:
            level = Level.WARN if sample.health.is_schedulable else Level.FAIL
            yield Check(f"GPU {gpu.index}", level, f"{sample.health.code}: {sample.health.text}", "gputui drain it")


def of_runtime(status: RuntimeStatus) -> Iterator[Check]:
    """One runtime: whether it answers, and what it warns of."""
    yield Check(status.name, Level.OK if status.up else Level.FAIL, status.text)
    for warning in status.warnings:
        yield Check(status.name, Level.WARN, warning)


def of_toolkit(found: str | None) -> Check:
    """NVIDIA's Container Toolkit, without which containers get no GPUs."""
    if found:
        return Check("toolkit", Level.OK, found)
    hint = "install nvidia-container-toolkit where the engine runs, then: nvidia-ctk runtime configure"
    return Check("toolkit", Level.WARN, "NVIDIA's Container Toolkit was not found on this host", hint)


def of_directory(path: str, mode: int, is_owner: bool, is_writable: bool, group: str | None) -> Check:
    """The state directory's permissions."""
    name, shown = "state", f"{path} has mode {mode:04o}"
    if not is_writable:
        return Check(name, Level.FAIL, f"{shown} and cannot be written to", "choose another by --state, or its owner")
    allowed = 0o770 if group else 0o700
    if mode & 0o777 & ~allowed:
        return Check(name, Level.WARN, f"{shown}: others can look into it", f"chmod {allowed:04o} {path}")
    if not is_owner and not group:
        return Check(name, Level.WARN, f"{path} belongs to another user", "set store.group to share it")
    return Check(name, Level.OK, shown)


def of_damage(sentences: Iterable[str]) -> Iterator[Check]:
    """What of the queue could not be read."""
    hint = "compare the queue with what you expect, put back a backup if need be, then remove the .damaged file"
    for sentence in sentences:
        yield Check("queue", Level.WARN, sentence, hint)


def of_space(free_bytes: int, free_inodes: int | None) -> Check:
    """Room for the queue and for logs."""
    text = f"{format_size(free_bytes)} free for the queue and logs"
    if free_bytes < NO_SPACE or (free_inodes is not None and free_inodes < FEW_INODES // 10):
        return Check("disk", Level.FAIL, text, "make room: nothing can be submitted on a full disk")
    if free_bytes < LITTLE_SPACE or (free_inodes is not None and free_inodes < FEW_INODES):
        return Check("disk", Level.WARN, text, "make room before logs fill it")
    return Check("disk", Level.OK, text)


def of_clock(now: datetime, latest: datetime | None) -> Check:
    """The clock, against what was written by it earlier."""
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < BORN:
        return Check("clock", Level.FAIL, f"{shown} is long ago", "set the clock: timedatectl set-ntp true")
    if latest is not None and latest - now > MANY_SECONDS:
        text = f"{shown} is {format_duration(latest - now)} before the queue's last entry"
        return Check("clock", Level.WARN, text, "the clock went back: timedatectl set-ntp true")
    return Check("clock", Level.OK, shown)


def of_leader(leader: Leader | None) -> Check:
    """Who schedules."""
    if leader is None:
        return Check("scheduler", Level.WARN, "nobody schedules", "run gputui, or gputui serve")
    since = f"{leader.started_at.astimezone():%Y-%m-%d %H:%M}"
    return Check("scheduler", Level.OK, f"{leader.kind} of {leader.user} on {leader.host}, pid {leader.pid}, {since}")
