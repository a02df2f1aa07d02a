"""Interfaces to processes and containers that are not gputui's. Calls block, and raise GputuiError.

Adapters act with the rights of this very process: the person at the keyboard, never the scheduler.
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
        """Return the processes that live, by pid, and with `with_parents` their parents."""
        ...

    def environment(self, target: ProcessTarget) -> tuple[str, ...]:
        """Return `NAME=value` of a process; refused for the processes of others, except to root."""
        ...

    def signal(self, target: ProcessTarget, number: int, patience: float, before: Callable[[], None]) -> SignalOutcome:
        """Send a signal to exactly that process and watch it for `patience` seconds.

        `before` is called when nothing but sending is left to do.
        """
        ...


class ForeignContainers(Protocol):
    """Containers of others on this machine's engine."""

    def inspect(self, name: str) -> ContainerDetail:
        """Return the container with that name or id; raises NotFoundError."""
        ...

    def stop(self, container_id: str, patience: int) -> ContainerDetail:
        """Stop the container as `docker stop` does, with SIGKILL after `patience` seconds; return it as it is then."""
        ...

    def logs(self, container_id: str, *, tail: int | None, follow: bool, stamped: bool) -> LogStream:
        """Return the container's output."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
