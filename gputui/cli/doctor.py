"""`gputui doctor`: checks what jobs need, and says what to do. Collects facts; `gputui.cli.checks` judges them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from gputui import bootstrap
from gputui.cli import readings
from gputui.cli.checks import Check, Level, driver, engine, state
from gputui.cli.output import print_json
from gputui.cli.session import Session, pass_session
from gputui.config import Options
from gputui.domain.errors import GputuiError
from gputui.domain.text import plain
from gputui.ports import JobStore

PATIENCE = 8.0
"""Seconds the driver may take to answer."""
_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-runtime")
_INDENT = " " * 18


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print an array of checks as JSON.")
@pass_session
def command(session: Session, as_json: bool) -> int:
    """Check driver, toolkit, runtimes, permissions, clock and disk, and say what to do.

    The exit code is 1 when any check fails: then no job, or no job with GPUs, could start.
    """
    readings.say_nothing_twice()
    found = list(examine(session.options))
    if as_json:
        print_json([{**vars(check), "level": str(check.level)} for check in found])
    else:
        sys.stdout.writelines(map(lines, found))
    return 1 if any(check.level is Level.FAIL for check in found) else 0


def lines(check: Check) -> str:
    """Return a check as lines of text: what was found, why it matters, and how to fix it."""
    written = [f"{check.level:<5} {plain(check.name):<11} {plain(check.text)}"]
    if check.why:
        written.append(f"{_INDENT}why: {plain(check.why)}")
    for number, line in enumerate(check.hint.splitlines()):
        written.append(f"{_INDENT}{'     ' if number else 'fix: '}{plain(line)}")
    return "\n".join(written) + "\n"


def examine(options: Options) -> Iterator[Check]:
    """Make every check, one after the other; none keeps the next from being made."""
    areas: tuple[tuple[str, Callable[[Options], Iterator[Check]]], ...] = (
        ("state", _of_state),
        ("driver", _of_probe),
        (options.runtime, _of_runtimes),
    )
    for name, area in areas:
        try:
            yield from area(options)
        except (GputuiError, OSError) as error:
            yield _failed(name, error)


def _of_state(options: Options) -> Iterator[Check]:
    """Look at the state directory as it is; a directory that does not exist is not created."""
    if not options.state.exists():
        parent = next(parent for parent in options.state.parents if parent.exists())
        yield state.of_missing_directory(str(options.state), os.access(parent, os.W_OK | os.X_OK))
        yield _space(parent)
        yield state.of_clock(bootstrap.clock().now(), None)
        yield state.of_leader(None)
        return
    store = bootstrap.open_store(options)
    try:
        yield from _of_store(options, store)
    finally:
        store.close()


def _of_store(options: Options, store: JobStore) -> Iterator[Check]:
    status = options.state.stat()
    is_writable = os.access(options.state, os.W_OK | os.X_OK)
    mode, group = stat.S_IMODE(status.st_mode), options.settings.store.group
    yield state.of_directory(str(options.state), mode, status.st_uid == os.geteuid(), is_writable, group)
    yield _space(options.state)
    yield from state.of_damage(store.damage())
    latest = max((job.submitted_at for job in store.jobs().values()), default=None)
    yield state.of_clock(bootstrap.clock().now(), latest)
    yield state.of_leader(bootstrap.current_snapshot(options, store).leader)


def _space(path: Path) -> Check:
    space = os.statvfs(path)
    return state.of_space(space.f_bavail * space.f_frsize, space.f_favail if space.f_files else None, str(path))


def _of_probe(options: Options) -> Iterator[Check]:
    yield from driver.of_probe(bootstrap.read_gpus(options, PATIENCE))


def _of_runtimes(options: Options) -> Iterator[Check]:
    for runtime in bootstrap.make_runtimes(options, "0" * 12):
        try:
            yield from engine.of_runtime(runtime.check())
        finally:
            runtime.close()
    if options.runtime == "docker" and options.probe.simulated is None:
        yield engine.of_toolkit(_toolkit())


def _toolkit() -> str | None:
    """Return the path of a part of the toolkit on this host."""
    import shutil

    return next((path for name in _TOOLKIT if (path := shutil.which(name))), None)


def _failed(name: str, error: GputuiError | OSError) -> Check:
    if isinstance(error, GputuiError):
        sentence = f"{error.where}: {error.what}" if error.where else error.what
        return Check(name, Level.FAIL, sentence, error.hint or "")
    return Check(name, Level.FAIL, f"{error.filename}: {error.strerror}" if error.filename else str(error))
