"""Effective settings: the settings file, overridden by the operator's commands."""

from __future__ import annotations

from msgspec.structs import replace

from gputui.domain.settings import PolicySettings, Settings
from gputui.domain.snapshot import Controls


def effective_settings(settings: Settings, controls: Controls) -> Settings:
    """Return the effective settings; the same object if nothing is overridden."""
    policy = effective_policy(settings.policy, controls)
    return settings if policy is settings.policy else replace(settings, policy=policy)


def effective_policy(policy: PolicySettings, controls: Controls) -> PolicySettings:
    """Return the effective policy."""
    if not (controls.reservations or controls.tenants or controls.standing):
        return policy
    tenants = {tenant.name: tenant for tenant in (*policy.tenants, *controls.tenants)}
    standing = controls.standing.priority if controls.standing else policy.standing_priority
    return replace(
        policy,
        tenants=tuple(tenants.values()),
        reservations=(*policy.reservations, *controls.reservations),
        standing_priority=standing,
    )
