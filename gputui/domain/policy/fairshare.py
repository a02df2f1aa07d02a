"""Who has used how much: GPU-seconds that count for less the older they are.

Slurm's classic fair share (priority_multifactor, classic_fair_share): F = 2^(-U/S), where U is a tenant's part of all
that was used and S its part of all weights. F is 1 for who used nothing and 0.5 for who used exactly its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

_FAR = 500.0
"""So many half-lives from its origin a ledger is moved, long before a float would overflow."""


class Ledger:
    """GPU-seconds by tenant, decayed exactly, those of running jobs up to the very moment asked about.

    A GPU held from a to b is worth, seen from the origin, K (2^(b/H) - 2^(a/H)) with K = H / ln 2: the integral of
    2^(t/H). So a start subtracts, an end adds, and nothing is ever summed anew.
    """

    def __init__(self, half_life: float, origin: float) -> None:
        self._half_life = half_life
        self._origin = origin
        self._worth: dict[str, float] = {}
        self._held: dict[str, float] = {}

    def copy(self) -> Ledger:
        """A ledger that can go on without this one."""
        other = Ledger(self._half_life, self._origin)
        other._worth, other._held = dict(self._worth), dict(self._held)
        return other

    def credit(self, tenant: str, gpu_seconds: float, at: float) -> None:
        """Count what was used before, already decayed to `at`."""
        grown = self._grown(at)  # first: it may move the origin
        self._worth[tenant] = self._worth.get(tenant, 0.0) + gpu_seconds * grown

    def begin(self, tenant: str, gpus: float, at: float) -> None:
        """A job of that tenant takes GPUs."""
        self._add(tenant, -gpus, at)
        self._held[tenant] = self._held.get(tenant, 0) + gpus

    def end(self, tenant: str, gpus: float, at: float) -> None:
        """A job of that tenant gives its GPUs back."""
        self._add(tenant, gpus, at)
        self._held[tenant] -= gpus

    def used(self, now: float) -> dict[str, float]:
        """GPU-seconds of each tenant, decayed to `now`."""
        grown = self._grown(now)
        whole = self._half_life / math.log(2)
        return {
            tenant: max(0.0, worth / grown + self._held.get(tenant, 0) * whole) for tenant, worth in self._worth.items()
        }

    def _add(self, tenant: str, gpus: float, at: float) -> None:
        self.credit(tenant, gpus * self._half_life / math.log(2), at)

    def _grown(self, at: float) -> float:
        """How much more a second at `at` is worth than one at the origin."""
        lives = (at - self._origin) / self._half_life
        if lives > _FAR:
            shrink = 2.0**-lives
            self._worth = {tenant: worth * shrink for tenant, worth in self._worth.items()}
            self._origin, lives = at, 0.0
        return float(2.0**lives)


def factors(used: Mapping[str, float], weights: Mapping[str, float], tenants: Iterable[str]) -> dict[str, float]:
    """F of each tenant: those named, and all who used anything, share what there is by their weights (default 1)."""
    everyone = {*used, *tenants}
    total = math.fsum(used.values())
    shares = math.fsum(weights.get(tenant, 1.0) for tenant in everyone) or 1.0
    return {
        # rounded, so that what is the same in truth is the same here, in whichever order it was added up
        tenant: round(factor(used.get(tenant, 0.0) / total if total else 0.0, weights.get(tenant, 1.0) / shares), 9)
        for tenant in everyone
    }


def factor(usage: float, share: float) -> float:
    """F = 2^(-U/S); 0 for a tenant without any share."""
    return float(2.0 ** -min(usage / share, 1000.0)) if share > 0 else 0.0
