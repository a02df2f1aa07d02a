"""`gputui state`: maintain the state directory."""

from __future__ import annotations

import sys

import click

from gputui import bootstrap
from gputui.cli.session import Session, pass_session
from gputui.cli.streams import print_done
from gputui.domain.errors import InputError
from gputui.domain.text import plain


@click.group("state")
def command() -> None:
    """Maintain the state directory."""


@command.command("repair")
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def repair(session: Session, yes: bool) -> int:
    """Repair the queue after its files have lost data.

    Prints what is recovered and what is lost, asks, and keeps the damaged files aside. What a scheduler or a console
    still has in memory is used, so leave them running.
    """
    found = bootstrap.open_repair(session.options)
    recovery = found.assess()
    if recovery is None:
        click.echo("nothing is missing: there is nothing to repair")
        return 0
    click.echo("\n".join(map(plain, recovery.lines)))
    if not yes and not _agrees():
        click.echo("nothing was changed", err=True)
        return 1
    aside = found.carry_out(recovery, bootstrap.clock().now(), bootstrap.actor())
    told = f"repaired; the damaged files are in {plain(str(aside))}"
    print_done(told, told)
    return 0


def _agrees() -> bool:
    if not sys.stdin.isatty():
        raise InputError("there is no terminal to ask on", where="state repair", hint="look at this, then add --yes")
    return click.confirm("Repair it so?", default=False)
