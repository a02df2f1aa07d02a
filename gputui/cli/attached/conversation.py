"""Conversation of this process's terminal or streams with a job, until one of them ends."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import stat
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum, auto

from gputui.cli.attached.detach_keys import DetachScanner
from gputui.domain.pending_input import PendingInput
from gputui.ports import Channel

_PIECE = 4096
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SHOWING = frozenset({signal.SIGWINCH, signal.SIGCONT})
"""Signals that say how and when output can be shown, and ask for nothing."""
SIGNALS = (*_ENDING, *SHOWING)


class Ending(Enum):
    """Reasons for which a conversation ended."""

    ENDED = auto()
    """The command has ended."""
    DETACHED = auto()
    """The user pressed the detach keys."""
    HUNG_UP = auto()
    """The terminal is gone."""
    LEFT = auto()
    """A signal handler ended it."""


class Leaving(Exception):  # noqa: N818 - a request, no error
    """Raised by a signal handler to leave the job as it is."""


class _TerminalGoneError(OSError):
    """Raised by a write to a terminal that was closed: its SIGHUP may come later."""


class Signals:
    """Signals as bytes of a pipe, so that a loop can wait for them and for streams at once."""

    def __init__(self, numbers: tuple[signal.Signals, ...]) -> None:
        self._numbers = numbers

    def __enter__(self) -> Signals:
        self._heard, self._told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.signal(number, lambda *_: None) for number in self._numbers}
        self._wakeup = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._heard)
        os.close(self._told)

    def fileno(self) -> int:
        """Return the descriptor that is readable after a signal."""
        return self._heard

    def take(self) -> list[int]:
        """Return the numbers of the signals that came since the last call."""
        with suppress(BlockingIOError):
            return list(os.read(self._heard, 64))
        return []


def size() -> tuple[int, int]:
    """Return rows and columns of this process's terminal."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            columns, rows = os.get_terminal_size(stream.fileno())
            return rows, columns
    columns, rows = shutil.get_terminal_size()
    return rows, columns


@contextmanager
def raw_terminal(descriptor: int) -> Iterator[None]:
    """Let every key go to the job for the time of a block."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        with suppress(termios.error, OSError):  # it may be gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Conversation:
    """Streams between this process and a channel."""

    def __init__(
        self,
        channel: Channel,
        signals: Signals,
        *,
        has_input: bool,
        detach_keys: bytes = b"",
        on_signal: Callable[[int], None] = lambda number: None,
    ) -> None:
        self._channel = channel
        self._signals = signals
        self._input = 0 if has_input else -1
        self._scanner = DetachScanner(detach_keys if channel.is_tty else b"")
        self._on_signal = on_signal
        self._pending_input = PendingInput(channel.send, channel.end_input)
        self._is_raw = channel.is_tty and has_input and os.isatty(0)

    def run(self, *, redraw: bool = False) -> Ending:
        """Pass on both ways until one side ends; `redraw` makes a program on the terminal draw itself again."""
        with raw_terminal(0) if self._is_raw else nullcontext():
            if self._channel.is_tty:
                rows, columns = size()
                if redraw:
                    self._channel.resize(rows + 1, columns)
                self._channel.resize(rows, columns)
            try:
                return self._converse()
            except Leaving:
                return Ending.LEFT
            except _TerminalGoneError:
                return Ending.HUNG_UP

    def _converse(self) -> Ending:
        while True:
            ready = self._wait()
            outcome = self._obey_signals() if self._signals.fileno() in ready else None
            if outcome is not None:
                return outcome
            if self._channel.has_pending or self._has_output(ready):
                parts = self._channel.receive()
                if parts is None:
                    return Ending.ENDED
                for is_error, piece in parts:
                    write_all(2 if is_error else 1, piece)
            if self._pending_input.is_waiting:
                self._send(ready)
            if self._input in ready and (outcome := self._type()) is not None:
                return outcome

    def _wait(self) -> dict[int, int]:
        """Wait until something can be read or sent; return what, by descriptor."""
        masks = {self._signals.fileno(): select.POLLIN, self._channel.fileno(): select.POLLIN}
        if not self._pending_input.is_full:
            masks[self._input] = select.POLLIN
        if self._pending_input.is_waiting:
            out = self._channel.input_fileno()
            masks[out] = masks.get(out, 0) | select.POLLOUT
        poll = select.poll()
        for descriptor, mask in masks.items():
            if descriptor >= 0:
                poll.register(descriptor, mask)
        is_urgent = self._channel.has_pending or (self._pending_input.is_waiting and self._channel.input_fileno() < 0)
        return dict(poll.poll(0 if is_urgent else None))

    def _has_output(self, ready: Mapping[int, int]) -> bool:
        return bool(ready.get(self._channel.fileno(), 0) & ~select.POLLOUT)

    def _send(self, ready: Mapping[int, int]) -> None:
        """Send a piece of the input if the command takes it."""
        out = self._channel.input_fileno()
        if out >= 0 and not ready.get(out, 0) & ~select.POLLIN:
            return
        try:
            self._pending_input.send_piece()
        except OSError:  # the command reads no more
            self._input = -1

    def _obey_signals(self) -> Ending | None:
        for number in self._signals.take():
            if number in SHOWING:
                self._show_anew()
            elif number == signal.SIGHUP:
                return Ending.HUNG_UP
            else:
                self._on_signal(number)
        return None

    def _show_anew(self) -> None:
        """Tell the job the terminal's size; a shell may have changed its modes while this process was stopped."""
        if self._is_raw:
            with suppress(termios.error):
                tty.setraw(0, termios.TCSANOW)
        self._channel.resize(*size())

    def _type(self) -> Ending | None:
        """Pass on input."""
        try:
            typed = os.read(self._input, _PIECE)
        except OSError:  # EIO: the terminal is gone
            return Ending.HUNG_UP
        if not typed:
            self._input = -1
            if self._channel.is_tty:
                return Ending.HUNG_UP
            self._pending_input.put_end()
            return None
        passed, is_detached = self._scanner.feed(typed)
        self._pending_input.put(passed)
        if not is_detached:
            return None
        while self._pending_input.is_waiting and select.select([], [self._channel.input_fileno()], [], 0)[1]:
            self._send({self._channel.input_fileno(): select.POLLOUT})
        return Ending.DETACHED


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it. Raises BrokenPipeError when nobody reads it."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            select.select([], [descriptor], [])
        except OSError as error:
            if error.errno == errno.EIO and stat.S_ISCHR(os.fstat(descriptor).st_mode):
                raise _TerminalGoneError from error
            raise
