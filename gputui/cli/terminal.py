"""The terminal of a command's user: his streams, his environment, and the width of his screen.

A command that the owner of the queue runs for a caller elsewhere has the caller's; any other has those of this process.
So commands never use `sys.stdout`, `print`, `click.echo` or `os.environ` themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, BinaryIO, TextIO

from gputui.domain.text import plain

if TYPE_CHECKING:
    import click

    from gputui.domain.errors import AccessError

IN, OUT, ERR = 0, 1, 2
"""Numbers of the standard streams."""
MOST_COLUMNS = 110
"""Maximum width of a help, in cells."""


class UserTerminal:
    @property
    def out(self) -> TextIO:
        return sys.stdout

    @property
    def err(self) -> TextIO:
        return sys.stderr

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ

    def is_tty(self, number: int) -> bool:
        return (sys.stdin, sys.stdout, sys.stderr)[number].isatty()

    def columns(self) -> int:
        """Return the columns of the terminal on standard output; 0: it tells none. Raises OSError without one."""
        return os.get_terminal_size(sys.stdout.fileno()).columns

    def done(self, text: str, sentence: str) -> None:
        """Print the result of a change; the sentence goes to stderr where standard output is closed or full."""
        try:
            self.out.write(text)
            self.out.flush()
        except OSError as error:
            discard_stdout()
            why = (error.strerror or str(error)).lower()
            with suppress(OSError):
                echo(f"gputui: {sentence}; this could not be printed on standard output: {why}", err=True)

    def refused(self, error: AccessError) -> None:
        """Take note that the user was refused something; the owner of a queue writes it down."""


_OWN = UserTerminal()
_PRESENT: ContextVar[UserTerminal] = ContextVar("terminal", default=_OWN)


@contextmanager
def of_caller(terminal: UserTerminal) -> Iterator[None]:
    """Let the commands that this thread runs write to the terminal of a caller."""
    token = _PRESENT.set(terminal)
    try:
        yield
    finally:
        _PRESENT.reset(token)


def _stream(*, err: bool) -> TextIO:
    terminal = _PRESENT.get()
    return terminal.err if err else terminal.out


def write(text: str, *, err: bool = False) -> None:
    """Write the text to standard output, or to stderr; nothing where that was closed from the start."""
    _stream(err=err).write(text)


def write_lines(lines: Iterable[str], *, err: bool = False) -> None:
    _stream(err=err).writelines(lines)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    stream = _stream(err=err)
    stream.write(f"{text}\n" if nl else text)
    stream.flush()


def tell(sentence: str) -> None:
    echo(f"gputui: {plain(sentence)}", err=True)


def flush(*, err: bool = False) -> None:
    _stream(err=err).flush()


def binary() -> BinaryIO:
    return _PRESENT.get().out.buffer


def print_done(text: str, done: str = "") -> None:
    """Print the result; `done` is a sentence that reports the change, where the result itself is none.

    Where standard output is closed or full, that sentence goes to stderr. The change has been made, so this is not an
    error: a script that retried would make it twice.
    """
    _PRESENT.get().done(f"{text}\n", plain(done or text))


def refused(error: AccessError) -> None:
    _PRESENT.get().refused(error)


def is_tty(number: int) -> bool:
    return _PRESENT.get().is_tty(number)


def environ() -> Mapping[str, str]:
    return _PRESENT.get().environ


def width() -> int | None:
    if not is_tty(OUT):
        return None
    if (named := _named_columns()) is not None:
        return max(20, named)
    try:
        return _PRESENT.get().columns() or 80
    except OSError:
        return 80


def _named_columns() -> int | None:
    columns = environ().get("COLUMNS", "")
    return int(columns) if columns.isascii() and columns.isdigit() and 0 < len(columns) < 6 else None


def help_width() -> int:
    columns = _named_columns() or 0
    if not columns:
        with suppress(OSError, ValueError, AttributeError):  # as shutil.get_terminal_size has it
            columns = _PRESENT.get().columns()
    return max(min(columns or 80, MOST_COLUMNS) - 2, 50)


def print_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the help of a command, in place of click's own callback, and end the command."""
    if value and not ctx.resilient_parsing:
        echo(ctx.get_help())
        ctx.exit()


def open_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed, so that no other file gets their descriptor.

    Writes to a closed standard output still fail; writes to a closed stderr are discarded.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest free number
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")


def discard_stdout() -> None:
    """Keep the interpreter from reporting an error of standard output again at exit."""
    if _PRESENT.get() is _OWN:
        discard(1)


def discard(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
