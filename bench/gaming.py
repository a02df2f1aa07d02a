"""Gain by tricks: one tenant of a trace games the scheduler, and the others submit honestly.

`python -m bench.gaming [RUNS [TRICK...]]` runs made-up traces through the real scheduler on a virtual clock. The wait
of a job is the time from when it was ready to its end, less the time it ran: waits between slices count. The ratio is
that of the tenant's mean wait to what it would have been with honest jobs: less than 1 pays.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from bench._measure import machine
from gputui.domain.action import Cancel, Edit, EditJobs, Hold, Release
from gputui.domain.job_spec import JobId
from gputui.domain.settings import PolicySettings, SchedulerSettings, Settings
from gputui.domain.state import JobState
from gputui.replay.trace import HOUR, Site, TraceJob, generate, prepare
from tests.engine.virtual import VirtualServer
from tests.factories import NOW

RUNS, TENANTS_OF_A_TRACE = 60, 3
JOBS, DAYS, LOAD = 150, 28.0 * 150 / 2500, 1.2
FEWEST = 5
"""Minimum number of jobs of an examined tenant."""
LEAD = 12 * HOUR
"""Time before a job is ready at which the tenant reserves its place in the queue."""
SLICE, THIN_SLICE = 4 * HOUR, HOUR / 2
AGAIN = 6 * HOUR
"""Wait before the first resubmission."""
SOON = HOUR
"""Time after which a tenant that asked for little asks for the real need of the job."""
PIECES = 4
SHORTEST = 600.0
"""Minimum honest mean wait in seconds: shorter ones give no useful ratio."""


@dataclass
class Game:
    """Run of a trace in which one tenant may use a trick."""

    server: VirtualServer
    last: dict[int, list[JobId]] = field(default_factory=dict)
    """Jobs as they were submitted, by their numbers in the trace."""

    def put(self, job: TraceJob, work: float | None = None, **changes: Any) -> JobId:
        """Submit the job with these changes, and track it under its number in the trace."""
        options = {"tenant": job.tenant, "limit": job.limit, **changes}
        job_id = self.server.submit(work or max(1.0, job.duration), job.gpus, **options)
        self.last[job.number] = [job_id]
        return job_id

    def is_waiting(self, job: TraceJob) -> bool:
        return all(self.server.job(job_id).state is JobState.PENDING for job_id in self.last[job.number])

    def waited(self, job: TraceJob) -> float:
        """Return the total wait of a job in seconds; of a job in pieces, their mean."""
        ids = self.last[job.number]
        return statistics.mean(self.server.ended[job_id] for job_id in ids) - job.submit - job.duration / len(ids)


Trick: TypeAlias = Callable[[Game, TraceJob], None]


def honest(game: Game, job: TraceJob) -> None:
    game.server.at(job.submit, lambda: game.put(job))


def without_limit(game: Game, job: TraceJob) -> None:
    game.server.at(job.submit, lambda: game.put(job, limit=None))


def in_slices(game: Game, job: TraceJob, most: float = SLICE) -> None:
    """Submit with a limit of four hours and retries that continue where the last attempt was ended."""
    limit = min(most, job.limit)
    game.server.at(job.submit, lambda: game.put(job, limit=limit, **_GOES_ON))


def in_thin_slices(game: Game, job: TraceJob) -> None:
    in_slices(game, job, THIN_SLICE)


def with_begin(game: Game, job: TraceJob) -> None:
    ready = NOW + timedelta(seconds=job.submit)
    game.server.at(max(0.0, job.submit - LEAD), lambda: game.put(job, begin_at=ready))
    game.server.at(job.submit, lambda: None)  # the scheduler looks when a job may begin


def with_hold(game: Game, job: TraceJob) -> None:
    def take() -> None:
        game.server.actions.act(Hold((game.put(job),)))
        game.server.at(job.submit, lambda: game.server.actions.act(Release(tuple(game.last[job.number]))))

    game.server.at(max(0.0, job.submit - LEAD), take)


def with_after(game: Game, job: TraceJob) -> None:
    """Submit a job without GPUs that runs until the real one is ready, and let the real one depend on it."""

    def take() -> None:
        before = game.server.submit(max(1.0, job.submit - game.server.now), 0, tenant=job.tenant)
        game.put(job, after=(before,))

    game.server.at(max(0.0, job.submit - LEAD), take)


def anew(game: Game, job: TraceJob) -> None:
    """Cancel the job and submit it again whenever it has waited for long."""

    def again() -> None:
        if game.is_waiting(job):
            game.server.actions.act(Cancel(tuple(game.last[job.number])))
            put()

    def put() -> None:
        game.put(job)
        game.server.at(game.server.now + AGAIN, again)

    game.server.at(job.submit, put)


def edited(game: Game, job: TraceJob) -> None:
    """Submit with a limit of 15 minutes, and set the real one when the job has waited for some time."""

    def ask_for_more() -> None:
        [job_id] = game.last[job.number]
        if game.is_waiting(job):
            limit = timedelta(seconds=job.limit)
            game.server.actions.act(EditJobs((job_id,), Edit(spec=MappingProxyType({"time_limit": limit}))))

    def put() -> None:
        game.put(job, limit=min(HOUR / 4, job.limit), **_GOES_ON)
        game.server.at(game.server.now + SOON, ask_for_more)

    game.server.at(job.submit, put)


def under_other_names(game: Game, job: TraceJob) -> None:
    """Submit each job for a tenant of its own."""
    game.server.at(job.submit, lambda: game.put(job, tenant=f"{job.tenant}-{job.number}"))


def in_pieces(game: Game, job: TraceJob) -> None:
    """Submit four jobs of a quarter of the work each, which may run concurrently."""

    def put() -> None:
        part = max(1.0, job.duration / PIECES)
        ids = [game.put(job, work=part, limit=max(60.0, job.limit / PIECES)) for _ in range(PIECES)]
        game.last[job.number] = ids

    game.server.at(job.submit, put)


_GOES_ON: Mapping[str, Any] = {"retries": 1000, "retry_on": ("TIMEOUT",), "backoff": timedelta(seconds=1)}

TRICKS: Mapping[str, Trick] = {
    "without limit": without_limit,
    "in slices": in_slices,
    "in thin slices": in_thin_slices,
    "with --begin": with_begin,
    "with hold": with_hold,
    "with --after": with_after,
    "submitted anew": anew,
    "edited": edited,
    "other names": under_other_names,
    "in pieces": in_pieces,
}


class Run(NamedTuple):
    """A tenant of a trace."""

    trace: Sequence[TraceJob]
    tenant: str

    def mean_wait(self, trick: Trick, directory: Path, policy: PolicySettings) -> float:
        """Return the tenant's mean wait with the trick, in seconds."""
        settings = Settings(SchedulerSettings(cpu_jobs=10_000), policy=policy)
        game = Game(VirtualServer(directory, 8, settings))
        for job in self.trace:
            (trick if job.tenant == self.tenant else honest)(game, job)
        game.server.run()
        return statistics.mean(game.waited(job) for job in self.trace if job.tenant == self.tenant)


def runs(most: int) -> list[Run]:
    """Return `count` runs: tenants with the most jobs of each trace, eight GPUs, load 1.2, bucketed limits."""
    found: list[Run] = []
    for seed in range(most):
        trace = prepare(generate(JOBS, seed, widest=8, days=DAYS), Site(8), LOAD, "bucket")
        trace = [replace(job, limit=max(job.limit, job.duration + 2)) for job in trace]
        counts = Counter(job.tenant for job in trace)
        mine = [tenant for tenant, count in counts.most_common(TENANTS_OF_A_TRACE) if count >= FEWEST]
        found += [Run(trace, tenant) for tenant in mine]
    return found[:most]


class Gain(NamedTuple):
    """Outcome of a trick over some runs."""

    of_means: float
    """The mean wait over that of honest jobs."""
    mean: float
    """The mean over the runs of the ratio of each."""
    better: float
    """Share of runs in which the trick gained more than 1 %."""
    runs: int


def gain(pairs: Sequence[tuple[float, float]]) -> Gain:
    """Return the gain, from the tenant's mean wait with the trick and without it in each run."""
    told = [(cunning, plain) for cunning, plain in pairs if plain >= SHORTEST]
    ratios = [cunning / plain for cunning, plain in told]
    of_means = sum(cunning for cunning, _ in told) / sum(plain for _, plain in told)
    return Gain(of_means, statistics.mean(ratios), sum(ratio < 0.99 for ratio in ratios) / len(ratios), len(told))


def main() -> None:
    print(machine(), flush=True)
    wanted = runs(int(sys.argv[1]) if len(sys.argv) > 1 else RUNS)
    policy = PolicySettings(predict=False)
    with tempfile.TemporaryDirectory() as folder:
        plain = [run.mean_wait(honest, Path(folder) / f"h{n}", policy) for n, run in enumerate(wanted)]
        print(f"honest: mean wait {statistics.mean(plain) / HOUR:.1f} h, {len(wanted)} runs", flush=True)
        for name in sys.argv[2:] or TRICKS:
            played = [run.mean_wait(TRICKS[name], Path(folder) / f"{name}{n}", policy) for n, run in enumerate(wanted)]
            found = gain(list(zip(played, plain, strict=True)))
            print(
                f"{name:<16} own wait x {found.of_means:.2f} (mean of ratios {found.mean:.2f}), "
                f"pays in {100 * found.better:.0f} % of {found.runs} runs",
                flush=True,
            )


if __name__ == "__main__":
    main()
