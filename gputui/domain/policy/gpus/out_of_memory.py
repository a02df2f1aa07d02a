"""Attempts that ran out of GPU memory: how they are recognised, and the request of the next attempt."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from gputui.domain.cause import Blame, Cause, CauseCode
from gputui.domain.job import Job
from gputui.domain.state import JobState
from gputui.domain.text import plain
from gputui.domain.units import format_size

_TAIL = 50
"""Number of last lines of an attempt's output that are searched."""
_SIGNS = (b"CUDA out of memory", b"torch.OutOfMemoryError", b"OutOfMemoryError: CUDA", b"CUBLAS_STATUS_ALLOC_FAILED")
_SHOWN = 160


def may_have_run_out(job: Job, cause: Cause | None) -> bool:
    """Return whether its ended attempt may have run out of GPU memory: it had GPUs, failed, and was not told to end."""
    if cause is None or cause.blame is not Blame.JOB:
        return False
    if cause.code in {CauseCode.OUT_OF_MEMORY, CauseCode.END_UNKNOWN}:
        return False
    return bool(job.gpus) and job.stopping is None


def find_sign(lines: Iterable[bytes]) -> str:
    """Return the last line that reports it, without control characters; empty if there is none."""
    told = [line for line in deque(lines, _TAIL) if any(sign in line for sign in _SIGNS)]
    return plain(told[-1][:4096].decode(errors="replace").strip(), _SHOWN) if told else ""


def out_of_memory_cause(sign: str, exit_code: int | None) -> Cause:
    """Return the cause for such a line."""
    return Cause(CauseCode.GPU_OUT_OF_MEMORY, f"out of GPU memory (exit code {exit_code}): {sign}")


def ask_for_more(job: Job, totals: Mapping[str, int]) -> Job:
    """Return the job with its request raised by its step, if it waits again after running out of GPU memory.

    `totals` are the bytes of all known GPUs by UUID; the request never exceeds the largest.
    """
    step, cause = job.spec.gpu_memory_step, job.cause
    if not step or job.state is not JobState.PENDING or cause is None or cause.code is not CauseCode.GPU_OUT_OF_MEMORY:
        return job
    had = [totals[uuid] for uuid in job.attempts[-1].gpus if uuid in totals]
    before = job.spec.gpus.memory or min(had, default=0)
    after = min(before + step, max((before, *totals.values())) if totals else before + step)
    words = f"; the next attempt asks for {format_size(after)} per GPU"
    if after <= before:
        words = f"; no GPU here has more than {format_size(before)}, so the next attempt asks for no more"
    told = replace(cause, text=cause.text + words)
    spec = replace(job.spec, gpus=replace(job.spec.gpus, memory=after)) if after > before else job.spec
    return job.evolve(spec=spec, cause=told).with_attempt(cause=told)
