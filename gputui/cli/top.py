"""`gputui top`: frames of the console as lines, for scripts, logs and mail."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gputui import bootstrap
from gputui.cli import table
from gputui.cli.first import EarlyProbe
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.domain.errors import GputuiError
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Snapshot
from gputui.ports import JobStore
from gputui.request.numbers import duration, whole

if TYPE_CHECKING:
    from rich.style import Style

    from gputui.tui.present.cells import Cell

WIDTH = 120
"""Of what is no terminal, and so has none of its own."""


@click.command("top")
@click.option("-n", "--count", metavar="N", default="1", help="So many frames; 0: until interrupted.  [default: 1]")
@click.option("-i", "--interval", metavar="DURATION", default="2s", help="From one frame to the next.  [default: 2s]")
@click.option("--width", metavar="N", help="Cells of a line; the default is the terminal's, else 120.")
@click.option("--height", metavar="N", help="At most so many lines; the default is all there is to say.")
@click.option("--no-color", is_flag=True, help="Without colours, as into a file or a pipe.")
@click.option("--ascii", "ascii_only", is_flag=True, help="With ASCII characters alone.")
@pass_session
def command(
    session: Session,
    count: str,
    interval: str,
    width: str | None,
    height: str | None,
    no_color: bool,
    ascii_only: bool,
) -> None:
    """Print what the console shows, as lines: the scheduler, what to look at, GPUs and queue."""
    early = click.get_current_context().with_resource(closing(EarlyProbe(session.options, may_lead=True)))
    from gputui.domain.gpu_history import History
    from gputui.tui.frame import Room, frame

    frames = whole(0, 10**9)(count, "--count")
    pause = duration(interval, "--interval").total_seconds()
    room = Room(
        whole(20, 2000)(width, "--width") if width else table.terminal_width() or WIDTH,
        whole(3, 10_000)(height, "--height") if height else None,
    )
    write = writer(session.options.settings.console, no_color=no_color, ascii_only=ascii_only)
    history, earlier = History(), bootstrap.gpu_past(session.options)
    history.begin_with(earlier, bootstrap.clock().now())
    shown = history if earlier or frames != 1 else None
    with session.store() as store:
        number = 0
        while True:
            snapshot = seen(session.options, store, early)
            history.add(snapshot)
            for line in frame(snapshot, bootstrap.clock().now(), socket.gethostname(), room, shown):
                write(line)
            sys.stdout.flush()
            number += 1
            if number == frames:
                return
            time.sleep(pause)
            sys.stdout.write("\n")


def seen(options: Options, store: JobStore, early: EarlyProbe) -> Snapshot:
    """What the scheduler sees; where nobody schedules, the GPUs by a reading of our own, which may have begun."""
    snapshot = bootstrap.current_snapshot(options, store)
    if snapshot.gpus or snapshot.leader is not None:
        return snapshot
    try:
        return replace(snapshot, nodes=bootstrap.measured_snapshot(options, store, probe=early.take()).nodes)
    except GputuiError:
        return snapshot


def writer(settings: ConsoleSettings, *, no_color: bool, ascii_only: bool) -> Callable[[Cell], None]:
    """Writes lines as the terminal on stdout can show them; without colours where there is none."""
    from gputui.tui.glyphs import ascii_of
    from gputui.tui.themes.terminal import wants_ascii

    tty = sys.stdout.isatty()
    ascii_only = ascii_only or settings.ascii == "always" or (tty and wants_ascii(settings.ascii, os.environ))
    styled = None if no_color or not tty or "NO_COLOR" in os.environ else painter(settings)

    def write(line: Cell) -> None:
        pieces = ((ascii_of(text) if ascii_only else text, style) for text, style in line)
        if styled is None:
            sys.stdout.write("".join(text for text, _ in pieces).rstrip() + "\n")
        else:
            sys.stdout.write("".join(styled(style, text) for text, style in pieces) + "\n")

    return write


def painter(settings: ConsoleSettings) -> Callable[[Style, str], str]:
    """What puts a text into a style: the settings' theme where it is one of ours, in as many colours as there are."""
    from rich.color import ColorSystem

    from gputui.tui.themes.exchange import exchange
    from gputui.tui.themes.palette import DARK
    from gputui.tui.themes.palettes import ANSI, OWN
    from gputui.tui.themes.terminal import has_few_colours

    few = has_few_colours(os.environ)
    palette = ANSI if few else OWN.get(settings.theme, DARK)
    deep = os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit")
    system = ColorSystem.STANDARD if few else ColorSystem.TRUECOLOR if deep else ColorSystem.EIGHT_BIT
    styled = exchange(palette)
    return lambda style, text: styled(style).render(text, color_system=system)
