"""Fakes of containers, GPUs and workers in memory, which outlive the schedulers under test."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import replace

from gputui.domain.container import (
    ContainerRecord,
    ContainerState,
    Created,
    ForeignContainer,
    Launch,
    RuntimeFeatures,
    RuntimeStatus,
)
from gputui.domain.errors import Cause, CauseCode, RuntimeFault, RuntimeUnavailableError, cause_of_exit
from gputui.domain.gpu import GpuSample, ProbeCode, ProbeReading, ProbeStatus
from gputui.domain.job import Job
from gputui.domain.telemetry import Consumption
from gputui.ports import Clock
from tests.factories import gpu, sample, uuid

P = ParamSpec("P")
T = TypeVar("T")


class Crash(BaseException):
    """SIGKILL in the middle of a step: no handler of gputui runs."""


class Tripwire:
    """Raises Crash at the n-th step from now, if set, and at each later step: all threads die at once."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.steps = 0
        self.dead = False
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self.steps += 1
            if self.left is not None:
                self.left -= 1
                if self.left <= 0:
                    self.left, self.dead = None, True
            if self.dead:
                raise Crash


class InlineExecutor(Executor):
    """Runs everything at once in the calling thread; a Crash goes through to the caller."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class LaterExecutor(Executor):
    """Executor that keeps tasks until the test runs them."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        self.waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def work(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one()


class FakeRuntime:
    """Runtime whose containers start at once and end when told to."""

    def __init__(self, name: str, clock: Clock, tripwire: Tripwire | None = None) -> None:
        self.name = name
        self.clock = clock
        self.tripwire = tripwire or Tripwire()
        self.up = True
        self.data_root = ""
        self.images = {"busybox"}
        self.pullable = {"busybox", "big"}
        self.made: dict[str, ContainerRecord] = {}
        self.launches: dict[str, Launch] = {}
        self.started: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.saved: dict[str, str] = {}
        self.output: dict[str, list[bytes]] = {}
        self.consumed: dict[str, Consumption] = {}
        self.others: tuple[ForeignContainer, ...] = ()
        self.rivalry: Callable[[str], tuple[ContainerRecord, ...]] = lambda _: ()
        self.fault: Cause | None = None
        self.obeys = True
        self.dies = True

    def _ask(self) -> None:
        self.tripwire.step()
        if not self.up:
            raise RuntimeUnavailableError(f"{self.name} does not answer")

    def status(self) -> RuntimeStatus:
        text = "up" if self.up else f"{self.name} does not answer"
        return RuntimeStatus(
            self.name, self.up, text, capability=RuntimeFeatures(foreign=True), data_root=self.data_root
        )

    def check(self) -> RuntimeStatus:
        return self.status()

    def has_image(self, image: str) -> bool:
        self._ask()
        return image in self.images

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None:
        self._ask()
        progress(f"pulling {image}: 45 %")
        if image not in self.pullable:
            raise RuntimeFault(Cause(CauseCode.IMAGE_NOT_FOUND, f"no image {image}"))
        self.images.add(image)

    def create(self, launch: Launch) -> Created:
        self._ask()
        if launch.name in self.made:
            existing = self.made[launch.name]
            if existing.state is not ContainerState.CREATED or existing.gpus == launch.gpus:
                return Created(launch.name, adopted=True)
        if launch.spec.image is not None and launch.spec.image not in self.images:
            raise RuntimeFault(Cause(CauseCode.IMAGE_NOT_FOUND, f"no image {launch.spec.image}"))
        if self.fault is not None:
            raise RuntimeFault(self.fault)
        self.made[launch.name] = ContainerRecord(
            launch.name, launch.job_id, launch.attempt, ContainerState.CREATED, launch.gpus
        )
        self.launches[launch.name] = launch
        self.tripwire.step()
        return Created(launch.name)

    def start(self, container_id: str) -> None:
        self._ask()
        record = self.made[container_id]
        if record.state is ContainerState.CREATED:
            self.made[container_id] = replace(record, state=ContainerState.RUNNING, started_at=self.clock.now())
            self.started.append(container_id)
        self.tripwire.step()

    def root_directory(self) -> str:
        return "/"

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        self._ask()
        return self.rivalry(container_id)

    def activity(self, container_id: str) -> object:
        self._ask()
        return len(self.output.get(container_id, ()))

    def exit(self, container_id: str, code: int, cause: Cause | None = None) -> None:
        """End the container by itself, or for that cause."""
        self.made[container_id] = replace(
            self.made[container_id],
            state=ContainerState.EXITED,
            is_suspended=False,
            exit_code=code,
            cause=cause or cause_of_exit(code),
            ended_at=self.clock.now(),
        )

    def spend(self, container_id: str, used: Consumption) -> None:
        """Set the total use in the record of an attempt."""
        self.made[container_id] = replace(self.made[container_id], consumption=used)

    def forget_the_past(self) -> None:
        """Forget recorded calls, which would grow in a long run."""
        self.launches = {name: launch for name, launch in self.launches.items() if name in self.made}
        self.saved = {}
        del self.started[:], self.told[:]

    def _end(self, container_id: str, how: str, code: int) -> None:
        self._ask()
        self.told.append((container_id, how))
        if self.made[container_id].state is ContainerState.RUNNING and self.dies and (self.obeys or how == "kill"):
            self.exit(container_id, code)

    def terminate(self, container_id: str) -> None:
        self._end(container_id, "terminate", 143)

    def signal(self, container_id: str, number: int) -> None:
        self._ask()
        self.told.append((container_id, f"signal {number}"))

    def suspend(self, container_id: str) -> None:
        self._set_suspended(container_id, "suspend", is_suspended=True)

    def unsuspend(self, container_id: str) -> None:
        self._set_suspended(container_id, "unsuspend", is_suspended=False)

    def _set_suspended(self, container_id: str, how: str, *, is_suspended: bool) -> None:
        self._ask()
        self.told.append((container_id, how))
        self.made[container_id] = replace(self.made[container_id], is_suspended=is_suspended)

    def kill(self, container_id: str) -> None:
        self._end(container_id, "kill", 137)

    def containers(self) -> tuple[ContainerRecord, ...]:
        self._ask()
        return tuple(self.made.values())

    def inspect(self, container_id: str) -> ContainerRecord | None:
        return self.made.get(container_id)

    def running(self) -> list[ContainerRecord]:
        return [record for record in self.made.values() if record.state is ContainerState.RUNNING]

    def foreign(self) -> tuple[ForeignContainer, ...]:
        return self.others

    def save_log(self, container_id: str, path: Path) -> None:
        self._ask()
        path.write_text(f"output of {container_id}")
        self.saved[container_id] = str(path)

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> FakeLog:
        self._ask()
        return FakeLog(self.output.get(container_id, [f"live output of {container_id}".encode()]))

    def consumption(self, container_id: str) -> Consumption | None:
        return self.consumed.get(container_id)

    def remove(self, container_id: str) -> None:
        self._ask()
        self.made.pop(container_id, None)

    def watch(self, wake: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


class FakeLog:
    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.lines)

    def close(self) -> None:
        self.lines = []


class FakeProbe:
    """Probe whose GPUs are idle and were read a moment ago."""

    def __init__(self, count: int, clock: Clock) -> None:
        self.is_closed = False
        self.clock = clock
        self.gpus = tuple(gpu(i) for i in range(count))
        self.changed: dict[str, dict[str, Any]] = {}
        self.status = ProbeStatus(ProbeCode.OK, "")
        self.refreshed = 0
        self.pcie: list[str | None] = []
        self.lag = False
        self.machine = ""
        self.forgiven: dict[str, datetime] = {}
        self.disks: dict[str, str] = {}

    def sick(self, index: int, **changes: Any) -> None:
        self.changed[uuid(index)] = changes

    def start(self) -> None:
        pass

    def latest(self) -> ProbeReading:
        now = self.clock.now()
        samples: dict[str, GpuSample] = {}
        for index, one in enumerate(self.gpus):
            samples[one.uuid] = replace(sample(index, at=now), **self.changed.get(one.uuid, {}))
        return ProbeReading(self.status, self.gpus, samples, now, machine=self.machine)

    def subscribe(self, on_reading: Callable[[ProbeReading], None]) -> None:
        pass

    def refresh(self) -> None:
        self.refreshed += 1

    def want_pcie(self, uuid: str | None) -> None:
        self.pcie.append(uuid)

    def watch_disks(self, paths: Mapping[str, str]) -> None:
        self.disks = dict(paths)

    def follow(self, jobs: Iterable[Job]) -> None:
        pass

    def forgive(self, resumed: Mapping[str, datetime]) -> None:
        self.forgiven = dict(resumed)

    def close(self) -> None:
        self.is_closed = True
