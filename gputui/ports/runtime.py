"""Runtime interface: create, start, signal, list and remove attempts, read their output, and the streams into them."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from gputui.domain import frames
from gputui.domain.errors import Cause, CauseCode, GputuiError, RuntimeFault

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
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
    from gputui.domain.frames import PendingInput
    from gputui.domain.job_spec import Interactive
    from gputui.domain.kept_data import EngineRecord
    from gputui.domain.telemetry import Consumption


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

    def real_path(self, path: str) -> str:
        """Return the path without links on the machine of its containers.

        Raises OSError where they cannot be followed, RuntimeUnavailableError while that machine is not reached.
        """

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
        """Return the resources that a running one has used; None if they cannot be read.

        It asks nobody but the kernel, and an engine elsewhere.
        """

    def remove(self, container_id: str) -> None:
        """Remove a container that is not running. Does nothing if it is gone."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when a container may have ended and when the runtime answers again."""

    def close(self) -> None:
        """Close connections and threads. Containers keep running."""


class EngineBook(Protocol):
    """Record of the engine that has a queue's containers. Calls raise OSError."""

    path: Path

    def read(self) -> EngineRecord | None:
        """Return the engine; None before the first container."""

    def write(self, record: EngineRecord) -> None: ...


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


class Channel(Protocol):
    """Standard streams of a command inside a job, or of the job itself."""

    on_input: Callable[[], None]
    """Called with each input."""

    @property
    def is_tty(self) -> bool:
        """Return whether they belong to a terminal; then all output is standard output."""

    @property
    def has_pending(self) -> bool:
        """Return whether `receive` returns at once, regardless of `fileno`."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is output."""

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Wait for output and return it in pieces, each with whether it is standard error; None at the end."""

    def input_fileno(self) -> int:
        """Return a descriptor that is writable when a small piece can be sent without waiting; -1: no input is read."""

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError when the command no longer reads."""

    def end_input(self) -> None:
        """End standard input; a terminal has no end."""

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""

    def exit_code(self) -> int | None:
        """Return the exit code after the end; None when it is unknown."""

    def close(self) -> None:
        """Detach; the command keeps running."""


def wait_for(channel: Channel, pending: PendingInput, others: Mapping[int, int]) -> dict[int, int]:
    """Wait until the channel has output or takes pending input, or another descriptor is ready; return the ready ones.

    `others` are events to wait for by descriptor, as of `select.poll`. Returns at once if there is nothing to wait for.
    """
    masks = {channel.fileno(): select.POLLIN, **others}
    out = channel.input_fileno()
    if pending.is_waiting:
        masks[out] = masks.get(out, 0) | select.POLLOUT
    poll = select.poll()
    for descriptor, mask in masks.items():
        if descriptor >= 0:
            poll.register(descriptor, mask)
    is_urgent = channel.has_pending or (pending.is_waiting and out < 0)
    return dict(poll.poll(0 if is_urgent else None))


_PIECE = 65536
_MOST = 32768
"""Maximum number of bytes of input in one frame."""


class FrameChannel:
    """Channel over a connected socket. Frames other than output are passed to `hear`."""

    def __init__(self, connection: socket.socket, *, is_tty: bool) -> None:
        self._connection = connection
        self._frames = frames.Frames()
        self._exit_code: int | None = None
        self._early: list[tuple[bool, bytes]] = []
        self.is_tty = is_tty
        self.on_input: Callable[[], None] = lambda: None
        self.hear: Callable[[bytes, bytes], None] = lambda kind, content: None

    @property
    def has_pending(self) -> bool:
        return bool(self._early)

    def fileno(self) -> int:
        return self._connection.fileno()

    def input_fileno(self) -> int:
        return self._connection.fileno()

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at the end. Raises GputuiError with the message of a refusal."""
        if self._early:
            early, self._early = self._early, []
            return early
        try:
            piece = self._connection.recv(_PIECE)
            return self._parts(piece) if piece else None
        except (ConnectionError, frames.MalformedFrameError):
            return None

    def feed(self, piece: bytes) -> None:
        """Take bytes that came with the greeting; raises as `receive`, and MalformedFrameError."""
        self._early += self._parts(piece)

    def _parts(self, piece: bytes) -> list[tuple[bool, bytes]]:
        parts = []
        for kind, content in self._frames.feed(piece):
            if kind in (frames.OUTPUT, frames.ERRORS):
                parts.append((kind == frames.ERRORS, content))
                continue
            if kind == frames.REFUSED:
                raise GputuiError(content.decode(errors="replace"))
            if kind == frames.UNREACHABLE:
                raise RuntimeFault(Cause(CauseCode.CONTAINER_LOST, content.decode(errors="replace")))
            if kind == frames.EXIT:
                self._exit_code = frames.exit_of(content)
            self.hear(kind, content)
        return parts

    def send(self, data: bytes) -> None:
        """Send input; empty input tells only that there will be some. Raises OSError."""
        self.on_input()
        for at in range(0, max(1, len(data)), _MOST):
            self._connection.sendall(frames.frame(frames.INPUT, data[at : at + _MOST]))

    def end_input(self) -> None:
        with suppress(OSError):
            self._connection.sendall(frames.frame(frames.END_OF_INPUT))

    def resize(self, rows: int, columns: int) -> None:
        with suppress(OSError):
            self._connection.sendall(frames.size_frame(rows, columns))

    def exit_code(self) -> int | None:
        return self._exit_code

    def close(self) -> None:
        self._connection.close()
