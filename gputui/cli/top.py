"""`gputui top`: frames of the console as lines, for scripts, logs and mail."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import terminal
from gputui.cli.session import Session, pass_session
from gputui.console.startup import EarlyProbe
from gputui.domain.errors import GputuiError
from gputui.domain.settings import ConsoleSettings
from gputui.domain.snapshot import Snapshot
from gputui.ports.backend import DirectBackend
from gputui.request.job_values import time_span, whole

if TYPE_CHECKING:
    from rich.style import Style

    from gputui.tui.present.cells import Cell

WIDTH = 120
"""Columns of a frame when stdout is not a terminal."""


@click.command("top")
@click.option("-n", "--count", metavar="N", default="1", help="Number of frames; 0: until interrupted.  [default: 1]")
@click.option("-i", "--interval", metavar="DURATION", default="2s", help="Time between two frames.  [default: 2s]")
@click.option("--width", metavar="N", help="Width in columns.  [default: the terminal's, else 120]")
@click.option("--height", metavar="N", help="Print at most N lines.  [default: all]")
@click.option("--no-color", is_flag=True, help="Print no colours, as into a file or a pipe.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Print only ASCII characters.")
@pass_session
def command(
    session: Session, count: str, interval: str, width: str | None, height: str | None, no_color: bool, ascii_only: bool
) -> None:
    """Print the console as plain lines: scheduler, notices, GPUs and queue."""
    from gputui.bootstrap.adapters import in_haste

    early = click.get_current_context().with_resource(closing(EarlyProbe(in_haste(session.options))))
    early.start()
    from gputui.bootstrap.clusters import NodeWatch
    from gputui.domain.conditions import ConditionTracker
    from gputui.domain.gpu_history import GpuHistory
    from gputui.tui.frame import FrameSize, frame

    frames = whole(0, 10**9, count, "--count")
    pause = time_span(interval, "--interval").total_seconds()
    room = FrameSize(
        whole(20, 2000, width, "--width") if width else terminal.width() or WIDTH,
        whole(3, 10_000, height, "--height") if height else None,
    )
    write = writer(session.options.settings.console, no_color=no_color, ascii_only=ascii_only)
    tracker, history, earlier = ConditionTracker(), GpuHistory(), bootstrap.gpu_past(session.options)
    history.begin_with(earlier, bootstrap.clock().now())
    shown = history if earlier or frames != 1 else None
    with session.backend() as backend, closing(NodeWatch(session.options)) as nodes:
        number = 0
        while True:
            snapshot = nodes.joined(current_snapshot(backend, early))
            history.add(snapshot)
            now, about = bootstrap.clock().now(), backend.about()
            for line in frame(snapshot, now, about.host, room, shown, tracker, about.caps.lacking):
                write(line)
            terminal.flush()
            number += 1
            if number == frames:
                return
            time.sleep(pause)
            terminal.write("\n")


def current_snapshot(backend: DirectBackend, early: EarlyProbe) -> Snapshot:
    snapshot = backend.snapshots().read()
    if snapshot.gpus or snapshot.leader is not None:
        return snapshot
    try:
        return replace(snapshot, nodes=backend.with_gpus(snapshot, lambda _: None, early.take()).nodes)
    except GputuiError:
        return snapshot


def writer(settings: ConsoleSettings, *, no_color: bool, ascii_only: bool) -> Callable[[Cell], None]:
    from gputui.tui.palette import ascii_of, wants_ascii

    tty = terminal.is_tty(terminal.OUT)
    ascii_only = ascii_only or settings.ascii == "always" or (tty and wants_ascii(settings.ascii, terminal.environ()))
    styled = None if no_color or not tty or "NO_COLOR" in terminal.environ() else painter(settings)

    def write(line: Cell) -> None:
        pieces = ((ascii_of(text) if ascii_only else text, style) for text, style in line)
        if styled is None:
            terminal.write("".join(text for text, _ in pieces).rstrip() + "\n")
        else:
            terminal.write("".join(styled(style, text) for text, style in pieces) + "\n")

    return write


def painter(settings: ConsoleSettings) -> Callable[[Style, str], str]:
    """Return a function that colours a text, by the theme of the settings and the colours of the terminal."""
    from rich.color import ColorSystem

    from gputui.tui.palette import ANSI, DARK, OWN, exchange, has_few_colours

    few = has_few_colours(terminal.environ())
    palette = ANSI if few else OWN.get(settings.theme, DARK)
    deep = terminal.environ().get("COLORTERM", "").lower() in ("truecolor", "24bit")
    system = ColorSystem.STANDARD if few else ColorSystem.TRUECOLOR if deep else ColorSystem.EIGHT_BIT
    styled = exchange(palette)
    return lambda style, text: styled(style).render(text, color_system=system)
