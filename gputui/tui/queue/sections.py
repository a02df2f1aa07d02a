"""Sections of the queue: which rows of each are visible, and the lines on which running jobs stand."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum

from msgspec import Struct
from msgspec.structs import replace

from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.state import JobState
from gputui.domain.steady import HOLD

GRACE = HOLD
"""Time for which the line of an ended job is kept for the next one that starts, if no running job is below it."""
LONG_GRACE = timedelta(minutes=1)
"""Time for which it is kept otherwise: without it, a running job's row would have to move."""
LEAST_WAITING = 2
"""Waiting rows that are visible however many jobs run."""
_FOOT_FROM = 4
"""Lines from which one is spent on ended jobs, wherever the cursor is."""
BLANK, FOOT, WORDS = -1, -2, -10
"""Lines that are not rows: an empty one, what is hidden or has ended, and from -10 down, words."""


class Section(IntEnum):
    """Part of the queue that has a job's row, in the order of the sections."""

    RUNNING = 0
    WAITING = 1
    ENDED = 2


_SECTIONS = {
    state: Section.RUNNING if state.is_active else Section.ENDED if state.is_terminal else Section.WAITING
    for state in JobState
}


def section_of(job: Job) -> Section:
    return _SECTIONS[job.state]


class Extent(Struct, frozen=True):
    """Number of rows of each section."""

    running: int = 0
    waiting: int = 0
    ended: int = 0
    """Rows below the title of the ended jobs; 0 while it is folded."""
    has_ended: bool = False
    """True if ended jobs have a title."""
    is_folding: bool = True
    """True if that title is a row, which opens and closes."""

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.running, self.waiting, self.ended

    @property
    def fold(self) -> int | None:
        """Row of the title of ended jobs; None if it is no row."""
        return self.running + self.waiting if self.has_ended and self.is_folding else None

    @property
    def starts(self) -> tuple[int, int, int]:
        return 0, self.running, self.running + self.waiting + (self.fold is not None)

    def section(self, row: int) -> Section | None:
        """Return the section of a row; None for the title of ended jobs."""
        if row == self.fold:
            return None
        if row < self.running:
            return Section.RUNNING
        return Section.WAITING if row < self.running + self.waiting else Section.ENDED


class View(Struct, frozen=True):
    """Visible lines of the queue."""

    lines: tuple[int, ...] = ()
    """Rows from the top, and negative numbers for lines that are none."""
    tops: tuple[int, int, int] = (0, 0, 0)
    """First visible row of each section, counted in it."""
    shares: tuple[int, int, int] = (0, 0, 0)
    """Visible rows of each section."""


def shares(counts: Sequence[int], room: int, here: Section | None = None) -> tuple[int, int, int]:
    """Return how many rows of each section are visible in so many lines; the cursor is in section `here`.

    First come the cursor's row, a running one and two waiting ones; ended jobs that were opened get a third of the
    lines; then come all running jobs as far as they fit. What is left is for waiting and ended ones.
    """
    found = [0, 0, 0]

    def give(section: Section, most: int) -> None:
        more = min(most, counts[section]) - found[section]
        found[section] += max(0, min(more, room - sum(found)))

    if here is not None:
        give(here, 1)
    give(Section.RUNNING, 1)
    give(Section.WAITING, LEAST_WAITING)
    give(Section.ENDED, max(1, room // 3))
    give(Section.RUNNING, counts[Section.RUNNING])
    spare = room - sum(found)
    give(Section.WAITING, found[Section.WAITING] + (spare + 1) // 2)
    give(Section.ENDED, counts[Section.ENDED])
    give(Section.WAITING, counts[Section.WAITING])
    return found[0], found[1], found[2]


def visible(
    extent: Extent, height: int, row: int | None = None, tops: Sequence[int] = (0, 0, 0), *, words: int = 0
) -> View:
    """Return the lines of a pane: its sections from the top, the ended jobs at its lower end.

    Each section shows its rows from its place in `tops` on; the section of `row` so that this one is visible. `words`
    is the number of lines that say why nothing runs or waits.
    """
    here = extent.section(row) if row is not None else None
    is_live = bool(extent.running or extent.waiting)
    has_foot = extent.has_ended or (is_live and extent.running + extent.waiting > height)
    foot = has_foot and (height >= _FOOT_FROM or (row is not None and row == extent.fold))
    shown = shares(extent.counts, max(0, height - foot), here)
    begins = [0, 0, 0]
    parts: list[list[int]] = []
    for section, share, count, start in zip(Section, shown, extent.counts, extent.starts, strict=True):
        top = tops[section]
        if row is not None and section is here and share:
            top = max(min(top, row - start), row - start - share + 1)
        begins[section] = max(0, min(top, count - share))
        parts.append([start + begins[section] + each for each in range(share)])
    lines = [*parts[Section.RUNNING], *parts[Section.WAITING]]
    if not is_live:
        lines = [WORDS - each for each in range(min(words, height - foot - len(parts[Section.ENDED])))]
    end = ([FOOT if extent.fold is None else extent.fold] * foot) + parts[Section.ENDED]
    lines += [BLANK] * (height - len(lines) - len(end)) + end
    return View(tuple(lines[:height]), (begins[0], begins[1], begins[2]), shown)


Unit = JobId
"""What has a line among the running jobs: a job's id, or the negated id of an array whose elements share a row."""


class Place(Struct, frozen=True):
    """Line of a running job, or of the running elements of an array."""

    unit: Unit
    members: tuple[JobId, ...]
    """Its active jobs; after their end those that were the last ones."""
    left_at: datetime | None = None
    """Time since which no job of it runs."""

    def has_any(self, ids: Collection[JobId]) -> bool:
        return any(job_id in ids for job_id in self.members)


class Places:
    """Lines of the running jobs, which keep them while they run.

    The next job that starts takes the line of one that has ended; if none starts, the line goes after a while.
    """

    def __init__(self) -> None:
        self._places: list[Place] = []
        self.changes_at: datetime | None = None
        """Time at which the next line goes."""

    def update(
        self,
        active: Iterable[Job],
        unit_of: Callable[[Job], Unit],
        jobs: Mapping[JobId, Job],
        now: datetime,
        *,
        held: Collection[JobId] = (),
        room: int = sys.maxsize,
    ) -> list[JobId]:
        """Return the jobs in the order of their lines; in the line of an ended one, that one.

        `active` jobs that are new come in their order. The lines of `held` jobs stay whatever happens. Only `room`
        lines are visible: a job below them takes the line of one that has ended.
        """
        members: dict[Unit, list[JobId]] = {}
        for job in active:
            members.setdefault(unit_of(job), []).append(job.id)
        places = list(self._regrouped(unit_of, jobs))
        new = deque(Place(unit, tuple(ids)) for unit, ids in members.items() if unit not in {p.unit for p in places})
        for at, place in enumerate(places):
            if place.unit in members:
                places[at] = Place(place.unit, tuple(members[place.unit]))
            elif new and not place.has_any(held):
                places[at] = new.popleft()
            else:
                places[at] = replace(place, left_at=place.left_at or now)
        self._places = _closed([*places, *new], now, held, room)
        free = [place.left_at for place in self._places if place.left_at is not None and not place.has_any(held)]
        ends = [left_at + after for left_at in free for after in (GRACE, LONG_GRACE) if left_at + after > now]
        self.changes_at = min(ends, default=None)
        return [job_id for place in self._places for job_id in place.members]

    def _regrouped(self, unit_of: Callable[[Job], Unit], jobs: Mapping[JobId, Job]) -> Iterable[Place]:
        """Return the lines with each job where its unit was, though its array was opened or closed."""
        found: dict[Unit, Place] = {}
        for place in self._places:
            for job_id in place.members:
                job = jobs.get(job_id)
                if job is not None and section_of(job) is not Section.WAITING:
                    unit = unit_of(job)
                    before = found[unit].members if unit in found else ()
                    found[unit] = Place(unit, (*before, job_id), place.left_at)
        return found.values()


def _closed(places: list[Place], now: datetime, held: Collection[JobId], room: int) -> list[Place]:
    """Return the lines without gaps that are due, or that hide a job below the visible lines.

    The last line is moved into a gap, so that no other one moves.
    """
    found = list(places)
    for gap in places:
        if gap.left_at is None or gap.has_any(held):
            continue
        at = found.index(gap)
        below = [n for n in range(at + 1, len(found)) if not found[n].left_at or found[n].has_any(held)]
        last = max((n for n in below if not found[n].has_any(held)), default=at)
        if below and last == at:
            continue  # only the cursor's row could move
        if now - gap.left_at >= (LONG_GRACE if below else GRACE) or at >= room or last >= room:
            found[at] = found[last]
            del found[last]
    return found
