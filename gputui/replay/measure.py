"""What each policy makes of a trace, in figures."""

from __future__ import annotations

from collections.abc import Sequence

from gputui.domain.settings import PolicySettings
from gputui.replay.baselines import static_equal
from gputui.replay.metrics import Figures, figures, mean_figures
from gputui.replay.policies import POLICIES, Ran, plan
from gputui.replay.trace import Site, TraceJob

DEALS = 8
"""An equal split depends on who shares a part with whom, so it is measured over so many deals."""


def measure(policy: str, jobs: Sequence[TraceJob], site: Site, settings: PolicySettings | None = None) -> Figures:
    """Its figures, ours by these settings; of the equal split the means over several deals, always the same ones."""
    if policy == "plan":
        return figures(list(plan(jobs, site, settings)), site.gpus)
    if policy == "static-equal":
        return mean_figures([dealt(jobs, site, deal) for deal in range(DEALS)])
    return figures(list(POLICIES[policy](jobs, site)), site.gpus)


def dealt(jobs: Sequence[TraceJob], site: Site, deal: int | None) -> Figures:
    """Those of one equal split; None deals by the alphabet."""
    return figures([Ran(*each) for each in static_equal(jobs, site, deal)], site.gpus)
