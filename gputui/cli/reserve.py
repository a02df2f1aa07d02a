"""`gputui reserve`: keep GPUs for somebody for a time, or the next ones for important jobs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click

from gputui import bootstrap
from gputui.cli import completing, readings, table
from gputui.cli.done import print_done
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.domain.errors import InputError
from gputui.domain.gpu import Gpu
from gputui.domain.settings import Window
from gputui.domain.short_names import short_names
from gputui.domain.snapshot import Snapshot, Standing
from gputui.domain.window import WindowView
from gputui.engine.actions import find_gpu
from gputui.ports import JobStore
from gputui.request import numbers, texts
from gputui.request import window as asked

MAX_GPUS = 100_000
COLUMNS = (
    table.Column("NAME", 32, least=4),
    table.Column("STATE"),
    table.Column("START"),
    table.Column("END"),
    table.Column("GPUS", 24, least=4),
    table.Column("FROM"),
    table.Column("KEPT FOR"),
)


@click.group("reserve")
def command() -> None:
    """Keep GPUs for somebody for a time. Jobs that end before it by their limits still run there."""


@command.command("add")
@click.option("--gpus", metavar="N", help="Any so many GPUs.")
@click.option(
    "--gpu",
    "named",
    multiple=True,
    metavar="GPU",
    shell_complete=completing.gpus,
    help="These, by index or UUID; again for each.",
)
@click.option(
    "--start", default="+0", metavar="TIME", help="2026-12-01T09:00 (your zone if it has none), 18:00 or +2h; now."
)
@click.option("--end", metavar="TIME", help="Likewise.")
@click.option("--for", "lasting", metavar="DURATION", help="How long, in place of --end: 8h.")
@click.option("--tenant", metavar="NAME", help="Kept for this tenant's jobs; else, without --priority, for your own.")
@click.option("--priority", metavar="N", help="Kept for all jobs of at least this priority.")
@click.option("--nobody", is_flag=True, help="Kept clear of all jobs, to the end: for maintenance.")
@click.option("--name", metavar="NAME", help="Else one is made up.")
@click.option("--dry-run", is_flag=True, help="Print whose start would shift, and do nothing.")
@pass_session
def add(session: Session, /, dry_run: bool, **given: Any) -> None:
    """Keep GPUs for somebody for a time, and print the reservation's name."""
    window, names = _window(given), _names(given["named"])
    with session.store() as store:
        gpus = [view.gpu for view in readings.gpu_views(session.options, store)]
        window = _with_gpus(window, names, gpus)
        reservations = bootstrap.reservations(store, session.options)
        if dry_run:
            _show(session, store, reservations.checked(window, gpus))
            _warn(session, store, window)
            return
        name = reservations.add(window, gpus).name
        print_done(name, f"reservation {name} is made")
        _warn(session, store, window)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print an array of reservations as JSON.")
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List the reservations that are not over: those of the settings file and those added by a command."""
    with session.store() as store:
        snapshot = bootstrap.current_snapshot(session.options, store)
        found = _views(session, snapshot)
    if as_json:
        print_json([_json(view) for view in found])
        return
    rows = [_row(view, snapshot) for view in found]
    written = table.lines(COLUMNS, rows, table.terminal_width()) if rows else ["no reservations"]
    sys.stdout.write("\n".join([*written, *_standing_line(session, snapshot)]) + "\n")


@command.command("remove")
@click.argument("name", metavar="NAME", shell_complete=completing.reservations)
@pass_session
def remove(session: Session, name: str) -> None:
    """Give a reservation up: its GPUs are anybody's again."""
    with session.store() as store:
        bootstrap.reservations(store, session.options).remove(name)


@command.command("standing")
@click.argument("rule", metavar="PRIORITY|off|file")
@pass_session
def standing(session: Session, rule: str) -> None:
    """While a job of at least PRIORITY waits for GPUs, give none to jobs below it; file: as the settings file says."""
    wished = {"off": Standing(None), "file": None}
    value = wished[rule] if rule in wished else Standing(numbers.priority(rule, "PRIORITY"))
    with session.store() as store:
        bootstrap.reservations(store, session.options).set_standing(value)


def _window(given: dict[str, Any]) -> Window:
    """The window asked for, its GPUs not yet known."""
    now = bootstrap.clock().now()
    if bool(given["gpus"]) == bool(given["named"]):
        raise InputError("either how many or which ones", where="--gpus", hint="--gpus 4, or --gpu 0 --gpu 1")
    start, end = asked.times(given | {"for": given["lasting"]}, now, ("start", "for", "end"), "--")
    tenant, priority = asked.whom(given, bootstrap.actor().user, "--")
    name = texts.one_line(given["name"], "--name", 64) if given["name"] is not None else ""
    count = numbers.whole(1, MAX_GPUS)(given["gpus"], "--gpus") if given["gpus"] else 0
    return Window(name, start, end, count, (), tenant, priority)


def _names(named: Sequence[str]) -> list[str]:
    return [name.strip() for some in named for name in some.split(",") if name.strip()]


def _with_gpus(window: Window, names: Sequence[str], gpus: Sequence[Gpu]) -> Window:
    """The window over the GPUs named, by their UUIDs."""
    uuids = [find_gpu([gpu.uuid for gpu in gpus], name) for name in names]
    return replace(window, gpus=tuple(dict.fromkeys(uuids)))


def _show(session: Session, store: JobStore, window: Window) -> None:
    from gputui.cli import dry_run  # the forecast is not needed to wish
    from gputui.domain.policy.standing import reserved

    dry_run.show(session, store, reserved(window))


def _warn(session: Session, store: JobStore, window: Window) -> None:
    """Say on stderr which jobs may still hold the GPUs that are named."""
    if not window.gpus:
        return
    from gputui.domain.policy.occupants import warnings

    snapshot = bootstrap.current_snapshot(session.options, store)
    names = {view.gpu.uuid: str(view.gpu.index) for view in snapshot.gpus}
    for warning in warnings(window, snapshot, names):
        click.echo(f"warning: {warning}", err=True)


def _views(session: Session, snapshot: Snapshot) -> tuple[WindowView, ...]:
    """As the plan has them; where none was made, as wishes and clock tell."""
    from gputui.domain.policy.standing import views

    told = views(session.options.settings.policy, snapshot.controls, bootstrap.clock().now())
    planned = {view.window.key: view for view in snapshot.windows}
    return tuple(planned.get(view.window.key, view) for view in told)


def _row(view: WindowView, snapshot: Snapshot) -> tuple[str, ...]:
    from gputui.engine.reservations import whom

    window = view.window
    indices = {gpu.gpu.uuid: gpu.gpu.index for gpu in snapshot.gpus}
    short = short_names(window.gpus)
    named = ",".join(str(indices.get(name, short[name])) for name in window.gpus)
    return (
        window.name,
        str(view.state),
        _local(window.start),
        _local(window.end),
        named or f"any {window.count}",
        view.source,
        whom(window) + _story(view),
    )


def _story(view: WindowView) -> str:
    if view.released_at:
        return f"; released {_local(view.released_at)}: nobody claimed it"
    if view.lapses_at:
        return f"; released {_local(view.lapses_at)} if nobody claims it"
    return f"; claimed {_local(view.claimed_at)}" if view.claimed_at else ""


def _standing_line(session: Session, snapshot: Snapshot) -> Iterator[str]:
    from gputui.domain.policy.standing import in_force

    priority = in_force(session.options.settings.policy, snapshot.controls).standing_priority
    if priority is not None:
        source = "command" if snapshot.controls.standing else "file"
        yield f"standing rule: GPUs go to jobs of priority {priority} and above first ({source})"


def _json(view: WindowView) -> dict[str, Any]:
    window = view.window
    return {
        "name": window.name,
        "state": str(view.state),
        "start": _utc(window.start),
        "end": _utc(window.end),
        "count": len(window.gpus) or window.count,
        "gpus": list(window.gpus),
        "tenant": window.tenant,
        "priority": window.priority,
        "source": view.source,
        "claimed_at": _utc(view.claimed_at),
        "released_at": _utc(view.released_at),
        "lapses_at": _utc(view.lapses_at),
        "kept_gpus": list(view.gpus),
    }


def _utc(at: datetime | None) -> str | None:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if at else None


def _local(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M}"
