"""Prints results of commands, and keeps them from being lost when standard output is closed or full."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

from gputui.domain.text import plain


def print_done(text: str, done: str = "") -> None:
    """Print the result; `done` is a sentence that reports the change, where the result itself is none.

    Where standard output is closed or full, that sentence goes to stderr. The change has been made, so this is not an
    error: a script that retried would make it twice.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        why = (error.strerror or str(error)).lower()
        with suppress(OSError):
            click.echo(f"gputui: {plain(done or text)}; this could not be printed on standard output: {why}", err=True)


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
    discard(1)


def discard(descriptor: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
