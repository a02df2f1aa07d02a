"""Runtime interface: create, start, signal, list and remove attempts, and read their output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from threading import Event

    from gputui.domain.container import (
        ContainerRecord,
        Created,
        ExecRequest,
        ForeignContainer,
        Launch,
        ProcessRow,
        RuntimeStatus,
    )
    from gputui.domain.job_spec import Interactive
    from gputui.domain.telemetry import Consumption
    from gputui.ports.channel import Channel


Permit: TypeAlias = "Callable[[int | None], None]"
"""Raises GputuiError if the caller may not enter an attempt that was created for the submitter of this uid.

None: the scheduler recorded none. It gets the scheduler's own record of the attempt, because others may write the
queue.
"""


class LogStream(Protocol):
    """Output of an attempt, line by line."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield lines as the job wrote them, without line ends; control sequences are included."""

    def close(self) -> None:
        """End the iteration, from any thread."""


@runtime_checkable
class LiveLogStream(LogStream, Protocol):
    """Output of which the last line can be seen before it ends: a progress bar, or a question."""

    def watch(self, tell: Callable[[bytes], None]) -> None:
        """Have `tell` called with the line so far, as often as it grew while nothing else was there to read.

        Call it before the iteration, on whose thread `tell` is called. The line is yielded when it ends, as any other.
        """


class StampedLogStream(LogStream, Protocol):
    """Output whose lines, if `is_stamped`, begin with their time in RFC 3339 and UTC, and a blank."""

    is_stamped: bool


class Runtime(Protocol):
    """Runtime in which attempts run. Calls raise RuntimeUnavailableError if it does not answer, else RuntimeFault."""

    name: str

    def status(self) -> RuntimeStatus:
        """Return the status as of the last call to the runtime. Never blocks."""

    def check(self) -> RuntimeStatus:
        """Check the status now, reconnecting if necessary. Does not raise: the result contains problems."""

    def has_image(self, image: str) -> bool:
        """Return whether the image is present; True for runtimes without images."""

    def pull(self, image: str, progress: Callable[[str], None], cancelled: Event) -> None:
        """Pull the image, reporting progress in words.

        Raises RuntimeFault once `cancelled` is set, and after the time without progress that the settings allow.
        """

    def root_directory(self) -> str:
        """Return a path to the root directory below which it finds mounts; raises RuntimeFault if that is unknown."""

    def create(self, launch: Launch) -> Created:
        """Create the container without starting it. An existing one of that name is returned as adopted.

        One that was never started and has other GPUs than requested is replaced instead.
        """

    def start(self, container_id: str) -> None:
        """Start a container. Does nothing if it runs or has ended."""

    def terminate(self, container_id: str) -> None:
        """Ask it to end, with the image's stop signal, else SIGTERM. Does nothing if it has ended."""

    def signal(self, container_id: str, number: int) -> None:
        """Send a signal to its processes. Does nothing if it has ended."""

    def suspend(self, container_id: str) -> None:
        """Stop its processes until `unsuspend`; terminate and kill continue them too. Does nothing if it has ended."""

    def unsuspend(self, container_id: str) -> None:
        """Continue its processes. Does nothing if they run or have ended."""

    def kill(self, container_id: str) -> None:
        """Send SIGKILL. Does nothing if it has ended."""

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return all containers of this store, in every state.

        One that was created counts as CREATED only if it is proven that its command never ran; else it has ended with
        END_UNKNOWN. An end whose exit code the engine does not know is END_UNKNOWN too.
        """

    def inspect(self, container_id: str) -> ContainerRecord | None:
        """Return one container; None if there is none with that id."""

    def foreign(self) -> tuple[ForeignContainer, ...]:
        """Return running foreign containers that requested GPUs."""

    def rivals(self, container_id: str) -> tuple[ContainerRecord, ...]:
        """Return other stores' containers, running or just created, that share a GPU with this one; not cached."""

    def save_log(self, container_id: str, path: Path) -> None:
        """Write all of its output to the file, atomically."""

    def logs(
        self, container_id: str, *, tail: int | None = None, follow: bool = False, stamped: bool = False
    ) -> LogStream:
        """Return its output from the last `tail` lines on; with `follow`, until it ends.

        With `stamped` the result is a StampedLogStream if the runtime records times.
        """

    def activity(self, container_id: str) -> object:
        """Return a token that changes with output, and with input if the runtime notices it."""

    def consumption(self, container_id: str) -> Consumption | None:
        """Return the resources that a running one has used; None if they cannot be read. Does not ask the engine."""

    def remove(self, container_id: str) -> None:
        """Remove a container that is not running. Does nothing if it is gone."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when a container may have ended and when the runtime answers again."""

    def close(self) -> None:
        """Close connections and threads. Containers keep running."""


class JobExec(Protocol):
    """Commands and processes in running attempts, and streams of interactive ones. Calls raise RuntimeFault."""

    def processes(self, container_id: str) -> tuple[ProcessRow, ...]:
        """Return the present processes of the attempt."""

    def attach(self, name: str, interactive: Interactive, permit: Permit, detach_keys: str = "") -> Channel:
        """Attach to the streams of an interactive attempt, by the name of its launch; also before it starts."""

    def execute(self, name: str, request: ExecRequest, permit: Permit) -> Channel:
        """Run a command in the attempt, by the name of its launch."""

    def close(self) -> None:
        """Close connections."""
