"""`gputui logs`: what a job printed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from gputui import bootstrap
from gputui.cli import numbers
from gputui.cli.session import Session, pass_session
from gputui.cli.wishes import OneJobId
from gputui.domain.job import JobId
from gputui.domain.text import plain_bytes

RESET = "\x1b[0m"


@click.command("logs")
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt ends.")
@click.option("-n", "--tail", metavar="N", help="Only the last N lines.")
@click.option("--attempt", metavar="K", help="Of that attempt; the default is the last one.")
@click.argument("ids", type=OneJobId(), metavar="ID")
@pass_session
def command(session: Session, follow: bool, tail: str | None, attempt: str | None, ids: tuple[JobId, ...]) -> None:
    """Print what a job printed, also after its container is gone.

    To a terminal without anything that could act on it but colours; to a file or a pipe, byte for byte.
    """
    lines = numbers.tail(tail, "--tail") if tail is not None else None
    number = numbers.attempt(attempt, "--attempt") if attempt is not None else None
    with session.store() as store:
        logs = bootstrap.open_logs(session.options, store)
        stream = logs.open(ids[0], number, tail=lines, follow=follow)
        write = writer(sys.stdout.isatty())
        try:
            for line in stream:
                write(line)
        finally:
            stream.close()


def writer(to_terminal: bool) -> Callable[[bytes], None]:
    """What writes one line, so that it is seen at once."""

    def write_shown(line: bytes) -> None:
        shown = plain_bytes(line)
        print(shown + RESET if "\x1b" in shown else shown, flush=True)

    def write_raw(line: bytes) -> None:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()

    return write_shown if to_terminal else write_raw
