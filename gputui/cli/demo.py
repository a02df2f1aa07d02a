"""`gputui demo`: the console on simulated GPUs, with real processes as jobs."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from msgspec.structs import replace

from gputui import bootstrap
from gputui.cli import trainer
from gputui.cli.demo_jobs import Arrivals, arguments, first_jobs, training
from gputui.cli.session import Session, pass_session
from gputui.config import Options, ProbeSpec
from gputui.console import serving
from gputui.console.terminal import terminal
from gputui.domain.cause import cause_of_exit
from gputui.domain.container import ContainerState
from gputui.domain.error_line import find_error_line
from gputui.domain.gpu import Gpu
from gputui.domain.job import Attempt, Job
from gputui.domain.settings import SchedulerSettings
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.engine.files.logs import log_path
from gputui.ports import JobStore, Runtime
from gputui.tui.keys import keyed

GPUS = 8
DRAINED = 6
"""Index of the GPU that is drained."""
HISTORY = timedelta(hours=1)
HINT = (
    f"Demo, simulated GPUs: {keyed('detail')} opens a row, {keyed('submit')} submits, "
    f"{keyed('notices')} lists problems, {keyed('help')} all keys"
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


LIMIT = timedelta(hours=1)
"""Time limit of each."""


class PastJob(NamedTuple):
    """A job that has ended, with its times in minutes before now."""

    name: str
    tenant: str
    gpus: tuple[int, ...]
    """Indices."""
    began: float
    ended: float
    fails: bool = False


PAST = (
    PastJob("resnet-baseline", "alice", (6,), 61, 27),
    PastJob("mistral-7b-dpo", "alice", (0, 1), 60, 21),
    PastJob("vit-base-sweep", "bob", (2,), 58, 40),
    PastJob("llama-13b-reward", "alice", (4, 7), 57, 16),
    PastJob("whisper-base", "carol", (3,), 55, 31),
    PastJob("clip-zero-shot", "bob", (3,), 29, 9),
    PastJob("sdxl-lora-1024", "bob", (2,), 38, 12, fails=True),
    PastJob("bert-squad", "carol", (0,), 19, 0.1),
    PastJob("resnet-distill", "bob", (1,), 18, 0.05),
    PastJob("t5-translate", "alice", (4,), 14, 0.15),
    PastJob("yolo-parking", "carol", (7,), 13, 0.1),
    PastJob("vit-distill", "carol", (2,), 11, 0.05),
    PastJob("clip-rerank", "bob", (3,), 8, 0.1),
)


def record_past(store: JobStore, actions: Actions, directory: Path, gpus: Sequence[Gpu], now: datetime) -> None:
    """Put the jobs that have ended into the queue, with their logs."""
    known = [past for past in PAST if max(past.gpus) < len(gpus)]
    ids = actions.submit([training(past.name, past.tenant, len(past.gpus), 200) for past in known])
    with store.transaction() as transaction:
        for job_id, past in zip(ids, known, strict=True):
            uuids = tuple(gpus[i].uuid for i in past.gpus)
            log = _write_log(directory, job_id, past, uuids)
            transaction.put(_ended(store.get(job_id), past, uuids, log, now))


def _write_log(directory: Path, job_id: int, past: PastJob, uuids: Sequence[str]) -> bytes:
    """Write what the job has printed, and return it."""
    options = {"fail_at": "130"} if past.fails else {}
    log = trainer.output(arguments(past.name, 200, **options), uuids).encode()
    path = directory / log_path(job_id, 1)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_bytes(log)
    return log


def _ended(job: Job, past: PastJob, uuids: tuple[str, ...], log: bytes, now: datetime) -> Job:
    began, ended = now - timedelta(minutes=past.began), now - timedelta(minutes=past.ended)
    code = int(past.fails)
    error = find_error_line(log.splitlines()) if past.fails else ""
    attempt = Attempt(
        1,
        uuids,
        claimed_at=began,
        started_at=began,
        ended_at=ended,
        exit_code=code,
        cause=cause_of_exit(code),
        log_path=log_path(job.id, 1),
        error=error,
    )
    return replace(
        job,
        spec=replace(job.spec, time_limit=LIMIT),
        state=JobState.FAILED if past.fails else JobState.COMPLETED,
        submitted_at=began - timedelta(minutes=2),
        started_at=began,
        ended_at=ended,
        exit_code=code,
        cause=attempt.cause,
        attempts=(attempt,),
    )
