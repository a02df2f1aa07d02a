"""The settings as the operator's standing wishes have changed them: what a command set goes over the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from gputui.domain.settings import PolicySettings, Settings, Window
from gputui.domain.snapshot import Controls, Snapshot
from gputui.domain.window import WindowState, WindowView


def effective(settings: Settings, controls: Controls) -> Settings:
    """The settings that hold: the very same where nobody wished for others."""
    policy = in_force(settings.policy, controls)
    return settings if policy is settings.policy else replace(settings, policy=policy)


def in_force(policy: PolicySettings, controls: Controls) -> PolicySettings:
    """The policy that holds."""
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


def views(policy: PolicySettings, controls: Controls, now: datetime) -> tuple[WindowView, ...]:
    """The reservations that are not over, as far as the wishes and the clock tell; `policy` is the file's."""
    found = [(window, "file") for window in policy.reservations]
    found += [(window, "command") for window in controls.reservations]
    return tuple(
        _view(window, source, controls, policy.reservation_grace, now)
        for window, source in sorted(found, key=lambda pair: (pair[0].start, pair[0].name))
        if window.end > now
    )


def _view(window: Window, source: str, controls: Controls, grace: timedelta, now: datetime) -> WindowView:
    claimed, released = controls.claimed.get(window.key), controls.released.get(window.key)
    lapses = not (claimed or released or window.for_nobody)
    state = WindowState.UPCOMING if window.start > now else WindowState.ACTIVE
    return WindowView(
        window,
        WindowState.RELEASED if released else state,
        source,
        claimed,
        released,
        window.start + grace if lapses else None,
    )


def settled(controls: Controls, windows: Iterable[WindowView]) -> Controls:
    """The wishes, with what a look at the reservations found: who was claimed, and who was not in time."""
    claimed = {view.window.key: view.claimed_at for view in windows if view.claimed_at}
    released = {view.window.key: view.released_at for view in windows if view.released_at}
    if claimed == controls.claimed and released == controls.released:
        return controls
    return replace(controls, claimed=claimed, released=released)


def given_up(window: Window) -> Callable[[Snapshot], Snapshot]:
    """The change that ends a reservation before its time."""

    def change(snapshot: Snapshot) -> Snapshot:
        controls = snapshot.controls
        left = tuple(other for other in controls.reservations if other.key != window.key)
        return replace(snapshot, controls=replace(controls, reservations=left))

    return change


def reserved(window: Window) -> Callable[[Snapshot], Snapshot]:
    """The change that adds a reservation."""

    def change(snapshot: Snapshot) -> Snapshot:
        controls = snapshot.controls
        return replace(snapshot, controls=replace(controls, reservations=(*controls.reservations, window)))

    return change
