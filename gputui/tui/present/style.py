"""The few colours, each with one meaning, as Rich styles. States are also shown as words, never only by colour.

Each colour here is a role: the dark theme shows it as it is, and `tui/palette.py` replaces it with another theme's.
So every drawn colour must be one of these, and no two of these may be equal.
"""

from __future__ import annotations

from rich.style import Style

from gputui.domain.gpu import GpuState
from gputui.domain.state import JobState

GROUND = "#11151a"
RAISED = "#1b222a"
PICKED = "#22344a"
PICKED_FAINT = "#1d2732"
INK = "#d3dae2"
QUIET = "#98a4b1"
FAINT = "#3b4652"
ACCENT = "#74acf2"
GOOD = "#8fd39c"
WARN = "#e6c243"
BAD = "#ff7258"
OTHER = "#d284ff"
HISTORY = "#4f7aa3"
"""Less bright than text, since history is secondary."""
RUNS, OVERRUN, PLANNED, HEAD = "#1b2f24", "#3a2228", "#222c37", "#362e1d"
"""Backgrounds of the bars of a timeline."""
CALM = "#5c9468"
SICK = "#8c1f14"
LOG_NAMES = ("#56626f", "#ee7d7d", "#84c288", "#e3b561", "#7ab7f3", "#b99be3", "#6fc3c3", "#cdd5dd")
LOG_BRIGHT = ("#808c99", "#ff9a9a", "#a3d9a5", "#f5d08a", "#9accff", "#d3bdf5", "#96dede", "#fefefe")
"""The sixteen terminal colours in the console's own tones, so that logs stay readable on its background."""
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
GRAPH = Style(color=HISTORY)
LIGHT_GREEN = Style(color=CALM)
SICK_ROW = Style(color=INK, bgcolor=SICK, bold=True)
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
    GpuState.DRAINED: DIM,
    GpuState.UNKNOWN: AMBER,
}
SEVERITY_STYLES: dict[str, Style] = {"error": RED, "warning": AMBER, "information": BLUE}
SEVERITY_MARKS = {"error": "✗ ", "warning": "! ", "information": "· "}
"""Marks for users who do not see colours."""
