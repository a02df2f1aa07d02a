"""Runtime interface: create, start, signal, list and remove attempts, and read their output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from threading import Event

    from gputui.domain.container import (
        Consumption,
        ContainerRecord,
        Created,
        ExecRequest,
        ForeignContainer,
        Launch,
        ProcessRow,
        RuntimeStatus,
    )
    from gputui.domain.job import Interactive
    from gputui.ports.channel import Channel


Permit: TypeAlias = "Callable[[int | None], None]"
"""Raises GputuiError where the caller may not enter an attempt that was created for the submitter of this uid.

None: the scheduler recorded none. It is told what the scheduler recorded with the attempt itself, because others may
write the queue.
"""


class LogStream(Protocol):
    """Output of an attempt, line by line."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines as the job wrote them, without line ends; control sequences are included."""
        ...

    def close(self) -> None:
        """End the iteration, from any thread."""
        ...


class StampedLogStream(LogStream, Protocol):
    """Output whose lines, if `is_stamped`, begin with the time they were written: RFC 3339 in UTC, and a blank."""

    is_stamped: bool


class Runtime(Protocol):
    """Runtime in which attempts run. Calls raise RuntimeUnavailableError when it does not answer, else RuntimeFault."""

    name: str

    def status(self) -> RuntimeStatus:
        """Return the status as of the last call to the runtime. Never blocks."""
        ...

    def check(self) -> RuntimeStatus:
        """Ask for the status now, reconnecting if necessary. Does not raise: problems are in the answer."""
        ...

    def has_image(self, image: str) -> bool:
        """Return whether the image is present; True for runtimes without images."""
        ...

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None:
        """Pull the image, reporting progress in words.

        Raises RuntimeFault once `cancelled` is set, and after the time without progress that the settings allow.
        """
        ...

    def create(self, launch: Launch) -> Created:
        """Create the container without starting it. An existing one of that name is returned as adopted.

        One that was never started and has other GPUs than requested is replaced, not adopted.
        """
        ...

    def start(self, container_id: str) -> None:
        """Start a container. Does nothing if it runs or has ended."""
        ...

    def terminate(self, container_id: str) -> None:
        """Ask it to end, by the image's stop signal, else SIGTERM. Does nothing if it has ended."""
        ...

    def signal(self, container_id: str, number: int) -> None:
        """Send a signal to its processes. Does nothing if it has ended."""
        ...

    def suspend(self, container_id: str) -> None:
        """Stop its processes until `unsuspend`; terminate and kill wake them too. Does nothing if it has ended."""
        ...

    def unsuspend(self, container_id: str) -> None:
        """Continue its processes. Does nothing if they run or have ended."""
        ...

    def kill(self, container_id: str) -> None:
        """Send SIGKILL. Does nothing if it has ended."""
        ...

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return all containers of this store, in every state."""
        ...

    def inspect(self, container_id: str) -> ContainerRecord | None:
        """Return one container; None when there is none with that id."""
        ...

    def foreign(self) -> tuple[ForeignContainer, ...]:
        """Return running containers that are not gputui's and requested GPUs."""
        ...

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        """Return other stores' containers, running or just created, that share a GPU with this one; asked now."""
        ...

    def save_log(self, container_id: str, path: Path) -> None:
        """Write all of its output to the file, completely or not at all."""
        ...

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> LogStream:
        """Return its output from the last `tail` lines on; with `follow`, until it ends.

        With `stamped` the result is a StampedLogStream if the runtime records times.
        """
        ...

    def activity(self, container_id: str) -> object:
        """Return a token that becomes another with output, and with input where the runtime notices it."""
        ...

    def consumption(self, container_id: str) -> Consumption | None:
        """Return what a running one has used of the machine; None where it cannot be read. Asks no engine."""
        ...

    def remove(self, container_id: str) -> None:
        """Remove a container that does not run. Does nothing if it is gone."""
        ...

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when a container may have ended and when the runtime is back."""
        ...

    def close(self) -> None:
        """Close connections and threads. Containers run on."""
        ...


class JobExec(Protocol):
    """Commands and processes in running attempts, and streams of interactive ones. Calls raise RuntimeFault."""

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """Return the processes that run in the attempt now."""
        ...

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        """Attach to the streams of an interactive attempt, by the name of its launch; also before it starts."""
        ...

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        """Run a command in the attempt, by the name of its launch."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...
