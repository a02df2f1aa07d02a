"""Fields of a record in gputui's own log that say which job, attempt and GPUs it is about."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from gputui.domain.job_spec import JobId

KEY = "gputui"
"""Attribute of the record that has them."""


class LogFields(Struct, frozen=True):
    """Job, attempt and GPUs that a log record is about."""

    job: JobId | None = None
    attempt: int | None = None
    gpus: tuple[str, ...] = ()
    """UUIDs."""


def about(job: JobId | None = None, attempt: int | None = None, gpus: Iterable[str] = ()) -> dict[str, object]:
    """Return the `extra` argument for a call to the logger."""
    return {KEY: LogFields(job, attempt, tuple(gpus))}
