"""Limits of the values of a job's request, whoever wrote it: options and forms check them as texts, programs do not.

A value beyond them could stop the plan of the whole queue, as a time limit that ends after the last date does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gputui.domain.container import ExecRequest
from gputui.domain.errors import InputError
from gputui.domain.job_spec import (
    MAX_BYTES,
    MAX_ELEMENTS,
    MAX_NAME,
    MAX_NUMBER,
    MAX_PRIORITY,
    MAX_SIGNAL,
    MAX_TENANT,
    ContainerOptions,
    JobSpec,
    Submission,
)
from gputui.domain.text import MAX_DURATION, plain

if TYPE_CHECKING:
    from gputui.domain.gpu import Gpu

MAX_COMMENT = 512
MAX_INDEX = 10**9
MOST_GPUS = 100_000
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


def check_array(submission: Submission) -> None:
    """Raise InputError for elements that no array may have."""
    indices, limit = submission.array, submission.array_limit
    _check(len(indices) <= MAX_ELEMENTS, "--array", f"an array has at most {MAX_ELEMENTS} elements")
    _check(all(0 <= index <= MAX_INDEX for index in indices), "--array", f"indices are 0 to {MAX_INDEX}")
    _check(len(set(indices)) == len(indices), "--array", "an index is given twice")
    _check(limit is None or 1 <= limit <= MAX_NUMBER, "--array", "at least one element runs at a time")


def check_values(spec: JobSpec) -> None:
    """Raise InputError for values that no job may have."""
    _check_each_text(spec)
    for where, text, most in (
        ("--name", spec.name, MAX_NAME),
        ("--tenant", spec.tenant, MAX_TENANT),
        ("--comment", spec.comment, MAX_COMMENT),
    ):
        _check(plain(text) == text and len(text) <= most, where, f"one line of at most {most} characters")
    _check(0 <= spec.priority <= MAX_PRIORITY, "--priority", f"0 to {MAX_PRIORITY}")
    _check(-10_000 <= spec.nice <= 10_000, "--nice", "-10000 to 10000")
    _check(0 <= spec.retries <= 1000, "--retries", "0 to 1000")
    warning = spec.warning
    _check(warning is None or 1 <= warning.number <= MAX_SIGNAL, "--signal", f"signals are 1 to {MAX_SIGNAL}")
    for where, ids in (("--after", spec.after), ("--after-any", spec.after_any)):
        are_known = len(ids) <= MOST_GPUS and all(0 < each <= MAX_NUMBER for each in ids)
        _check(are_known, where, "at most 100000 ids of jobs")
    _check_times(spec)
    gpus = spec.gpus
    _check(0 <= gpus.minimum <= gpus.maximum <= MOST_GPUS, "--gpus", f"0 to {MOST_GPUS}, the least number first")
    _check(len(gpus.devices) <= MOST_GPUS, "--gpus", f"at most {MOST_GPUS} GPUs")
    sizes = {"--gpu-memory": gpus.memory, "--gpu-free": gpus.free_memory, "--gpu-memory-step": spec.gpu_memory_step}
    for where, size in sizes.items():
        _check(size is None or 0 < size <= MAX_NUMBER, where, "a size above 0")
    _check(not gpus.share or gpus.memory is not None, "--share", "a job that shares GPUs promises its memory of each")
    if spec.sweep:
        from gputui.domain import sweep  # few jobs belong to one

        sweep.check(spec.sweep, MAX_ELEMENTS)
    _check_options(spec.options)


def _check_times(spec: JobSpec) -> None:
    before = spec.warning.before if spec.warning is not None else None
    for where, span in (("--time-limit", spec.time_limit), ("--idle-timeout", spec.idle_timeout)):
        _check(span is None or timedelta(0) < span <= MAX_DURATION, where, "above 0, and at most 3650 days")
    for where, span in (("--backoff", spec.backoff), ("--signal", before)):
        _check(span is None or timedelta(0) <= span <= MAX_DURATION, where, "0 to 3650 days")
    if (begin := spec.begin_at) is not None:
        _check(begin.tzinfo is not None, "--begin", "a time needs its offset from UTC")
        _check(_EARLIEST <= begin <= _LATEST, "--begin", "a time from 1970 to 2200")


def _check_options(options: ContainerOptions) -> None:
    stop = options.stop_timeout
    _check(stop is None or 0 <= stop <= 3600, "--stop-timeout", "0 to 3600 seconds")
    for path, value in _parts(options, ""):
        where = f"--{path.replace('_', '-')}"
        if isinstance(value, timedelta):
            _check(timedelta(0) <= value <= MAX_DURATION, where, "0 to 3650 days")
        elif isinstance(value, int | float):
            _check(math.isfinite(value) and abs(value) <= 2**63 - 1, where, "it is no number that fits")


def check_execution(request: ExecRequest) -> None:
    """Raise InputError for a command that cannot be run in a job: some engines never answer one that is too long."""
    _check(any(request.command), "command", "a command has at least one word")
    _check_each_text(request)
    _check(0 <= request.rows < 2**16 and 0 <= request.columns < 2**16, "rows, columns", "0 to 65535")


def _check_each_text(value: Struct) -> None:
    for path, text in _parts(value, ""):
        if isinstance(text, str):
            _check("\0" not in text, path, "it has a NUL character")
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                size = MAX_BYTES + 1
            _check(size <= MAX_BYTES, path, f"UTF-8 of at most {MAX_BYTES} bytes")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the texts, numbers and durations in a value, each with the name of its field."""
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from _parts(getattr(value, name), name)
    elif isinstance(value, tuple):
        for each in value:
            yield from _parts(each, path)
    elif value is not None and not isinstance(value, bool):
        yield path, value


def _check(is_right: bool, where: str, rule: str) -> None:
    if not is_right:
        raise InputError("is out of range", where=where, hint=rule)


def check_gpus(
    submissions: Iterable[Submission],
    known_gpus: Callable[[], Sequence[Gpu]],
    where: str = "--gpus",
    anyway: str = "--anyway",
) -> None:
    """Raise InputError for a job that asks for GPUs that the server does not have. Skipped if the GPUs are unknown."""
    asking = [submission.spec for submission in submissions if submission.spec.gpus.minimum]
    gpus = known_gpus() if asking else ()
    if not gpus:
        return
    from gputui.domain.policy.placement import shortage  # only where the GPUs are known

    for spec in asking:
        if lack := shortage(spec.gpus, gpus):
            raise InputError(
                f"job {spec.name} {lack}", where=where, hint=f"{anyway} queues it until such GPUs are available"
            )
