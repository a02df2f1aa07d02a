"""Attaching to interactive host jobs, through the socket of their wrapper and their log."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from gputui.domain import frames
from gputui.domain.cause import Cause, CauseCode
from gputui.domain.errors import RuntimeFault
from gputui.ports.frame_channel import FrameChannel, peer_uid
from gputui.runtime.process.attempt_folder import AttemptFolder, OpenFolder
from gputui.runtime.process.terminal import MARK, MARKS, SOCKET

_PIECE = 65536


class TerminalChannel(FrameChannel):
    """Channel of an interactive job with a terminal, from its wrapper."""

    def __init__(self, folder: OpenFolder) -> None:
        """Connect to the wrapper of an attempt. Raises OSError; RuntimeFault if another user answers."""
        super().__init__(_connected(folder), is_tty=True)
        self._folder = OpenFolder(folder.path, folder.open_directory())

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at the end. Raises GputuiError with the message of a refusal."""
        parts = super().receive()
        if parts is None and self.exit_code() is None:
            self.keep_exit_code(recorded_exit_code(self._folder))
        return parts

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._folder.close()


def recorded_exit_code(folder: AttemptFolder) -> int | None:
    """Return the exit code that the wrapper recorded; None before the end, or when the record cannot be read.

    The scheduler puts the end into the queue later: on a busy machine, much later.
    """
    with suppress(OSError):
        end = folder.records().end
        return None if end is None or end.refusal else end.code
    return None


def _connected(folder: AttemptFolder) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place = folder.open_directory()
    try:
        owner = os.fstat(place).st_uid
        connection.connect(f"/proc/self/fd/{place}/{SOCKET}")  # the path itself may be longer than sockets allow
        if peer_uid(connection) not in {0, owner}:
            raise RuntimeFault(Cause(CauseCode.RUNTIME_ERROR, "the socket of this job is another user's"))
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(place)
    return connection


class SplitLog:
    """Log of an interactive job without a terminal, whose marks separate standard error from standard output."""

    def __init__(self, log: int, marks: int | None) -> None:
        self._log = log
        self._marks = marks
        self._known: list[tuple[int, int]] = []
        self.position = 0

    def read(self, until: int | None = None) -> list[tuple[bool, bytes]]:
        """Return output from the position on, at most up to an offset; empty if there is none yet."""
        size = os.fstat(self._log).st_size
        with suppress(OSError):  # the oldest output may have been released from the disk
            if self.position < size:
                self.position = max(self.position, os.lseek(self._log, self.position, os.SEEK_DATA))
        end = min(size if until is None else min(size, until), self.position + _PIECE)
        if end <= self.position:
            return []
        piece = os.pread(self._log, end - self.position, self.position)
        parts = list(self._split(self.position, piece))
        self.position += len(piece)
        return parts

    def rest(self) -> Iterator[tuple[bool, bytes]]:
        """Yield the output from the position on, as far as it is available now."""
        while parts := self.read():
            yield from parts

    def _split(self, start: int, piece: bytes) -> Iterator[tuple[bool, bytes]]:
        while self._marks is not None and len(content := os.read(self._marks, MARK.size * 4096)) >= MARK.size:
            self._known += MARK.iter_unpack(content[: len(content) // MARK.size * MARK.size])
        here, end = start, start + len(piece)
        self._known = [mark for mark in self._known if mark[1] > start]
        for first, last in self._known:
            if first >= end:
                break
            if first > here:
                yield False, piece[here - start : first - start]
            here = max(here, first)
            yield True, piece[here - start : min(last, end) - start]
            here = min(last, end)
        if here < end:
            yield False, piece[here - start :]

    def close(self) -> None:
        """Close both files."""
        os.close(self._log)
        if self._marks is not None:
            os.close(self._marks)


def live_log(folder: AttemptFolder) -> SplitLog:
    """Open the log of an existing attempt. Raises OSError."""
    log = folder.log()
    try:
        return SplitLog(log, folder.open_file(MARKS))
    except FileNotFoundError:
        return SplitLog(log, None)


def kept_log(path: Path) -> SplitLog:
    """Open a saved log. Raises OSError."""
    log, marks = os.open(path, os.O_RDONLY | os.O_CLOEXEC), None
    with suppress(OSError):
        marks = os.open(marks_path(path), os.O_RDONLY | os.O_CLOEXEC)
    return SplitLog(log, marks)


def marks_path(path: Path) -> Path:
    """Return the path of the marks of a saved log."""
    return path.with_suffix(".errors")


def save_marks(folder: AttemptFolder, start: int, path: Path) -> None:
    """Save the marks of a log that was saved from an offset on; nothing for a log without marks. Raises OSError."""
    try:
        source = folder.open_file(MARKS)
    except FileNotFoundError:
        return
    with open(source, "rb") as file:  # noqa: PTH123 - a descriptor
        content = file.read()
    whole = content[: len(content) // MARK.size * MARK.size]
    moved = [(max(0, first - start), last - start) for first, last in MARK.iter_unpack(whole) if last > start]
    if moved:
        descriptor = os.open(
            marks_path(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with open(descriptor, "wb") as file:  # noqa: PTH123
            file.write(b"".join(MARK.pack(*mark) for mark in moved))


class PipesChannel:
    """Channel of an interactive job without a terminal: its log so far, then output from its wrapper.

    A broken connection, as of a reader that is too slow, is reopened; without a wrapper the log is read to its end.
    """

    is_tty = False

    def __init__(self, folder: OpenFolder) -> None:
        self._folder = folder = OpenFolder(folder.path, folder.open_directory())
        self._log = live_log(folder)
        self._until: int | None = None
        """Offset in the log from which output comes from the wrapper; None: there is no wrapper."""
        self._wrapper: FrameChannel | None = None
        self._early: list[tuple[bool, bytes]] = []
        """Output that arrived with the wrapper's greeting; it follows the log so far."""
        self._exit_code: int | None = None
        self._has_sent = False
        """Whether input was sent. The wrapper drops readers that are too slow, but none that has sent input."""
        self.on_input: Callable[[], None] = lambda: None
        self._connect()

    def _connect(self) -> None:
        self._until, self._early = None, []
        try:
            self._wrapper = wrapper = FrameChannel(_connected(self._folder), is_tty=False)
        except OSError:
            self._wrapper = None
            return
        wrapper.hear = self._hear
        while not self._is_greeted():
            parts = wrapper.receive()
            if parts is None:
                break
            self._early += parts
        if not self._is_greeted():
            wrapper.close()
            self._wrapper = None

    def _is_greeted(self) -> bool:
        return self._until is not None

    def _hear(self, kind: bytes, content: bytes) -> None:
        if kind == frames.READY:
            self._until = int(content)

    @property
    def has_pending(self) -> bool:
        """Return whether output in the log must be read first."""
        behind = self._until is not None and self._log.position < self._until
        return self._wrapper is None or behind or bool(self._early)

    def fileno(self) -> int:
        """Return the descriptor of the wrapper's socket; -1 without one."""
        return self._wrapper.fileno() if self._wrapper else -1

    def input_fileno(self) -> int:
        """Return the descriptor of the wrapper's socket; -1 without one."""
        return self.fileno()

    def receive(self) -> list[tuple[bool, bytes]] | None:
        """Return output; None at the end of the job."""
        if self._wrapper is None or (self._until is not None and self._log.position < self._until):
            if kept := self._log.read(self._until):
                return kept
            if self._wrapper is not None:
                # this output was released from the disk, or could not be written to it
                self._log.position = self._until or self._log.position
                return []
            self._exit_code = recorded_exit_code(self._folder)
            return None
        assert self._wrapper is not None
        early, self._early = self._early, []
        parts: list[tuple[bool, bytes]] | None = early or self._wrapper.receive()
        if parts is not None:
            self._log.position += sum(len(part) for _, part in parts)
            return parts
        self._exit_code = self._wrapper.exit_code()
        return self._again() if self._exit_code is None else None

    def _again(self) -> list[tuple[bool, bytes]]:
        if self._wrapper is not None:
            self._wrapper.close()
        self._connect()
        return []

    def send(self, data: bytes) -> None:
        """Send input. Raises OSError."""
        self.on_input()
        try:
            self._connected_wrapper().send(data)
        except OSError:
            if self._has_sent:  # some of it may have arrived
                raise
            self._again()
            self._connected_wrapper().send(data)
        self._has_sent = True

    def _connected_wrapper(self) -> FrameChannel:
        if self._wrapper is None:
            raise BrokenPipeError
        return self._wrapper

    def end_input(self) -> None:
        """End the input."""
        if self._wrapper is not None and not self._has_sent:
            with suppress(OSError):
                self.send(b"")
        if self._wrapper is not None:
            self._wrapper.end_input()

    def resize(self, rows: int, columns: int) -> None:
        """Do nothing: there is no terminal."""

    def exit_code(self) -> int | None:
        return self._exit_code

    def close(self) -> None:
        """Close the connection and the log."""
        if self._wrapper is not None:
            self._wrapper.close()
        self._log.close()
        self._folder.close()
