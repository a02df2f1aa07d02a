"""GPU time of attempts by tenant: a sum that never falls, and that agrees with the attempts' own times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime

from gputui.domain.job import Attempt


class GpuTime:
    """GPU-seconds since a term began.

    An attempt counts by the clock while it runs, and by its recorded end afterwards, which lies a moment before the
    tick that heard of it. The sum waits for as long, instead of falling: Prometheus would take that for a restart.
    """

    def __init__(self) -> None:
        self._since: datetime | None = None
        self._ended: defaultdict[str, float] = defaultdict(float)
        self._shown: defaultdict[str, float] = defaultdict(float)

    def begin(self, now: datetime) -> None:
        """Count from now on, unless that has begun."""
        self._since = self._since or now

    def end(self, tenant: str, attempt: Attempt) -> None:
        """Count an attempt that has ended."""
        if attempt.ended_at is not None:
            self._ended[tenant] += self._seconds(attempt, attempt.ended_at)

    def passed(self, running: Iterable[tuple[str, Attempt]], now: datetime) -> Iterator[tuple[str, float]]:
        """Yield by how much the sum of each tenant has grown; `running` are the attempts under way, by tenant."""
        sums = dict(self._ended)
        for tenant, attempt in running:
            sums[tenant] = sums.get(tenant, 0.0) + self._seconds(attempt, now)
        for tenant, seconds in sums.items():
            if seconds > self._shown[tenant]:
                yield tenant, seconds - self._shown[tenant]
                self._shown[tenant] = seconds

    def _seconds(self, attempt: Attempt, end: datetime) -> float:
        if attempt.started_at is None or self._since is None:
            return 0.0
        seconds = (end - max(attempt.started_at, self._since)).total_seconds()
        return max(0.0, seconds) * len(attempt.gpus) * attempt.gpu_share
