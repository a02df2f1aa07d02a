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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum, auto

import click
from msgspec import Struct, field

from gputui.cli import terminal
from gputui.cli.job_ids import Named, OneJobId, resolve_one
from gputui.cli.session import Session, pass_session
from gputui.domain.container import ExecRequest
from gputui.domain.errors import InputError
from gputui.domain.frames import PendingInput
from gputui.domain.text import quoted
from gputui.ports import Channel
from gputui.ports.runtime import wait_for

DEFAULT = "ctrl-p,ctrl-q"
_CONTROL = {chr(ord("a") + n): n + 1 for n in range(26)} | {"@": 0, "[": 27, "\\": 28, "]": 29, "^": 30, "_": 31}


def parse(text: str, where: str = "--detach-keys") -> bytes:
    """Return the bytes that the keys send; empty: no keys detach. Raises InputError."""
    found = []
    for word in text.split(",") if text else ():
        key = word.removeprefix("ctrl-")
        if len(word) == 1 and word.isascii():
            found.append(ord(word))
        elif key != word and key.lower() in _CONTROL:
            found.append(_CONTROL[key.lower()])
        else:
            hint = "write single characters or ctrl-a to ctrl-z, ctrl-@, ctrl-[, ctrl-\\, ctrl-], ctrl-^, ctrl-_"
            raise InputError(f"{quoted(word)} is not a key", where=where, hint=hint)
    return bytes(found)


class DetachScanner(Struct, eq=False):
    """Finds the detach keys in typed input; holds back keys that may begin the sequence until the next one decides."""

    _keys: bytes
    _held: bytes = b""

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return the bytes to pass on, and whether the detach keys were found; input after them is dropped."""
        if not self._keys:
            return typed, False
        passed = bytearray()
        for byte in typed:
            self._held += bytes((byte,))
            if self._held == self._keys:
                self._held = b""
                return bytes(passed), True
            while self._held and not self._keys.startswith(self._held):
                passed.append(self._held[0])
                self._held = self._held[1:]
        return bytes(passed), False


_PIECE = 4096
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SHOWING = frozenset({signal.SIGWINCH, signal.SIGCONT})
"""Signals about the display of output; they ask for nothing else."""
SIGNALS = (*_ENDING, *SHOWING)


class Ending(Enum):
    ENDED = auto()
    """The command has ended."""
    DETACHED = auto()
    """The user pressed the detach keys."""
    HUNG_UP = auto()
    """The terminal is gone."""
    LEFT = auto()
    """A signal handler ended it."""


class Leaving(Exception):  # noqa: N818 - a request, no error
    """Raised by a signal handler to leave without affecting the job."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        """The code that shells report for a program ended by that signal."""


class _TerminalGoneError(OSError):
    """Raised by a write to a closed terminal, whose SIGHUP may arrive later."""


class Signals:
    """Delivers signals as bytes of a pipe, so that a loop can wait for signals and streams at once."""

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
        return self._heard

    def take(self) -> list[int]:
        with suppress(BlockingIOError):
            return list(os.read(self._heard, 64))
        return []


def terminal_size() -> tuple[int, int]:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            columns, rows = os.get_terminal_size(stream.fileno())
            return rows, columns
    columns, rows = shutil.get_terminal_size()
    return rows, columns


@contextmanager
def raw_terminal(descriptor: int) -> Iterator[None]:
    """Put the terminal in raw mode for the duration of a block, so that the job gets every key."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSANOW)
    try:
        yield
    finally:
        with suppress(termios.error, OSError):  # it may be gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class Output(Struct, eq=False):
    """Output of one attempt on this process's streams; what a later attachment repeats is shown once."""

    _shown: Counter[bool] = field(default_factory=Counter)
    _repeated: Counter[bool] = field(default_factory=Counter)
    """Bytes of standard output and error that come again."""

    def repeat(self) -> None:
        self._repeated = self._shown.copy()

    def show(self, is_error: bool, piece: bytes) -> None:
        """Show output as far as it was not shown before. Raises BrokenPipeError when nobody reads it."""
        known = min(self._repeated[is_error], len(piece))
        self._repeated[is_error] -= known
        self._shown[is_error] += len(piece) - known
        write_all(2 if is_error else 1, piece[known:])


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
        show: Callable[[bool, bytes], None] | None = None,
    ) -> None:
        self._channel = channel
        self._signals = signals
        self._input = 0 if has_input else -1
        self._scanner = DetachScanner(detach_keys if channel.is_tty else b"")
        self._on_signal = on_signal
        self._show = show or Output().show
        self._pending_input = PendingInput(channel.send, channel.end_input)
        self._is_raw = channel.is_tty and has_input and os.isatty(0)
        self.exit_code = 128 + signal.SIGHUP
        """Exit code of this command if it left, or the terminal is gone."""

    def run(self, *, redraw: bool = False) -> Ending:
        with raw_terminal(0) if self._is_raw else nullcontext():
            if self._channel.is_tty:
                rows, columns = terminal_size()
                if redraw:
                    self._channel.resize(rows + 1, columns)
                self._channel.resize(rows, columns)
            try:
                while True:
                    ready = self._wait()
                    outcome = self._obey_signals() if self._signals.fileno() in ready else None
                    if outcome is not None:
                        return outcome
                    if self._channel.has_pending or ready.get(self._channel.fileno(), 0) & ~select.POLLOUT:
                        parts = self._channel.receive()
                        if parts is None:
                            return Ending.ENDED
                        for is_error, piece in parts:
                            self._show(is_error, piece)
                    if self._pending_input.is_waiting:
                        self._send(ready)
                    if self._input in ready and (outcome := self._type()) is not None:
                        return outcome
            except Leaving as leaving:
                self.exit_code = leaving.exit_code
                return Ending.LEFT
            except _TerminalGoneError:
                return Ending.HUNG_UP

    def _wait(self) -> dict[int, int]:
        """Wait until a descriptor is ready for reading or sending; return the ready ones."""
        others = {self._signals.fileno(): select.POLLIN}
        if not self._pending_input.is_full:
            others[self._input] = select.POLLIN
        return wait_for(self._channel, self._pending_input, others)

    def _send(self, ready: Mapping[int, int]) -> None:
        out = self._channel.input_fileno()
        if out >= 0 and not ready.get(out, 0) & ~select.POLLIN:
            return
        try:
            self._pending_input.send_piece()
        except OSError:  # the command no longer reads
            self._input = -1

    def _obey_signals(self) -> Ending | None:
        for number in self._signals.take():
            if number in SHOWING:
                if self._is_raw:
                    with suppress(termios.error):
                        tty.setraw(0, termios.TCSANOW)
                self._channel.resize(*terminal_size())
            elif number == signal.SIGHUP:
                return Ending.HUNG_UP
            else:
                self._on_signal(number)
        return None

    def _type(self) -> Ending | None:
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
    """Write all of the data. Raises BrokenPipeError when no process reads it."""
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


@click.command(
    "exec",
    short_help="run a command in a running job",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.option("-i", "--interactive", "stdin", is_flag=True, help="Pass on standard input.")
@click.option("-t", "--tty", "is_tty", is_flag=True, help="Give the command a terminal.")
@click.option("--detach-keys", "keys", metavar="KEYS", default=DEFAULT, help="Keys that leave the command running.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@pass_session
def execute(
    session: Session, stdin: bool, is_tty: bool, keys: str, ids: tuple[Named, ...], words: tuple[str, ...]
) -> int:
    """Run a command in a running job, and return its exit code.

    In a container it runs as `docker exec` would. In a host job it gets the job's environment, working directory,
    limits and user, and is ended with the job. Only the submitter of a job and operators may; the audit log has it.
    """
    check_terminal(stdin=stdin, is_tty=is_tty)
    sequence = parse(keys)
    rows, columns = terminal_size()
    term = terminal.environ().get("TERM", "xterm")
    request = ExecRequest(words, stdin, is_tty, rows, columns, term, keys if is_tty else "")
    with session.backend() as backend:
        job_id = resolve_one(backend.queue, ids[0])
        with Signals(SIGNALS) as signals:
            channel = backend.enter(job_id, request)
            try:
                talk = Conversation(channel, signals, has_input=stdin, detach_keys=sequence, on_signal=_leave)
                outcome = talk.run()
                code = channel.exit_code() if outcome is Ending.ENDED else None
            finally:
                channel.close()
    if outcome in {Ending.HUNG_UP, Ending.LEFT}:
        return talk.exit_code
    if outcome is Ending.DETACHED:
        return 0
    if code is None:
        terminal.tell("the connection ended, and the command's exit code is not known")
        return 1
    return code


def check_terminal(*, stdin: bool, is_tty: bool) -> None:
    if stdin and is_tty and not terminal.is_tty(terminal.IN):
        raise InputError("standard input is not a terminal", where="-t", hint="leave out -t")


def _leave(number: int) -> None:
    raise Leaving(number)
