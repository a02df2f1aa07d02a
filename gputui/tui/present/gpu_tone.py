"""Judges readings of GPUs: colours and marks that distinguish busy GPUs from idle, full, hot or lost ones."""

from __future__ import annotations

from msgspec import Struct
from rich.style import Style

from gputui.domain.gpu import CAP, GpuSample
from gputui.domain.severity import CAPPED, ERROR, HOT, IDLE, MEMORY, THROTTLED, WARNING, severity_of, slowed_kind
from gputui.tui.present.cells import Cell
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.gpu_words import slowed_words
from gputui.tui.present.style import AMBER, BLUE, DIM, GRAPH, GREEN, LIGHT_GREEN, RED

BRAKE = "power brake"
HOTTEST = 100.0
"""Degrees of a full bar."""
_HALF = 0.5
"""Utilisation from which green is bright."""


class Tone(Struct, frozen=True):
    """Judgement on a reading: its colour, and a mark for users who do not see colours."""

    style: Style
    mark: str = " "

    @property
    def is_loud(self) -> bool:
        """Return whether it asks for attention."""
        return self.mark != " "


WATCH, ALARM = "!", "✗"
QUIET = Tone(DIM)
_TONES = {ERROR: Tone(RED, ALARM), WARNING: Tone(AMBER, WATCH)}


def tone_of_kind(kind: str) -> Tone:
    """Return the judgement on a condition of that kind."""
    return _TONES.get(severity_of(kind), QUIET)


def tone_of(row: GpuRow, name: str, share: float | None) -> Tone:
    """Return the judgement on a reading of that name; `share` is relative to its maximum, None if that is unknown."""
    if row.is_old:
        return QUIET
    if (trouble := _troubled(row, name)) is not None:
        return trouble
    if share is None:
        return QUIET
    if row.look.colours == "intensity":
        return _by_intensity(row, name, share)
    return _JUDGES[name](row, share) if row.is_used else QUIET


def _utilization(row: GpuRow, share: float) -> Tone:
    if row.idle is not None:
        return tone_of_kind(IDLE)
    return Tone(GREEN if share >= _HALF else LIGHT_GREEN)


def _memory(row: GpuRow, share: float) -> Tone:
    least, total = row.look.rules.memory_high / 100, row.memory_total or 0
    is_high = row.past.holds_from("memory_used", least * total) if total else None
    return tone_of_kind(MEMORY) if (share >= least if is_high is None else is_high) else Tone(BLUE)


def _power(row: GpuRow, share: float) -> Tone:
    """Return no alarm: a well-used GPU is at its limit."""
    return Tone(GRAPH)


def _temperature(row: GpuRow, share: float) -> Tone:
    least = row.look.rules.temperature_high
    is_high = row.past.holds_from("temperature", least)
    return tone_of_kind(HOT) if (HOTTEST * share >= least if is_high is None else is_high) else Tone(GRAPH)


_JUDGES = {"utilization": _utilization, "memory_used": _memory, "power": _power, "temperature": _temperature}
JUDGED = frozenset(_JUDGES)
"""Readings that are judged."""


def _troubled(row: GpuRow, name: str) -> Tone | None:
    """Return the alarm of a GPU that is slowed down because of its power or its temperature."""
    reasons = row.view.sample.slowed if row.view.sample is not None else ()
    if name == "power":
        kind = THROTTLED if BRAKE in reasons else CAPPED if CAP in reasons else None
    elif name == "temperature":
        kind = THROTTLED if any(reason not in {BRAKE, CAP} for reason in reasons) else None
    else:
        kind = None
    return None if kind is None else tone_of_kind(kind)


def slowed_style(*, is_fault: bool) -> Style:
    """Return the colour of a GPU that is slowed down for a fault, or for a limit that was set."""
    return tone_of_kind(slowed_kind(is_fault=is_fault)).style


def slowed_cell(sample: GpuSample | None, most: int = 100) -> Cell:
    """Return `slowed: too hot`, red for a fault and amber for a limit that was set; empty if it is not slowed."""
    if sample is None or not sample.slowed:
        return ()
    return ((slowed_words(sample.slowed, most), slowed_style(is_fault=sample.has_slowing_fault)),)


def _by_intensity(row: GpuRow, name: str, share: float) -> Tone:
    rules = row.look.rules
    if name == "temperature":
        return judged if (judged := _temperature(row, share)).is_loud else Tone(GREEN)
    high, heavy = (
        (rules.memory_moderate, rules.memory_heavy)
        if name == "memory_used"
        else (rules.load_moderate, rules.load_heavy)
    )
    percent = 100 * share
    return Tone(RED if percent >= heavy else AMBER if percent >= high else GREEN)
