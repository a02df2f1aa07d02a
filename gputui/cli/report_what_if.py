"""Waits and use under other policies for the jobs of a report, by the replay of `gputui replay --history`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from msgspec import Struct

from gputui.cli import own_history, replay, replay_report, variants
from gputui.cli.output import Json
from gputui.cli.report_figures import Report
from gputui.cli.session import Session
from gputui.domain.accounting import Period
from gputui.domain.job import Job

if TYPE_CHECKING:
    from gputui.replay.metrics import Figures


class Replayed(Struct, frozen=True):
    """Figures by policy, with sentences that explain them."""

    jobs: int
    gpus: int
    figures: Mapping[str, Figures]
    told: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return a table as `gputui replay` prints it."""
        head = f"What if: {self.jobs:,} of these jobs, replayed on {self.gpus} GPUs"
        return ["", head, *replay_report.policies(self.figures, ()), *replay_report.wrapped(self.told)]

    def as_json(self) -> Json:
        """Return the figures with the keys of `gputui replay --json`."""
        policies = {name: asdict(each) for name, each in self.figures.items()}
        return {"jobs": self.jobs, "gpus": self.gpus, "policies": policies, "notes": list(self.told)}


def replayed(session: Session, found: Report) -> Replayed:
    """Replay the jobs that first started in the period and have ended."""
    with session.store() as store:
        known = [*store.jobs().values(), *store.past(found.period.since)]
    source = replay.of_history(session, _started(known, found.period))
    prepared = replay.Replay.of(source, None, None, None, None, None)
    base = variants.changed(source.settings, ())
    figures = prepared.figures(replay.POLICY_NAMES, base, [])
    told = own_history.told(source.own, figures, prepared.offered, prepared.limits) if source.own else []
    return Replayed(len(prepared.jobs), prepared.site.gpus, figures, tuple(told))


def _started(jobs: Iterable[Job], period: Period) -> Iterator[Job]:
    for job in jobs:
        first = next((attempt.started_at for attempt in job.attempts if attempt.started_at), None)
        if first is not None and period.since <= first < period.until:
            yield job
