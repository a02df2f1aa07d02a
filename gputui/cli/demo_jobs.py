"""Jobs of the demo: those that it begins with, and those that come while it is open."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta

from msgspec.structs import replace

from gputui.domain.errors import GputuiError
from gputui.domain.job import GpuRequest, JobSpec, Submission
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.ports import JobStore

EVERY = 12.0
"""Seconds between two arrivals."""
MOST_WAITING = 12
"""Number of waiting jobs at which no further one comes."""


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
    """Return a training job that prints what such a job prints; a step takes half a second."""
    low, high = gpus if isinstance(gpus, tuple) else (gpus, gpus)
    spec = JobSpec(
        command=(sys.executable, "-m", "gputui.cli.trainer", *arguments(name, steps, **options)),
        name=name,
        tenant=tenant,
        gpus=GpuRequest(low, high),
        priority=priority,
        retries=retries,
        time_limit=timedelta(minutes=1 + -(-steps // 60)),  # about twice what it takes
    )
    return Submission(spec)


def arguments(name: str, steps: int, **options: str) -> tuple[str, ...]:
    """Return the arguments of the trainer."""
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
_FAILING = 1 / 6
"""Share of the jobs that fail."""
_TENANTS = ("alice", "bob", "carol")


def coming_jobs(dice: random.Random) -> Iterator[Submission]:
    """Yield jobs without end; one in six fails with a traceback."""
    number = 0
    while True:
        number += 1
        name = f"{dice.choice(_COMING)}-{number}"
        tenant, gpus, steps = dice.choice(_TENANTS), dice.choice((1, 1, 1, 2)), dice.randrange(80, 180)
        if dice.random() < _FAILING:
            yield training(name, tenant, gpus, steps, fail_at=str(dice.randrange(10, 40)))
        else:
            yield training(name, tenant, gpus, steps)


class Arrivals(threading.Thread):
    """Submits a job every few seconds, unless many wait."""

    def __init__(self, store: JobStore, actions: Actions, every: float = EVERY) -> None:
        super().__init__(name="demo-arrivals", daemon=True)
        self._store = store
        self._actions = actions
        self._every = every
        self._stopped = threading.Event()

    def run(self) -> None:
        """Submit jobs until stopped; one that the store refuses is left out."""
        coming = coming_jobs(random.Random(7))
        while not self._stopped.wait(self._every):
            try:
                if self._waiting() < MOST_WAITING:
                    self._actions.submit([next(coming)])
            except GputuiError:
                continue

    def _waiting(self) -> int:
        return sum(job.state is JobState.PENDING and not job.held for job in self._store.jobs().values())

    def stop(self) -> None:
        """Stop, and wait for a submission under way."""
        self._stopped.set()
        if self.is_alive():
            self.join(2.0)
