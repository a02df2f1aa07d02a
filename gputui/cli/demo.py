"""`gputui demo`: the console on simulated GPUs, with real processes as jobs."""

from __future__ import annotations

import shutil
import tempfile
import time
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import click
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli.demo_jobs import Arrivals, first_jobs
from gputui.cli.demo_past import record_past
from gputui.cli.session import Session, pass_session
from gputui.config import Options, ProbeSpec
from gputui.console import serving
from gputui.console.terminal import terminal
from gputui.domain.container import ContainerState
from gputui.domain.settings import SchedulerSettings
from gputui.ports import JobStore, Runtime
from gputui.tui.keys import keyed

GPUS = 8
DRAINED = 6
"""Index of the GPU that is drained."""
HISTORY = timedelta(hours=1)
HINT = (
    f"Demo, simulated GPUs: {keyed('detail')} opens a row, {keyed('submit')} submits, "
    f"{keyed('notices')} what is wrong, {keyed('help')} all keys"
)
END_WITHIN = 3.0
"""Seconds to wait for killed processes to end."""


def run(options: Options) -> int:
    """Show the console on a temporary state directory, which is removed at the end."""
    from gputui.console.startup import limit_frame_rate

    limit_frame_rate(options)
    from gputui.console.console import Console, Demo  # Textual comes with it

    directory = Path(tempfile.mkdtemp(prefix="gputui-demo-"))
    here = _here(options, directory)
    store = bootstrap.open_store(here)
    arrivals = Arrivals(store, bootstrap.actions(store))
    try:
        serving.log_to_file(here.state)
        opened_at = _furnish(here, store)
        demo = Demo(
            partial(bootstrap.demo_adapters, here, store.store_id),
            partial(bootstrap.demo_past, here, store, opened_at - HISTORY),
            HINT,
        )
        arrivals.start()
        return Console(here, store, lambda: _tidy_up(here, store, directory, arrivals), demo=demo).run()
    finally:
        store.close()


def _furnish(options: Options, store: JobStore) -> datetime:
    """Put the jobs of the last hour and the first ones into the queue, drain a GPU, and return the time."""
    actions, now = bootstrap.actions(store), bootstrap.clock().now()
    gpus = bootstrap.make_probe(options).latest().gpus
    record_past(store, actions, options.state, gpus, now)
    if len(gpus) > DRAINED:
        actions.drain([gpus[DRAINED].uuid], "fan noise, ticket 812")
    actions.submit(first_jobs())
    return now


def _here(options: Options, directory: Path) -> Options:
    """Return the options of a demo: own state directory, simulated GPUs, host processes, no scheduler left behind."""
    probe = options.probe if options.probe.simulated else ProbeSpec(simulated=GPUS)
    settings = replace(options.settings, scheduler=replace(SchedulerSettings(), hand_over="never"))
    return replace(options, state=directory / "state", probe=probe, runtime="process", settings=settings)


def _tidy_up(options: Options, store: JobStore, directory: Path, arrivals: Arrivals) -> None:
    """Stop new jobs, kill the demo's processes that still run, and remove its files."""
    arrivals.stop()
    for runtime in bootstrap.make_runtimes(options, store.store_id):
        for record in runtime.containers():
            runtime.kill(record.id)
        _wait_for_ends(runtime)
        runtime.close()
    shutil.rmtree(directory, ignore_errors=True)


def _wait_for_ends(runtime: Runtime) -> None:
    """Wait briefly for killed processes to end; one stuck in the kernel must not keep the demo from ending."""
    deadline = time.monotonic() + END_WITHIN
    while time.monotonic() < deadline:
        if all(record.state is not ContainerState.RUNNING for record in runtime.containers()):
            return
        time.sleep(0.02)


@click.command("demo")
@pass_session
def command(session: Session) -> int:
    """Open the console on eight simulated GPUs with real short jobs, in a throw-away state directory."""
    with terminal():
        return run(session.options)
