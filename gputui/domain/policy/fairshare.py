"""Fair share: GPU-seconds used by each tenant, decayed with age.

Slurm's classic fair share (priority_multifactor, classic_fair_share): F = 2^(-U/S), where U is a tenant's part of all
use and S its part of all weights. F is 1 for a tenant that used nothing and 0.5 for one that used exactly its share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

_FAR = 500.0
"""Number of half-lives after which the origin is moved, long before a float would overflow."""


class UsageLedger(Struct, eq=False):
    """GPU-seconds by tenant, decayed exactly, including running jobs up to the time of the query.

    A GPU held from a to b is worth, as seen from the origin, K (2^(b/H) - 2^(a/H)) with K = H / ln 2: the integral of
    2^(t/H). So a start subtracts, an end adds, and sums are never recomputed.
    """

    half_life: float
    origin: float
    worth: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)

    def copy(self) -> UsageLedger:
        """Return an independent copy."""
        return UsageLedger(self.half_life, self.origin, dict(self.worth), dict(self.held))

    def credit(self, tenant: str, gpu_seconds: float, at: float) -> None:
        """Add earlier use, already decayed to `at`."""
        grown = self._grown(at)  # first, since it may move the origin
        self.worth[tenant] = self.worth.get(tenant, 0.0) + gpu_seconds * grown

    def begin(self, tenant: str, gpus: float, at: float) -> None:
        """Record that a job of the tenant takes GPUs."""
        self._add(tenant, -gpus, at)
        self.held[tenant] = self.held.get(tenant, 0) + gpus

    def end(self, tenant: str, gpus: float, at: float) -> None:
        """Record that a job of the tenant releases GPUs."""
        self._add(tenant, gpus, at)
        self.held[tenant] -= gpus

    def used(self, now: float) -> dict[str, float]:
        """GPU-seconds of each tenant, decayed to `now`."""
        grown = self._grown(now)
        whole = self.half_life / math.log(2)
        return {
            tenant: max(0.0, worth / grown + self.held.get(tenant, 0) * whole) for tenant, worth in self.worth.items()
        }

    def _add(self, tenant: str, gpus: float, at: float) -> None:
        self.credit(tenant, gpus * self.half_life / math.log(2), at)

    def _grown(self, at: float) -> float:
        """Return the weight of a second at `at` relative to one at the origin."""
        lives = (at - self.origin) / self.half_life
        if lives > _FAR:
            shrink = 2.0**-lives
            self.worth = {tenant: worth * shrink for tenant, worth in self.worth.items()}
            self.origin, lives = at, 0.0
        return float(2.0**lives)


def usage_ratios(used: Mapping[str, float], weights: Mapping[str, float], tenants: Iterable[str]) -> dict[str, float]:
    """Return U/S of each tenant: its part of all use, over its share, which is its part of all weights.

    Counts the named tenants and all that used anything; the default weight is 1.
    """
    everyone = {*used, *tenants}
    total = math.fsum(used.values())
    shares = math.fsum(weights.get(tenant, 1.0) for tenant in everyone) or 1.0
    return {
        # rounded, so that equal values compare equal whatever the order of summation
        tenant: round(
            usage_ratio(used.get(tenant, 0.0) / total if total else 0.0, weights.get(tenant, 1.0) / shares), 9
        )
        for tenant in everyone
    }


def usage_ratio(part: float, share: float) -> float:
    """Return U/S; a tenant without a share has exceeded it, whatever it used."""
    return min(part / share, _MOST) if share > 0 else _MOST


def fair_share_factor(used: float) -> float:
    """Return F = 2^(-U/S) of U/S."""
    return float(2.0**-used) if used < _MOST else 0.0


_MOST = 1000.0
