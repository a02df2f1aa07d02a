"""Prints results of commands, and keeps them from being lost when standard output is closed or full."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import click

from gputui.domain.text import plain


def print_done(text: str, done: str) -> None:
    """Print the result; `done` says in words what was done.

    Where standard output is closed or full that sentence goes to stderr. The command has done what it was asked for, so
    this is no failure: a script that tried again would have it done twice.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except OSError as error:
        discard_stdout()
        why = (error.strerror or str(error)).lower()
        with suppress(OSError):
            click.echo(f"gputui: {plain(done)}; this could not be printed on standard output: {why}", err=True)


def open_standard_streams() -> None:
    """Open /dev/null for standard streams that are closed, so that no other file gets their descriptor.

    What is written to a closed standard output still fails; a closed stderr swallows all.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest number that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")


def discard_stdout() -> None:
    """Keep the interpreter from reporting an error of standard output again at exit."""
    discard(1)


def discard(descriptor: int) -> None:
    """Write what follows on that descriptor nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
