"""Interfaces to foreign processes and containers. Calls block, and raise GputuiError.

Adapters act with the rights of this process, that is of its user, never with those of the scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gputui.domain.container import ProcessRow
    from gputui.domain.gpu_processes import ContainerDetail, ProcessTarget, SignalOutcome
    from gputui.ports.runtime import LogStream


class HostProcesses(Protocol):
    """Processes of this machine."""

    def rows(self, pids: tuple[int, ...], *, with_parents: bool = False) -> Mapping[int, ProcessRow]:
        """Return the live processes by pid, and with `with_parents` their parents."""
        ...

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        """Return `NAME=value` of a process; refused for other users' processes, except to root."""
        ...

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        """Send a signal to exactly that process and watch it for `patience` seconds.

        `before` is called right before the signal is sent.
        """
        ...


class ForeignContainers(Protocol):
    """Foreign containers on this machine's engine."""

    def inspect(self, name: str) -> ContainerDetail:
        """Return the container with that name or id; raises NotFoundError."""
        ...

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        """Stop the container as `docker stop` does, with SIGKILL after `patience` seconds; return its final state."""
        ...

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> LogStream:
        """Return the container's output."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
