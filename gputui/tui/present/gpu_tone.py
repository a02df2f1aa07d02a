"""Judges readings of GPUs: colours and marks that distinguish busy GPUs from idle, full, hot or lost ones."""

from __future__ import annotations

from msgspec import Struct
from rich.style import Style

from gputui.domain.gpu import CAP, GpuSample, GpuState
from gputui.tui.present.cells import Cell
from gputui.tui.present.gpu_rows import GpuRow
from gputui.tui.present.gpu_words import slowed_words
from gputui.tui.present.style import AMBER, BLUE, DIM, GRAPH, GREEN, LIGHT_GREEN, RED, VIOLET

BRAKE = "power brake"
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
HIGH, FULL = Tone(AMBER, WATCH), Tone(RED, ALARM)
QUIET, FOREIGN = Tone(DIM), Tone(VIOLET)


def tone_of(row: GpuRow, name: str, share: float) -> Tone:
    """Return the judgement on a reading of that name; `share` is relative to its maximum."""
    if row.is_old:
        return QUIET
    if row.look.colours == "intensity":
        return _by_intensity(row, name, share)
    if row.view.state is GpuState.FOREIGN:
        return FOREIGN
    if not row.is_held:
        return _troubled(row, name) or QUIET
    return _JUDGES[name](row, share)


def _utilization(row: GpuRow, share: float) -> Tone:
    if row.idle is not None:
        return HIGH
    return Tone(GREEN if share >= _HALF else LIGHT_GREEN)


def _memory(row: GpuRow, share: float) -> Tone:
    rules = row.look.rules
    return _graded(share, rules.memory_high, rules.memory_full, Tone(BLUE))


def _power(row: GpuRow, share: float) -> Tone:
    most = row.look.rules.power_high
    return _troubled(row, "power") or (HIGH if most and 100 * share >= most else Tone(GRAPH))


def _temperature(row: GpuRow, share: float) -> Tone:
    rules = row.look.rules
    return _troubled(row, "temperature") or _graded(share, rules.temperature_high, rules.temperature_limit, Tone(GRAPH))


_JUDGES = {"utilization": _utilization, "memory_used": _memory, "power": _power, "temperature": _temperature}
JUDGED = frozenset(_JUDGES)
"""Readings that are judged."""


def _troubled(row: GpuRow, name: str) -> Tone | None:
    """Return the alarm of a GPU that is slowed down because of its power or its temperature."""
    reasons = row.view.sample.slowed if row.view.sample is not None else ()
    if name == "power":
        return FULL if BRAKE in reasons else HIGH if CAP in reasons else None
    return FULL if name == "temperature" and any(reason not in {BRAKE, CAP} for reason in reasons) else None


def slowed_cell(sample: GpuSample | None, most: int = 100) -> Cell:
    """Return `slowed: too hot`, red for a fault and amber for a limit that was set; empty if it is not slowed."""
    if sample is None or not sample.slowed:
        return ()
    return ((slowed_words(sample.slowed, most), RED if sample.has_slowing_fault else AMBER),)


def _by_intensity(row: GpuRow, name: str, share: float) -> Tone:
    rules = row.look.rules
    if name == "temperature":
        return _temperature(row, share) if _temperature(row, share).is_loud else Tone(GREEN)
    if name == "memory_used":
        return Tone(_graded(share, rules.memory_moderate, rules.memory_heavy, Tone(GREEN)).style)
    return Tone(_graded(share, rules.load_moderate, rules.load_heavy, Tone(GREEN)).style)


def _graded(share: float, high: int, full: int, below: Tone) -> Tone:
    percent = 100 * share
    return FULL if percent >= full else HIGH if percent >= high else below
