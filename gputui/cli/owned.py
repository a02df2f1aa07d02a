"""Commands that the process that owns the queue runs for callers elsewhere: the very commands of `gputui`.

A thin client (`gputui.thin`) sends its words, and what of its surroundings commands look at; it gets what they say. The
owner opens no file for it: what needs one, and what would give another result here, the client runs itself.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct, field

from gputui import bootstrap, thin
from gputui.cli import terminal
from gputui.cli.session import Session
from gputui.config.settings_file import settings_variables
from gputui.domain.access import Caller
from gputui.domain.errors import AccessError, ParseLocallyError, StoreBusyError
from gputui.domain.job_spec import Inherited
from gputui.domain.text import user_name
from gputui.ports.backend import ERR, OUT, UNPRINTED, CommandLine, CommandResult, DirectBackend
from gputui.request.caller import LIMITS, elsewhere
from gputui.request.submitter import Submitter

if TYPE_CHECKING:
    from gputui.config import Options

MOST_SAID = 16 * 1024**2
"""Bytes that a command may say; one that says more is run by its client, a part at a time."""
FORECAST_WITHIN = 10.0
"""Seconds that a command waits for the forecasts of others."""
_BUFFER = 8192


class _CapturedStream(io.RawIOBase):
    """End of a stream, which keeps what is written, in order with the other stream."""

    def __init__(self, kind: int, said: list[tuple[int, bytearray]]) -> None:
        super().__init__()
        self._kind = kind
        self._said = said

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(memoryview(data))  # type: ignore[arg-type]
        if sum(len(each) for _, each in self._said) + len(piece) > MOST_SAID:
            raise ParseLocallyError("it says too much")
        if self._said and self._said[-1][0] == self._kind:
            self._said[-1][1].extend(piece)
        else:
            self._said.append((self._kind, bytearray(piece)))
        return len(piece)


class CallersTerminal(terminal.UserTerminal):
    """Terminal of a caller elsewhere, as the client described it; its streams are buffered like those of a process."""

    def __init__(self, line: CommandLine, refused: Callable[[AccessError], object]) -> None:
        self._line = line
        self._refused = refused
        self._said: list[tuple[int, bytearray]] = []
        out, err = (io.BufferedWriter(_CapturedStream(kind, self._said), _BUFFER) for kind in (OUT, ERR))
        self._out = io.TextIOWrapper(out, "utf-8", "replace", line_buffering=self.is_tty(terminal.OUT))
        self._err = io.TextIOWrapper(err, "utf-8", "replace", line_buffering=True)

    @property
    def out(self) -> io.TextIOWrapper:
        return self._out

    @property
    def err(self) -> io.TextIOWrapper:
        return self._err

    @property
    def environ(self) -> Mapping[str, str]:
        return self._line.environ

    def is_tty(self, number: int) -> bool:
        return bool(self._line.ttys >> number & 1)

    def columns(self) -> int:
        return self._line.width

    def done(self, text: str, sentence: str) -> None:
        self.out.write(text)
        self.out.flush()
        self._said.append((UNPRINTED, bytearray(sentence.encode(errors="replace"))))

    def refused(self, error: AccessError) -> None:
        self._refused(error)

    def pieces(self) -> tuple[tuple[int, bytes], ...]:
        self.out.flush()
        self.err.flush()
        return tuple((kind, bytes(piece)) for kind, piece in self._said)


class CallersSession(Session, kw_only=True, eq=False, dict=True):
    """State of a command that the owner runs: its own options, and the queue with the rights of the caller."""

    found: Options
    caller: Caller
    line: CommandLine
    open: Callable[[Caller], DirectBackend]
    forecasts: threading.Lock

    def resolved(self) -> Options:
        return self.found

    def opened(self, options: Options) -> DirectBackend:
        return self.open(self.caller)

    @property
    def user(self) -> str:
        """Return the name of the caller, or of the one who called sudo, as in a process of root."""
        if self.caller.uid == 0 and (sudo := bootstrap.sudo_uid(self.line.environ)) is not None:
            return user_name(sudo)
        return self.caller.user

    def store(self, *, is_local: bool = False) -> NoReturn:
        """Refuse: the store itself is not for callers."""
        raise ParseLocallyError("this command opens the store itself")

    @contextmanager
    def forecast(self) -> Iterator[None]:
        if not self.forecasts.acquire(timeout=FORECAST_WITHIN):
            raise StoreBusyError("other forecasts are being made", hint="ask again")
        try:
            yield
        finally:
            self.forecasts.release()

    def submitter(self) -> Submitter:
        line = self.line
        limits = tuple((name, line.limits[name]) for name in LIMITS if name in line.limits)
        now, taken = bootstrap.clock().now(), Inherited(line.umask, limits)
        return Submitter(self.user, now, Path(line.cwd), line.environ, taken)


def _stamps(options: Options) -> tuple[tuple[int, int] | None, ...]:
    """Return inode and time of change of this process's settings files, as they are now."""
    found: list[tuple[int, int] | None] = []
    for path in filter(None, (options.site, options.config)):
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns))
    return tuple(found)


class CommandsOfCallers(Struct, eq=False):
    """Runs commands for callers, in any thread."""

    _options: Options
    _run: Callable[..., int]
    """Runs a command, as `gputui.cli.main` does."""
    _backend: Callable[[Caller], DirectBackend]
    _refused: Callable[[Caller, str, str], None]
    _settings: Mapping[str, str] = field(default_factory=lambda: settings_variables(os.environ))
    _forecasts: threading.Lock = field(default_factory=threading.Lock)
    _stamps: tuple[tuple[int, int] | None, ...] = ()

    def __post_init__(self) -> None:
        self._stamps = _stamps(self._options)

    def __call__(self, caller: Caller, line: CommandLine) -> CommandResult:
        place = thin.command_in(line.argv)
        if place is None:
            raise ParseLocallyError("the owner of the queue does not run this command")
        words = line.argv[place:]  # without the options before the command: they have led the client to this owner
        options, told = self._options, settings_variables(line.environ)
        is_set_alike = (
            line.config in {"", str(options.config)}
            and line.environ.get("GPUTUI_RUNTIME", options.runtime) == options.runtime
            and all(self._settings.get(name) == value for name, value in told.items())
            and line.environ.get("TZ") == os.environ.get("TZ")
        )
        if not is_set_alike or _stamps(self._options) != self._stamps:
            raise ParseLocallyError("the owner of the queue has other settings")
        said = CallersTerminal(line, lambda error: self._refused(caller, error.rule, _shown(words)))
        session = CallersSession(
            found=self._options, caller=caller, line=line, open=self._backend, forecasts=self._forecasts
        )
        with terminal.of_caller(said), elsewhere():
            code = self._run(words, session, terminal_width=terminal.help_width())
        return CommandResult(code, said.pieces())


def _shown(words: tuple[str, ...]) -> str:
    """Return the words of a command for the audit log, without values that may be secret."""
    return " ".join(word.partition("=")[0][:40] for word in words[:8])[:200]
