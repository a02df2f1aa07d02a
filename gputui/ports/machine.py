"""Interfaces to machines: their clock, GPUs, and processes and containers that are no jobs.

Adapters to processes and containers act with the rights of this process, that is of its user, never with those of the
scheduler; their calls block, and raise GputuiError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime, timedelta

    from gputui.domain.container import ProcessRow
    from gputui.domain.gpu import ProbeReading
    from gputui.domain.gpu_processes import ContainerDetail, ProcessTarget, SignalOutcome
    from gputui.domain.job import BootTime, Job
    from gputui.ports.runtime import LogStream


class GpuProbe(Protocol):
    """Source of GPU readings."""

    def start(self) -> None:
        """Start reading in the background. Never blocks."""

    def latest(self) -> ProbeReading:
        """Return the latest reading. Never blocks."""

    def subscribe(self, on_reading: Callable[[ProbeReading], None]) -> None:
        """Call `on_reading` with each new reading, from any thread."""

    def refresh(self) -> None:
        """Request a complete sweep, process lists included, as soon as possible. Never blocks."""

    def want_pcie(self, uuid: str | None) -> None:
        """Add PCIe and NVLink throughput and shares of processes to readings of this GPU only; None: of no GPU.

        ALL_SHARES: shares of processes of all GPUs, and no throughput. Throughput costs 40 ms a sweep. Never blocks.
        """

    def watch_disks(self, paths: Mapping[str, str]) -> None:
        """Read the file systems of these paths, by role (`state`, `docker`), with the host. Never blocks."""

    def forgive(self, resumed: Mapping[str, datetime]) -> None:
        """Ignore fatal Xids that these GPUs reported before the given times. Never blocks."""

    def follow(self, jobs: Iterable[Job]) -> None:
        """Set the jobs that hold GPUs now. Shares of processes are read on GPUs that several hold."""

    def close(self) -> None:
        """Stop reading. Never waits for a hung driver."""


class NodeProbes(Protocol):
    """Source of readings of many nodes, each read by a probe of its own. No method but `close` blocks."""

    @property
    def interval(self) -> timedelta:
        """Time between two readings of a node."""

    def follow(self, nodes: Iterable[str]) -> None:
        """Read these nodes, and no others."""

    def readings(self) -> Mapping[str, ProbeReading]:
        """Return the latest reading of each node that is followed, or why there is none."""

    def want_pcie(self, node: str | None, uuid: str | None) -> None:
        """Read details of this GPU of a node, as `GpuProbe.want_pcie` does; None: of no GPU."""

    def close(self) -> None:
        """End all probes."""


class Clock(Protocol):
    """Source of the current time."""

    def now(self) -> datetime:
        """Return the current time, aware, in UTC."""


class SteadyClock(Clock, Protocol):
    """Clock that also measures elapsed time independently of changes to the wall clock."""

    def boot_time(self) -> BootTime:
        """Return the time since boot, the same for all processes of the machine; it stops during suspend."""


class HostProcesses(Protocol):
    """Processes of this machine."""

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> Mapping[int, ProcessRow]:
        """Return the live processes by pid, and with `with_parents` their parents."""

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        """Return `NAME=value` of a process; refused for other users' processes, except to root."""

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        """Send a signal to exactly that process and watch it for `patience` seconds.

        `before` is called right before the signal is sent.
        """


class ForeignContainers(Protocol):
    """Foreign containers on this machine's engine."""

    def inspect(self, name: str) -> ContainerDetail:
        """Return the container with that name or id; raises NotFoundError."""

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        """Stop the container as `docker stop` does, with SIGKILL after `patience` seconds; return its final state."""

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> LogStream:
        """Return the container's output."""

    def close(self) -> None:
        """Close connections."""
