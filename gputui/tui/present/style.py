"""The few colours, each with one meaning, as Rich styles. States are told by words too, never by colour alone."""

from __future__ import annotations

from rich.style import Style

from gputui.domain.gpu import GpuState
from gputui.domain.state import JobState

GROUND = "#11151a"
RAISED = "#1b222a"
PICKED = "#26384d"
PICKED_FAINT = "#1d2732"
INK = "#cdd5dd"
QUIET = "#808c99"
FAINT = "#3b4652"
ACCENT = "#74b4f0"
GOOD = "#84c288"
WARN = "#e3b561"
BAD = "#ee7d7d"
OTHER = "#b99be3"

PLAIN = Style(color=INK)
STRONG = Style(color=INK, bold=True)
DIM = Style(color=QUIET)
TRACK = Style(color=FAINT)
BLUE = Style(color=ACCENT)
GREEN = Style(color=GOOD)
AMBER = Style(color=WARN)
RED = Style(color=BAD)
RED_STRONG = Style(color=BAD, bold=True)
VIOLET = Style(color=OTHER)
GRAPH = Style(color="#4f7aa3")
"""Quieter than what is written: history is for the corner of the eye."""

JOB_STYLES: dict[JobState, Style] = {
    JobState.PENDING: PLAIN,
    JobState.CONFIGURING: AMBER,
    JobState.RUNNING: GREEN,
    JobState.COMPLETING: AMBER,
    JobState.COMPLETED: DIM,
    JobState.FAILED: RED,
    JobState.CANCELLED: DIM,
    JobState.TIMEOUT: RED,
    JobState.OUT_OF_MEMORY: RED,
    JobState.PREEMPTED: AMBER,
}

GPU_STYLES: dict[GpuState, Style] = {
    GpuState.FREE: DIM,
    GpuState.ALLOCATED: GREEN,
    GpuState.FOREIGN: VIOLET,
    GpuState.DRAINED: AMBER,
    GpuState.UNKNOWN: AMBER,
}

SEVERITY_STYLES: dict[str, Style] = {"error": RED, "warning": AMBER, "information": BLUE}
