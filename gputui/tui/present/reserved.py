"""Texts about the reservations of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.snapshot import Snapshot, WindowState, WindowView
from gputui.domain.text import plain
from gputui.tui.present.times import minute

_SOON = timedelta(hours=24)


def reservations_by_gpu(snapshot: Snapshot) -> dict[str, list[WindowView]]:
    """Return the reservations of each reserved GPU, by its UUID, in the order of their start."""
    found: dict[str, list[WindowView]] = {}
    for window in snapshot.windows:
        for uuid in window.gpus:
            found.setdefault(uuid, []).append(window)
    return found


def kept_from(snapshot: Snapshot, tenant: str, priority: int) -> frozenset[str]:
    """Return the UUIDs of the GPUs that are reserved now for other jobs than such ones."""
    now = snapshot.taken_at
    return frozenset(
        uuid
        for view in snapshot.windows
        if view.state is not WindowState.RELEASED and view.window.start <= now < view.window.end
        if not view.window.admits(tenant, priority)
        for uuid in view.gpus
    )


def kept_words(windows: Iterable[WindowView], now: datetime) -> str:
    """Return `reserved for alice until 16:00` or `... from 14:00`, for the first relevant window within a day."""
    for view in windows:
        window = view.window
        if view.state is WindowState.RELEASED or window.end <= now or window.start - now > _SOON:
            continue
        when = f"until {minute(window.end, now)}" if window.start <= now else f"from {minute(window.start, now)}"
        return f"reserved for {_for_whom(view)} {when}"
    return ""


def _for_whom(view: WindowView) -> str:
    window = view.window
    if window.for_nobody:
        return f"nobody ({plain(window.name, 24)})"
    parts = [plain(window.tenant, 24)] if window.tenant is not None else []
    if window.priority is not None:
        parts.append(f"priority {window.priority}+")
    return " or ".join(parts)
