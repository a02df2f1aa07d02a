"""Reads what a log holds before the lines that are known, a bounded part at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.style import Style

from gputui.tui.log.follower import LogFollower
from gputui.tui.present.log import MOST, styles_before
from gputui.tui.present.log_stamp import without_stamp

PAGE = 5000
"""Lines loaded when somebody scrolls beyond the first."""
MOST_READ = 200_000
"""Lines from the end that are read at most."""
GROWTH = 2000
"""Lines that may have come since what is known was counted."""
ANCHOR = 64
"""So many of the known lines must be found again, that others may be put before them."""


@dataclass(frozen=True)
class Known:
    """Where the lines that are known begin, seen from the end."""

    anchor: tuple[bytes, ...]
    """The first of them, a few."""
    behind: int
    """Lines from there to the end."""


@dataclass(frozen=True)
class Earlier:
    """Lines just before those that are known."""

    lines: tuple[bytes, ...]
    is_start: bool
    """The log begins with them."""
    fault: str = ""
    styles: tuple[Style, ...] = ()
    """In which style each of them begins."""


def read_earlier(follower: LogFollower, known: Known, wanted: int, is_wanted: Callable[[], bool]) -> Earlier:
    """Up to `wanted` lines before the known ones. Blocks; raises GputuiError."""
    tail = known.behind + wanted + GROWTH
    if tail > MOST_READ:
        return Earlier((), False, "too far back to be shown: save the log to see all of it")
    stream = follower.opener.open(follower.job_id, follower.attempt, tail=tail, follow=False, stamped=True)
    kept: deque[bytes] = deque(maxlen=tail)
    try:
        for line in stream:
            kept.append(line[:MOST])
            if not is_wanted():
                break
    finally:
        stream.close()
    return _before(list(kept), known, wanted, is_whole=len(kept) < tail)


def _before(lines: list[bytes], known: Known, wanted: int, *, is_whole: bool) -> Earlier:
    """Those before the known ones, which are sought from where they stood when they were counted towards the start."""
    at = find(lines, known)
    if at is None:
        return Earlier((), False, "what came before cannot be told from what was skipped")
    start = max(0, at - wanted)
    earlier = lines[start:at]
    return Earlier(tuple(earlier), is_whole and start == 0, styles=tuple(styles_before(earlier)))


def find(lines: Sequence[bytes], known: Known) -> int | None:
    """Return the place of the known lines, sought from where they stood when they were counted; None: nowhere."""
    anchor = [without_stamp(line) for line in known.anchor]
    bare = [without_stamp(line) for line in lines]
    for at in range(max(0, len(bare) - known.behind), -1, -1):
        if bare[at : at + len(anchor)] == anchor:
            return at
    return None
