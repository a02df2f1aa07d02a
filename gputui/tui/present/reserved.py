"""Texts about the reservations of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.snapshot import Snapshot, WindowState, WindowView
from gputui.domain.text import minute, plain


def reservations_by_gpu(snapshot: Snapshot) -> dict[str, list[WindowView]]:
    """Return the reservations of each reserved GPU, by its UUID, in the order of their start.

    One over any GPUs chooses anew until it begins, so no GPU is its own before.
    """
    found: dict[str, list[WindowView]] = {}
    for view in snapshot.windows:
        for uuid in view.gpus if view.window.gpus or view.state is not WindowState.UPCOMING else ():
            found.setdefault(uuid, []).append(view)
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
    """Return `reserved for alice until 16:00`, for the first relevant window within a day.

    One that has not begun is `from 14:00 reserved for alice`: where it is cut, it must not look like a present one.
    """
    for view in windows:
        window = view.window
        if view.state is WindowState.RELEASED or window.end <= now or window.start - now > timedelta(hours=24):
            continue
        parts = [plain(window.tenant, 24)] if window.tenant is not None else []
        parts += [] if window.priority is None else [f"priority {window.priority}+"]
        whom = f"nobody ({plain(window.name, 24)})" if window.for_nobody else " or ".join(parts)
        words = f"reserved for {whom}"
        is_now = window.start <= now
        return f"{words} until {minute(window.end, now)}" if is_now else f"from {minute(window.start, now)} {words}"
    return ""
