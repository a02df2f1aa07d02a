"""`gputui tenant`: weights, caps and current use of tenants."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from gputui import bootstrap
from gputui.cli import output, terminal
from gputui.cli.main import CommandGroup
from gputui.cli.output import confirm, print_json, quiet_option
from gputui.cli.session import Session, pass_session
from gputui.domain.action import RemoveTenant, SetTenant
from gputui.domain.errors import InputError
from gputui.domain.job_spec import MAX_PRIORITY
from gputui.domain.text import format_duration, quoted
from gputui.request import job_values

if TYPE_CHECKING:
    from gputui.domain.policy.queue_order import TenantUsage

MAX_WEIGHT = 1_000_000
MAX_COUNT = 2**31 - 1
_SETS = "--weight, --gpus, --running, --pending, --max-priority, --users or --clear"
COLUMNS = (
    output.TextColumn("TENANT", 24, least=8),
    output.TextColumn("WEIGHT", right=True),
    output.TextColumn("GPUS", right=True),
    output.TextColumn("RUNNING", right=True),
    output.TextColumn("PENDING", right=True),
    output.TextColumn("PRIORITY", right=True),
    output.TextColumn("F", right=True),
    output.TextColumn("GPU TIME", right=True),
    output.TextColumn("FROM"),
)


@click.group("tenant", cls=CommandGroup)
def command() -> None:
    """Weights and caps of tenants. What a tenant leaves unused is lent to others."""


@command.command("set")
@click.argument("name", metavar="NAME")
@click.option("--weight", metavar="W", help="Its share is its weight over the sum of all weights. [1]")
@click.option("--gpus", metavar="N|none", help="Maximum number of GPUs in use at the same time.")
@click.option("--running", metavar="N|none", help="Maximum number of jobs running at the same time.")
@click.option("--pending", metavar="N|none", help="Maximum number of jobs waiting; more are refused.")
@click.option(
    "--max-priority", metavar="N|none", help="Highest priority of its jobs, 0 to 100; a higher one is refused."
)
@click.option("--users", metavar="NAME[,…]|none", help="Users and @groups who may submit for it, besides operators.")
@click.option("--clear", is_flag=True, help="Reset to weight 1 and no caps first; by default other values stay.")
@quiet_option
@pass_session
def set_(session: Session, /, name: str, clear: bool, quiet: bool, **given: str | None) -> None:
    """Set a tenant's weight and caps; this overrides the settings file."""
    tenant = job_values.tenant_name(name, "NAME")
    changes: dict[str, Any] = {
        key: _VALUES.get(key, _cap)(text, f"--{key.replace('_', '-')}")
        for key, text in given.items()
        if text is not None
    }
    if not changes and not clear:
        raise InputError("nothing to set", where="tenant set", hint=_SETS)
    with session.backend() as backend:
        backend.act(SetTenant(tenant, changes, clear))
    told = ", ".join(f"{key.replace('_', '-')} {text}" for key, text in given.items() if text is not None)
    cleared = "reset to weight 1 and no caps" if clear else ""
    confirm(f"tenant {tenant}: {', '.join(filter(None, (cleared, told)))}", quiet=quiet)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print an array of tenants as JSON.")
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List the tenants: weight, use of their caps, fair share F and GPU time used."""
    from gputui.domain.policy.queue_order import tenant_usage  # the policy is not needed to set

    with session.backend() as backend:
        snapshot = backend.snapshots().read()
    found = tenant_usage(snapshot, session.options.settings, bootstrap.clock().now())
    if as_json:
        print_json([_json(each) for each in found])
        return
    written = output.lines(COLUMNS, map(_row, found), terminal.width()) if found else ["no tenants"]
    terminal.write("\n".join(written) + "\n")


@command.command("remove")
@click.argument("name", metavar="NAME")
@quiet_option
@pass_session
def remove(session: Session, name: str, quiet: bool) -> None:
    """Remove the values of `tenant set`; those of the settings file, if any, apply again."""
    with session.backend() as backend:
        backend.act(RemoveTenant(name))
    confirm(f"removed the values of tenant {name}; those of the settings file, if any, apply", quiet=quiet)


def _weight(text: str, where: str) -> float:
    if not re.fullmatch(r"\d{1,7}(\.\d{1,9})?|\.\d{1,9}", text, re.ASCII) or not 0 < float(text) <= MAX_WEIGHT:
        what = f"{quoted(text)} is not a weight"
        raise InputError(what, where=where, hint=f"a number above 0, at most {MAX_WEIGHT}")
    return float(text)


def _cap(text: str, where: str) -> int | None:
    most = MAX_PRIORITY if where == "--max-priority" else MAX_COUNT
    return None if text == "none" else job_values.whole(0, most, text, where)


def _users(text: str, where: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(name.strip() for name in text.split(","))
    for name in names:  # groups of directory services may have blanks, as in @domain users
        if not (re.fullmatch(r"@\w[^:/]{0,255}|\w[^\s:/]{0,255}", name) and name.isprintable()):
            raise InputError(f"{quoted(name)} is not a user", where=where, hint="user,@group or none")
    return names


_VALUES: Mapping[str, Callable[[str, str], Any]] = {"weight": _weight, "users": _users}


def _row(dues: TenantUsage) -> tuple[str, ...]:
    tenant = dues.tenant
    return (
        tenant.name or "-",
        f"{tenant.weight:g}",
        _of(dues.gpus, tenant.gpus),
        _of(dues.running, tenant.running),
        _of(dues.pending, tenant.pending),
        "-" if tenant.max_priority is None else f"<={tenant.max_priority}",
        f"{dues.fair_share:.2f}",
        format_duration(timedelta(seconds=round(dues.gpu_seconds))),
        dues.source or "-",
    )


def _of(now: int, cap: int | None) -> str:
    return str(now) if cap is None else f"{now}/{cap}"


def _json(dues: TenantUsage) -> dict[str, Any]:
    tenant = dues.tenant
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "gpus_max": tenant.gpus,
        "running_max": tenant.running,
        "pending_max": tenant.pending,
        "priority_max": tenant.max_priority,
        "users": list(tenant.users),
        "gpus": dues.gpus,
        "running": dues.running,
        "pending": dues.pending,
        "fair_share": dues.fair_share,
        "gpu_seconds": dues.gpu_seconds,
        "source": dues.source,
    }
