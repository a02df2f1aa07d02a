"""Recurring jobs and reservations as rows of cells."""

from __future__ import annotations

from datetime import datetime

from gputui.domain.recurring import RecurringJob
from gputui.domain.short_names import short_names
from gputui.domain.text import plain
from gputui.domain.units import format_duration, plural
from gputui.domain.window import WindowState, WindowView
from gputui.tui.present.cells import Cell, Column, cell
from gputui.tui.present.job import gpus_wanted
from gputui.tui.present.job_more import moment
from gputui.tui.present.style import AMBER, BLUE, DIM, GREEN, PLAIN

RECURRING_COLUMNS = (
    Column("id", "ID", 5, right=True),
    Column("state", "STATE", 7),
    Column("every", "WHEN", 14, flex=1, most=24),
    Column("next", "NEXT", 12, right=True),
    Column("name", "NAME", 12, flex=2, most=36),
    Column("gpus", "GPUS", 4, right=True),
    Column("tenant", "TENANT", 8, rank=1),
    Column("by", "BY", 8, rank=2),
    Column("what", "WHAT", 12, flex=4),
)
WINDOW_COLUMNS = (
    Column("name", "NAME", 10, flex=1, most=24),
    Column("state", "STATE", 8),
    Column("gpus", "GPUS", 8, flex=1, most=20),
    Column("from", "FROM", 11, right=True),
    Column("to", "TO", 11, right=True),
    Column("for", "FOR", 12, flex=2, most=30),
    Column("about", "ABOUT", 14, flex=3),
)
_STATES = {WindowState.ACTIVE: GREEN, WindowState.UPCOMING: PLAIN, WindowState.RELEASED: AMBER}


def recurring_cell(entry: RecurringJob, column: str, now: datetime) -> Cell:
    """A cell of a recurring job."""
    spec = entry.submission.spec
    due = "" if entry.paused else moment(entry.next_at, now)
    words = {
        "id": (str(entry.id), BLUE),
        "state": ("paused", AMBER) if entry.paused else ("waits", PLAIN),
        "every": (plain(entry.expression, 80), PLAIN),
        "next": (due, PLAIN),
        "name": (plain(entry.name or spec.name, 80), PLAIN),
        "gpus": (gpus_wanted(spec.gpus), PLAIN),
        "tenant": (plain(spec.tenant, 40), DIM),
        "by": (plain(entry.added_by, 40), DIM),
        "what": (plain(" ".join((spec.image or "host", *spec.command)), 200), DIM),
    }
    return cell(*words[column])


def window_cell(view: WindowView, column: str, names: dict[str, str], now: datetime) -> Cell:
    """A cell of a reservation."""
    window = view.window
    words = {
        "name": (plain(window.name, 60), BLUE),
        "state": (view.state.value.lower(), _STATES[view.state]),
        "gpus": (_gpus(view, names), PLAIN),
        "from": (moment(window.start, now), PLAIN),
        "to": (moment(window.end, now), PLAIN),
        "for": (_whom(view), PLAIN),
        "about": (_about(view, now), DIM),
    }
    return cell(*words[column])


def _gpus(view: WindowView, names: dict[str, str]) -> str:
    kept = [names.get(uuid, "?") for uuid in view.gpus]
    if view.window.gpus or not kept:
        short = short_names(view.window.gpus)
        named = [names.get(name, short[name]) for name in view.window.gpus]
        return ",".join(named) or str(view.window.count)
    return f"{view.window.count}: {','.join(kept)}"


def _whom(view: WindowView) -> str:
    window = view.window
    words = [window.tenant] if window.tenant else []
    words += [f"priority {window.priority}+"] if window.priority is not None else []
    return plain(" and ".join(words) or "nobody", 60)


def _about(view: WindowView, now: datetime) -> str:
    words = []
    if view.state is WindowState.RELEASED:
        words.append("anybody's now, as nobody claimed it")
    elif view.claimed_at is not None:
        words.append("in use")
    elif view.lapses_at is not None:
        words.append(f"given up in {format_duration(view.lapses_at - now)} unless used")
    if view.source == "file":
        words.append("of the settings file")
    if view.gpus and not view.window.gpus and view.state is not WindowState.RELEASED:
        words.append(f"{plural(len(view.gpus), 'GPU')} kept")
    return "; ".join(words)
