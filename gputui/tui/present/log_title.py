"""What the title of a log says of it, beside whose it is."""

from __future__ import annotations

from gputui.domain.text import plain
from gputui.domain.units import plural
from gputui.tui.log.follower import LogFollower
from gputui.tui.log.reading import LogReading
from gputui.tui.present.cells import Span
from gputui.tui.present.style import AMBER, BLUE, DIM, RED, STRONG


def log_states(reading: LogReading, follower: LogFollower, *, is_over: bool) -> list[Span]:
    """The most important first: a narrow pane cuts the rest."""
    said: list[Span] = []
    if reading.picked.is_on:
        said.append((f"{plural(len(reading.shown_numbers()), 'line')} picked", BLUE))
    if not reading.window.follows:
        below = reading.window.below
        said.append((f"‖ paused, {plural(below, 'line')} below" if below else "‖ paused", AMBER + STRONG))
    said += [(plain(words, 80), BLUE) for words in reading.search.words()]
    if reading.note:
        said.append((plain(reading.note, 120), AMBER))
    if is_over and follower.error is None:  # what broke off has not ended
        said.append(("ended", DIM))
    if reading.buffer.skipped:
        said.append((f"{reading.buffer.skipped:,} lines skipped", AMBER))
    if follower.error and reading.buffer.end > reading.buffer.first:
        said.append((plain(follower.error, 200), RED))
    said += [(word, DIM) for word, is_on in _looks(reading) if is_on]
    return said


def _looks(reading: LogReading) -> tuple[tuple[str, bool], ...]:
    painter = reading.painter
    no_times = painter.shows_stamps and not painter.is_stamped
    return ("wrapped", painter.wraps), ("no times are known", no_times)
