"""GPU usage of each tenant in jobs that have moved to history, for fair share. A worker reads it, as it takes long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import datetime, timedelta

from gputui.domain.errors import StoreError
from gputui.domain.snapshot import Usage
from gputui.ports import JobStore

log = logging.getLogger(__name__)

REFRESH = timedelta(minutes=10)
"""Time between two readings of the history; jobs that moved there later do not count until the next."""
_HALF_LIVES = 8
"""Half-lives that are read; older usage would count for less than half a percent of itself."""


class PastUsage:
    """Cache of the past usage, refreshed in the background; the last reading counts meanwhile."""

    def __init__(self, store: JobStore, half_life: timedelta, workers: Executor, wake: Callable[[], None]) -> None:
        self._store = store
        self._half_life = half_life
        self._workers = workers
        self._wake = wake
        self._usage = Usage()
        self._asked_at: datetime | None = None
        self._is_reading = False

    def at(self, now: datetime) -> Usage:
        """Return the last reading; start a new one in a worker if it is older than `REFRESH`. Never blocks."""
        is_old = self._asked_at is None or abs(now - self._asked_at) > REFRESH
        if is_old and not self._is_reading:
            self._asked_at, self._is_reading = now, True
            self._workers.submit(self._read, now)
        return self._usage

    def _read(self, now: datetime) -> None:
        try:
            self._usage = past_usage(self._store, self._half_life, now)
        except StoreError as error:  # fair share is less exact, but nothing has to wait
            log.warning("past usage cannot be read: %s", error)
        except Exception:  # the border of a worker
            log.exception("reading past usage")
        finally:
            self._is_reading = False
        self._wake()


def past_usage(store: JobStore, half_life: timedelta, now: datetime) -> Usage:
    """Return GPU-seconds of each tenant, decayed to `now` from the end of each attempt."""
    used: dict[str, float] = {}
    for job in store.history(now - _HALF_LIVES * half_life):
        for attempt in job.attempts:
            if attempt.gpus and attempt.started_at and attempt.ended_at:
                gpus = len(attempt.gpus) * attempt.gpu_share
                seconds = (attempt.ended_at - attempt.started_at).total_seconds() * gpus
                decay = 0.5 ** (max(now - attempt.ended_at, timedelta(0)) / half_life)
                used[job.spec.tenant] = used.get(job.spec.tenant, 0.0) + max(0.0, seconds) * decay
    return Usage(now, used)
