"""`gputui demo`: the console on simulated GPUs, with real processes as jobs."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters, hosting
from gputui.cli import trainer
from gputui.cli.session import Session, pass_session
from gputui.config import Options, ProbeSpec
from gputui.console import startup
from gputui.console.startup import terminal
from gputui.domain.action import DrainGpus
from gputui.domain.conditions import keyed
from gputui.domain.container import ContainerState
from gputui.domain.errors import GputuiError, RuntimeFault, cause_of_exit
from gputui.domain.gpu import Gpu
from gputui.domain.gpu_history import TakenStep
from gputui.domain.job import Attempt
from gputui.domain.job_spec import GpuRequest, JobSpec, Submission
from gputui.domain.log_errors import find_error_line
from gputui.domain.settings import Settings
from gputui.domain.state import JobState
from gputui.domain.submit_action import SubmitJobs
from gputui.engine.saved_logs import log_path
from gputui.ports import JobStore
from gputui.ports.backend import Performer

GPUS = 8
DRAINED = 6
"""Index of the GPU that is drained."""
HISTORY = timedelta(hours=1)
HINT = f"Demo, simulated GPUs. {keyed('notices')} lists problems, {keyed('palette')} finds a command by name"
END_WITHIN = 3.0
"""Seconds to wait for killed processes to end."""


def run(options: Options) -> int:
    startup.limit_frame_rate(options)
    with startup.no_collections():
        directory = Path(tempfile.mkdtemp(prefix="gputui-demo-"))
        from gputui.console.console import Console  # Textual comes with it
        from gputui.console.own_log import log_to_file

        here, opened_at = _here(options, directory), bootstrap.clock().now()
        backend, furnished = bootstrap.open_backend(here), threading.Event()
        store = partial(hosting.store_of, backend)
        arrivals = Arrivals(store, backend)
        machine = hosting.DemoMachine(here, store)

        def prepare() -> None:
            try:
                furnish(here, store(), backend, opened_at)
            finally:
                furnished.set()
            arrivals.start()

        def past() -> Iterable[TakenStep]:
            furnished.wait()
            return hosting.demo_past(here, store(), opened_at - HISTORY)

        with closing(backend):
            log_to_file(here.state)
            return Console(
                here,
                backend,
                lambda feed: hosting.make_behind(
                    here, backend, feed, may_lead=True, host=partial(hosting.make_host, made=machine.adapters)
                ),
                may_lead=True,
                foreign=machine.foreign_use(),
                gpu_past=past,
                hint=HINT,
                prepare=prepare,
                tidy_up=lambda: _tidy_up(here, store(), directory, arrivals),
            ).run()


def furnish(options: Options, store: JobStore, actions: Performer, now: datetime) -> None:
    gpus = adapters.make_probe(options).latest().gpus
    record_past(store, actions, options.state, gpus, now)
    if len(gpus) > DRAINED:
        actions.act(DrainGpus((gpus[DRAINED].uuid,), "fan noise, ticket 812"))
    actions.act(SubmitJobs(tuple(first_jobs())))


def _here(options: Options, directory: Path) -> Options:
    """Return the options of a demo: own state directory, simulated GPUs, host processes, no background scheduler.

    Of the settings, those about other programs and people do not apply.
    """
    probe = options.probe if options.probe.simulated else ProbeSpec(simulated=GPUS)
    # nobody is to get mail about its jobs, nor Prometheus or a collector its figures
    usual = {name: getattr(Settings(), name) for name in ("hooks", "metrics", "report", "traces", "cluster")}
    settings = replace(options.settings, scheduler=replace(Settings().scheduler, hand_over="never"), **usual)
    return replace(options, state=directory / "state", probe=probe, runtime="process", settings=settings)


def _tidy_up(options: Options, store: JobStore, directory: Path, arrivals: Arrivals) -> None:
    arrivals.stop()
    for runtime in adapters.make_runtimes(options, store.store_id):
        for record in runtime.containers():
            runtime.kill(record.id)
        deadline = time.monotonic() + END_WITHIN  # one stuck in the kernel must not keep the demo from ending
        while time.monotonic() < deadline and any(
            record.state is ContainerState.RUNNING for record in runtime.containers()
        ):
            time.sleep(0.02)
        for record in runtime.containers():
            with suppress(RuntimeFault):  # one that does not end keeps its control groups
                runtime.remove(record.id)
        runtime.close()
    shutil.rmtree(directory, ignore_errors=True)


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


def record_past(store: JobStore, actions: Performer, directory: Path, gpus: Sequence[Gpu], now: datetime) -> None:
    known = [past for past in PAST if max(past.gpus) < len(gpus)]
    ids = actions.act(SubmitJobs(tuple(training(past.name, past.tenant, len(past.gpus), 200) for past in known))).ids
    with store.transaction() as transaction:
        for job_id, past in zip(ids, known, strict=True):
            uuids = tuple(gpus[i].uuid for i in past.gpus)
            options = {"fail_at": "130"} if past.fails else {}
            log = trainer.output(arguments(past.name, 200, **options), uuids).encode()
            path = directory / log_path(job_id, 1)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(log)
            began, ended = now - timedelta(minutes=past.began), now - timedelta(minutes=past.ended)
            job = store.get(job_id)
            end: dict[str, Any] = {
                "started_at": began,
                "ended_at": ended,
                "exit_code": int(past.fails),
                "cause": cause_of_exit(int(past.fails)),
            }
            error = find_error_line(log.splitlines()) if past.fails else ""
            attempt = Attempt(1, uuids, claimed_at=began, log_path=log_path(job_id, 1), error=error, **end)
            spec, submitted_at = replace(job.spec, time_limit=LIMIT), began - timedelta(minutes=2)
            state = JobState.FAILED if past.fails else JobState.COMPLETED
            transaction.put(replace(job, spec=spec, state=state, submitted_at=submitted_at, attempts=(attempt,), **end))


EVERY = 12.0
"""Seconds between two arrivals."""
MOST_WAITING = 12
"""Number of waiting jobs at which no further job arrives."""


def training(
    name: str,
    tenant: str,
    gpus: int | tuple[int, int],
    steps: int,
    *,
    priority: int = 50,
    retries: int = 0,
    **options: str,
) -> Submission:
    low, high = gpus if isinstance(gpus, tuple) else (gpus, gpus)
    spec = JobSpec(
        command=(sys.executable, "-m", "gputui.cli.trainer", *arguments(name, steps, **options)),
        name=name,
        tenant=tenant,
        gpus=GpuRequest(low, high),
        priority=priority,
        retries=retries,
        time_limit=timedelta(minutes=1 + -(-steps // 60)),  # about twice its duration
    )
    return Submission(spec)


def arguments(name: str, steps: int, **options: str) -> tuple[str, ...]:
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    return "--name", name, "--steps", str(steps), "--seed", str(sum(name.encode())), *words


def first_jobs() -> Iterable[Submission]:
    """Return a dozen jobs of three tenants; one fails and is retried, one is held."""
    yield training("segformer-city", "alice", 2, 260, priority=70)
    yield training("llama-7b-sft", "alice", 2, 900, priority=60)
    yield training("sdxl-lora", "bob", 2, 220, priority=55, retries=2, fail_at="40", fail_attempts="1")
    yield training("vit-large-pretrain", "bob", 2, 500, priority=55)
    yield training("whisper-finetune", "carol", 1, 160)
    yield training("bert-ner", "bob", 1, 60)
    yield training("llama-70b-eval", "alice", 6, 240)
    yield training("resnet-ablation-a", "alice", 1, 90)
    yield training("resnet-ablation-b", "alice", 1, 90)
    yield training("clip-retrieval", "bob", (1, 2), 200)
    yield training("speech-distill", "carol", 1, 120)
    yield replace(training("gpt-scaling-sweep", "bob", 4, 400), held=True)


_COMING = ("t5-summarize", "yolo-traffic", "bert-ranker", "unet-retina", "whisper-small", "clip-probe", "mamba-tiny")
_TENANTS = ("alice", "bob", "carol")


def coming_jobs(dice: random.Random) -> Iterator[Submission]:
    """Yield jobs without end; one in six fails with a traceback."""
    number = 0
    while True:
        number += 1
        name = f"{dice.choice(_COMING)}-{number}"
        tenant, gpus, steps = dice.choice(_TENANTS), dice.choice((1, 1, 1, 2)), dice.randrange(80, 180)
        if dice.random() < 1 / 6:
            yield training(name, tenant, gpus, steps, fail_at=str(dice.randrange(10, 40)))
        else:
            yield training(name, tenant, gpus, steps)


class Arrivals(threading.Thread):
    """Submits a job every few seconds, unless many wait."""

    def __init__(self, store: Callable[[], JobStore], actions: Performer, every: float = EVERY) -> None:
        super().__init__(name="demo-arrivals", daemon=True)
        self._store = store
        self._actions = actions
        self._every = every
        self._stopped = threading.Event()

    def run(self) -> None:
        coming = coming_jobs(random.Random(7))  # noqa: S311 - the same jobs each time
        while not self._stopped.wait(self._every):
            try:
                jobs = self._store().jobs().values()
                if sum(job.state is JobState.PENDING and not job.held for job in jobs) < MOST_WAITING:
                    self._actions.act(SubmitJobs((next(coming),)))
            except GputuiError:
                continue

    def stop(self) -> None:
        self._stopped.set()
        if self.is_alive():
            self.join(2.0)
