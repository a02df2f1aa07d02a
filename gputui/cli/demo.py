"""`gputui demo`: the console on simulated GPUs, with real processes as jobs."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import click

from gputui import bootstrap
from gputui.cli import serving
from gputui.cli.session import Session, pass_session
from gputui.cli.slow import prepare
from gputui.cli.terminal import terminal
from gputui.config import Options, ProbeSpec
from gputui.domain.container import ContainerState
from gputui.domain.job import GpuRequest, JobSpec, Submission
from gputui.domain.settings import SchedulerSettings
from gputui.ports import JobStore, Runtime

GPUS = 8
END_WITHIN = 3.0
"""Seconds."""


def _training(
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
    seed = sum(name.encode())
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    command = ("-m", "gputui.cli.trainer", "--name", name, "--steps", str(steps), "--seed", str(seed), *words)
    spec = JobSpec(
        command=(sys.executable, *command),
        name=name,
        tenant=tenant,
        gpus=GpuRequest(low, high),
        priority=priority,
        retries=retries,
        time_limit=timedelta(minutes=1 + -(-steps // 60)),  # about twice what it takes
    )
    return Submission(spec)


def submissions() -> Iterable[Submission]:
    """A dozen jobs of two tenants: one that fails and is tried again, one too wide to start yet."""
    yield _training("llama-7b-sft", "alice", 2, 900, priority=60)
    yield _training("vit-large-pretrain", "bob", 2, 500)
    yield _training("whisper-finetune", "alice", 1, 160)
    yield _training("bert-ner", "bob", 1, 60)
    yield _training("sdxl-lora", "bob", 1, 220, retries=2, fail_at="18", fail_attempts="1")
    yield _training("resnet-ablation-a", "alice", 1, 90)
    yield _training("llama-70b-eval", "alice", 8, 240, priority=40)
    yield _training("resnet-ablation-b", "alice", 1, 90)
    yield _training("clip-retrieval", "bob", (1, 2), 200)
    yield _training("speech-distill", "bob", 1, 120)
    yield _training("segformer-city", "alice", 2, 260, priority=70)
    yield _training("unet-medical", "bob", 1, 140)
    yield replace(_training("gpt-scaling-sweep", "bob", 4, 400), held=True)


def run(options: Options) -> int:
    """Show the console on a throw-away state directory; nothing of it is left afterwards."""
    prepare(options)
    from gputui.cli.console import Console  # Textual comes with it

    directory = Path(tempfile.mkdtemp(prefix="gputui-demo-"))
    here = _here(options, directory)
    store = bootstrap.open_store(here)
    try:
        serving.log_to_file(here.state)
        bootstrap.actions(store).submit(submissions())
        return Console(here, store, lambda: _tidy_up(here, store, directory)).run()
    finally:
        store.close()


def _here(options: Options, directory: Path) -> Options:
    """The options of a demo: its own state, simulated GPUs, host processes, and no scheduler left behind."""
    probe = options.probe if options.probe.simulated else ProbeSpec(simulated=GPUS)
    settings = replace(options.settings, scheduler=replace(SchedulerSettings(), hand_over="never"))
    return replace(options, state=directory / "state", probe=probe, runtime="process", settings=settings)


def _tidy_up(options: Options, store: JobStore, directory: Path) -> None:
    """End what still runs (make-believe, and nobody would look after it), and leave no file behind."""
    for runtime in bootstrap.make_runtimes(options, store.store_id):
        for record in runtime.containers():
            runtime.kill(record.id)
        _wait_for_ends(runtime)
        runtime.close()
    shutil.rmtree(directory, ignore_errors=True)


def _wait_for_ends(runtime: Runtime) -> None:
    """Let what was killed end, for a moment: a process stuck in the kernel must not keep the demo from ending."""
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
