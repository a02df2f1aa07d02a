"""`gputui tenant`: what tenants are due, may have at most, and have now."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from gputui import bootstrap
from gputui.cli import table
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.errors import InputError
from gputui.domain.units import format_duration
from gputui.request import numbers, texts

if TYPE_CHECKING:
    from gputui.domain.policy.dues import Dues

MAX_WEIGHT = 1_000_000
MAX_COUNT = 2**31 - 1
COLUMNS = (
    table.Column("TENANT", 24, least=8),
    table.Column("WEIGHT", right=True),
    table.Column("GPUS", right=True),
    table.Column("RUNNING", right=True),
    table.Column("PENDING", right=True),
    table.Column("F", right=True),
    table.Column("GPU TIME", right=True),
    table.Column("FROM"),
)


@click.group("tenant")
def command() -> None:
    """Weights and caps of tenants. What a tenant leaves unused is lent to others."""


@command.command("set")
@click.argument("name", metavar="NAME")
@click.option("--weight", metavar="W", help="Its share is its weight over the sum of all weights; 1 if never set.")
@click.option("--gpus", metavar="N|none", help="At most so many GPUs held at once.")
@click.option("--running", metavar="N|none", help="At most so many jobs running at once.")
@click.option("--pending", metavar="N|none", help="At most so many jobs waiting: a submit of more is refused.")
@click.option("--clear", is_flag=True, help="Begin from weight 1 and no caps; else what is not given stays.")
@pass_session
def set_(session: Session, /, name: str, clear: bool, **given: str | None) -> None:
    """Set a tenant's weight and caps, in place of what the settings file says of it."""
    tenant = texts.tenant_name(name, "NAME")
    changes: dict[str, Any] = {
        key: _weight(text) if key == "weight" else _cap(text, f"--{key}")
        for key, text in given.items()
        if text is not None
    }
    if not changes and not clear:
        raise InputError("nothing to set", where="tenant set", hint="--weight, --gpus, --running, --pending or --clear")
    with session.store() as store:
        bootstrap.tenants(store, session.options).set(tenant, changes, clear=clear)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print an array of tenants as JSON.")
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List the tenants: weight, what they have now of what they may have, fair share F and GPU time used."""
    from gputui.domain.policy.dues import dues  # the policy is not needed to set

    with session.store() as store:
        snapshot = bootstrap.current_snapshot(session.options, store)
    found = dues(snapshot, session.options.settings, bootstrap.clock().now())
    if as_json:
        print_json([_json(each) for each in found])
        return
    written = table.lines(COLUMNS, map(_row, found), table.terminal_width()) if found else ["no tenants"]
    sys.stdout.write("\n".join(written) + "\n")


@command.command("remove")
@click.argument("name", metavar="NAME")
@pass_session
def remove(session: Session, name: str) -> None:
    """Forget what `tenant set` set: what the settings file says, if anything, holds again."""
    with session.store() as store:
        bootstrap.tenants(store, session.options).remove(name)


def _weight(text: str) -> float:
    if not re.fullmatch(r"\d{1,7}(\.\d{1,9})?|\.\d{1,9}", text, re.ASCII) or not 0 < float(text) <= MAX_WEIGHT:
        what = f"{texts.quoted(text)} is not a weight"
        raise InputError(what, where="--weight", hint=f"a number above 0, at most {MAX_WEIGHT}")
    return float(text)


def _cap(text: str, where: str) -> int | None:
    return None if text == "none" else numbers.whole(0, MAX_COUNT)(text, where)


def _row(dues: Dues) -> tuple[str, ...]:
    tenant = dues.tenant
    return (
        tenant.name or "-",
        f"{tenant.weight:g}",
        _of(dues.gpus, tenant.gpus),
        _of(dues.running, tenant.running),
        _of(dues.pending, tenant.pending),
        f"{dues.fair_share:.2f}",
        format_duration(timedelta(seconds=round(dues.gpu_seconds))),
        dues.source or "-",
    )


def _of(now: int, cap: int | None) -> str:
    return str(now) if cap is None else f"{now}/{cap}"


def _json(dues: Dues) -> dict[str, Any]:
    tenant = dues.tenant
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "gpus_max": tenant.gpus,
        "running_max": tenant.running,
        "pending_max": tenant.pending,
        "gpus": dues.gpus,
        "running": dues.running,
        "pending": dues.pending,
        "fair_share": dues.fair_share,
        "gpu_seconds": dues.gpu_seconds,
        "source": dues.source,
    }
