"""Who holds a GPU, for whom it is kept, and what is wrong with it: in words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from gputui.domain.gpu import GpuProcess, GpuView, Holder
from gputui.domain.job import Job
from gputui.domain.text import plain
from gputui.domain.units import format_duration, format_size
from gputui.domain.window import WindowState, WindowView
from gputui.tui.present.times import minute

_ID = re.compile("[0-9a-f]{64}")
_SOON = timedelta(hours=24)
_MINUTE = timedelta(minutes=1)


def kept_words(windows: Iterable[WindowView], now: datetime) -> str:
    """`kept for alice until 16:00`, `kept for alice from 14:00`: the first window that matters within a day."""
    for view in windows:
        window = view.window
        if view.state is WindowState.RELEASED or window.end <= now or window.start - now > _SOON:
            continue
        when = f"until {minute(window.end, now)}" if window.start <= now else f"from {minute(window.start, now)}"
        return f"kept for {_for_whom(view)} {when}"
    return ""


def _for_whom(view: WindowView) -> str:
    window = view.window
    if window.for_nobody:
        return f"nobody ({plain(window.name, 24)})"
    parts = [plain(window.tenant, 24)] if window.tenant is not None else []
    if window.priority is not None:
        parts.append(f"priority {window.priority}+")
    return " or ".join(parts)


SLOWED = "slowed: "


def slowed_words(throttle: Iterable[str], most: int = 100) -> str:
    """`slowed: power cap`: what slows it down, in the words readings have for it; empty where nothing does."""
    reasons = plain(", ".join(throttle), most)
    return SLOWED + reasons if reasons else ""


def running_words(job: Job, now: datetime) -> str:
    """`2h14m of 8h00m`, to the minute: a second hand on every GPU would keep the line busy."""
    if job.started_at is None:
        return "starting"
    passed = now - job.started_at
    taken = "under a minute" if passed < _MINUTE else format_duration(passed // _MINUTE * _MINUTE).removesuffix("00s")
    return taken + (f" of {format_duration(job.spec.time_limit)}" if job.spec.time_limit else "")


def process_of(view: GpuView, holder: Holder) -> GpuProcess | None:
    """The process that a holder is known by: of a container, the first of its."""
    processes = view.sample.processes if view.sample else None
    for process in processes or ():
        is_its = process.container_id is not None and process.container_id == holder.container_id
        if process.pid == holder.pid or is_its:
            return process
    return None


def foreign_words(view: GpuView, holder: Holder) -> str:
    """Return what its name and kind do not say: `pid 22110 python train.py, 31G, image jupyter:7, container f00d…`."""
    process = process_of(view, holder)
    pid = holder.pid if holder.pid is not None else (process.pid if process else None)
    command = process.command if process and process.command else None
    is_told = holder.kind == "process"  # its name is the command, and its pid stands beside it
    parts = [f"pid {pid}" if pid is not None and not is_told else ""]
    parts += [plain(command, 60)] if command and not (is_told and command == holder.name) else []
    memory = holder.memory if holder.memory is not None else (process.memory if process else None)
    container = holder.container_id or (process.container_id if process else None)
    user = process.user if process and process.user and not holder.user else None
    words = [" ".join(part for part in parts if part), format_size(memory) if memory else ""]
    words.append(f"user {plain(user, 32)}" if user else "")
    words.append(f"image {plain(holder.image, 100)}" if holder.image else "")
    words.append(f"container {_short_id(container)}" if container else "")
    return ", ".join(word for word in words if word)


def container_of(job: Job) -> str:
    """The container that its running attempt is in."""
    attempt = job.attempt
    return _short_id(attempt.container_id) if attempt and attempt.container_id else ""


def _short_id(container: str) -> str:
    """Twelve figures of an engine's id, as engines show it themselves; a name as it is."""
    return container[:12] if _ID.fullmatch(container) else plain(container, 40)
