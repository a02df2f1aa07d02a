"""Policies a trace is replayed under: the product's own decision, and what people do instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from gputui.domain.settings import PolicySettings
from gputui.replay import baselines
from gputui.replay.baselines import static_equal
from gputui.replay.metrics import Figures, figures, mean_figures
from gputui.replay.simulation import TraceReplay
from gputui.replay.trace import Ran, Site, TraceJob

__all__ = ["POLICIES", "Policy", "Ran", "plan"]

Policy: TypeAlias = Callable[[Sequence[TraceJob], Site], Iterator[Ran]]


def plan(jobs: Sequence[TraceJob], site: Site, settings: PolicySettings | None = None) -> Iterator[Ran]:
    """Yield what `plan()` decides, from the same lines of code, at every submission and every end."""
    yield from TraceReplay(jobs, site, settings or PolicySettings()).run()


def _baseline(play: Callable[[Sequence[TraceJob], Site], Iterator[tuple[TraceJob, float, float, int]]]) -> Policy:
    def replayed(jobs: Sequence[TraceJob], site: Site) -> Iterator[Ran]:
        return (Ran(*each) for each in play(jobs, site))

    return replayed


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "plan": plan,
        "fifo": _baseline(baselines.fifo),
        "easy": _baseline(baselines.easy),
        "saf": _baseline(baselines.saf),
        "greedy": _baseline(baselines.greedy),
        "static-equal": _baseline(baselines.static_equal),
        "static-proportional": _baseline(baselines.static_proportional),
        "host-lease": _baseline(baselines.host_lease),
    }
)
"""Policies by name; `plan` is gputui's own."""


DEALS = 8
"""Number of deals, always the same ones: an equal split depends on which tenants share a part."""


def measure(policy: str, jobs: Sequence[TraceJob], site: Site, settings: PolicySettings | None = None) -> Figures:
    """Return the figures of a policy, `plan` by these settings; of the equal split the means over several deals."""
    if policy == "plan":
        return figures(list(plan(jobs, site, settings)), site.gpus)
    if policy == "static-equal":
        return mean_figures([dealt(jobs, site, deal) for deal in range(DEALS)])
    return figures(list(POLICIES[policy](jobs, site)), site.gpus)


def dealt(jobs: Sequence[TraceJob], site: Site, deal: int | None) -> Figures:
    """Return the figures of one equal split; None deals by the alphabet."""
    return figures([Ran(*each) for each in static_equal(jobs, site, deal)], site.gpus)
