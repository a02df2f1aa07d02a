"""The hour before the demo was opened: jobs that have ended, and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from gputui.cli import trainer
from gputui.cli.demo_jobs import arguments, training
from gputui.domain.cause import cause_of_exit
from gputui.domain.error_line import find_error_line
from gputui.domain.gpu import Gpu
from gputui.domain.job import Attempt, Job
from gputui.domain.state import JobState
from gputui.engine.actions.actions import Actions
from gputui.engine.files.logs import log_path
from gputui.ports import JobStore

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
