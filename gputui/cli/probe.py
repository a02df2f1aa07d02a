"""`gputui probe`: readings of this machine's GPUs, for a console on another one."""

from __future__ import annotations

from datetime import timedelta

import click

from gputui.cli.finite_range import FiniteRange


@click.command("probe")
@click.option("--every", type=FiniteRange(0.2, 3600), default=2.0, show_default=True, help="Seconds between readings.")
def command(every: float) -> None:
    """Write readings of the GPUs to stdout; a console over a cluster starts it on each node.

    They are JSON objects, one on each line. It needs neither root nor a state directory, and ends with stdin, or if it
    reads nothing there for 90 seconds: a reader writes a line now and then.
    """
    from gputui.bootstrap.nodes import become_probe

    become_probe(timedelta(seconds=every))
