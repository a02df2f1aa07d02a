"""`gputui doctor`: what stands in the way, and what to do."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

import click

from gputui import bootstrap
from gputui.cli import checks, readings
from gputui.cli.checks import Check, Level
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.domain.errors import GputuiError, StoreError
from gputui.domain.text import plain
from gputui.ports import JobStore

PATIENCE = 8.0
"""Seconds the driver may take to answer."""
_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-runtime")


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print an array of checks as JSON.")
@pass_session
def command(session: Session, as_json: bool) -> int:
    """Check driver, toolkit, runtimes, permissions, clock and disk, and say what to do.

    The exit code is 1 when any check fails.
    """
    readings.say_nothing_twice()
    found = list(examine(session.options))
    if as_json:
        print_json([{**vars(check), "level": str(check.level)} for check in found])
    else:
        sys.stdout.writelines(_line(check) for check in found)
    return 1 if any(check.level is Level.FAIL for check in found) else 0


def _line(check: Check) -> str:
    hint = f"\n{'':18}{plain(check.hint)}" if check.hint else ""
    return f"{check.level:<5} {plain(check.name):<11} {plain(check.text)}{hint}\n"


def examine(options: Options) -> Iterator[Check]:
    """Every check, one after the other; none keeps the next from being made."""
    store_id = ""
    try:
        store = bootstrap.open_store(options)
    except (GputuiError, OSError) as error:
        yield _failed("state", error)
    else:
        try:
            store_id = store.store_id
            yield from _of_store(options, store)
        except StoreError as error:
            yield _failed("store", error)
        finally:
            store.close()
    yield from _of_probe(options)
    yield from _of_runtimes(options, store_id or "000000000000")


def _of_store(options: Options, store: JobStore) -> Iterator[Check]:
    status = options.state.stat()
    is_owner = status.st_uid == os.geteuid()
    is_writable = os.access(options.state, os.W_OK | os.X_OK)
    mode, group = stat.S_IMODE(status.st_mode), options.settings.store.group
    yield checks.of_directory(str(options.state), mode, is_owner, is_writable, group)
    space = os.statvfs(options.state)
    yield checks.of_space(space.f_bavail * space.f_frsize, space.f_favail if space.f_files else None)
    yield from checks.of_damage(store.damage())
    latest = max((job.submitted_at for job in store.jobs().values()), default=None)
    yield checks.of_clock(bootstrap.clock().now(), latest)
    yield checks.of_leader(bootstrap.current_snapshot(options, store).leader)


def _of_probe(options: Options) -> Iterator[Check]:
    try:
        yield from checks.of_probe(bootstrap.read_gpus(options, PATIENCE))
    except (GputuiError, OSError) as error:
        yield _failed("driver", error)


def _of_runtimes(options: Options, store_id: str) -> Iterator[Check]:
    try:
        runtimes = bootstrap.make_runtimes(options, store_id)
    except (GputuiError, OSError) as error:
        yield _failed(options.runtime, error)
        return
    for runtime in runtimes:
        try:
            yield from checks.of_runtime(runtime.check())
        finally:
            runtime.close()
    if options.runtime == "docker" and options.probe.simulated is None:
        yield checks.of_toolkit(_toolkit())


def _toolkit() -> str | None:
    """Where a part of the toolkit lies on this host."""
    import shutil

    return next((path for name in _TOOLKIT if (path := shutil.which(name))), None)


def _failed(name: str, error: GputuiError | OSError) -> Check:
    if isinstance(error, GputuiError):
        sentence = f"{error.where}: {error.what}" if error.where else error.what
        return Check(name, Level.FAIL, sentence, error.hint or "")
    return Check(name, Level.FAIL, str(error))
