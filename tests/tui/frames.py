"""Judgement of frames of the main screen: what an operator must see, what must not lie on it, what must not move.

A frame is the text of the screen, with what is known to be true of the queue at that time. It may come from a pilot or
from a real terminal, and it does not matter how the screen is built. Jobs are called `train-…`; rows begin with ids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

WAITING = 2
"""Number of waiting jobs that are in sight at least."""
_JOB = re.compile(r"^.\s*(\d+) +(\w+) .*\btrain\b")
_LIVE = {"R": "runs", "running": "runs", "CF": "runs", "starting": "runs", "PD": "waits", "waiting": "waits"}
_HEADER = re.compile(r"^. *(ID|#) +ST")
_LOG = re.compile(r"^.LOG\b")
_LABEL = re.compile(r"\b(?:H100|UTL(?! +\d+s)|MEM|PWR|TMP|UTIL|GPU MODEL|HELD BY)\b|/80G|/700W|°")
_TITLE = re.compile(r"\b(RUNNING|WAITING|ENDED)\b")
_MORE = re.compile(r"\+ ?(\d+) run")
_COUNTS = {"running": r"\brun(ning)?\b", "waiting": r"\bwait(ing)?\b", "free": r"\bfree\b"}


@dataclass(frozen=True)
class Frame:
    """Main screen at a moment, and the jobs that surely run and wait then, by id."""

    at: str
    lines: tuple[str, ...]
    running: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()

    @cached_property
    def header(self) -> int:
        """Number of the line with the titles of the queue's columns."""
        return next((at for at, line in enumerate(self.lines) if _HEADER.match(line)), len(self.lines))

    @cached_property
    def log(self) -> int:
        """Number of the line with the log's title."""
        return next((at for at, line in enumerate(self.lines) if _LOG.match(line)), len(self.lines))

    @cached_property
    def rows(self) -> dict[int, int]:
        """Jobs with a row in the queue, and its line."""
        lines = range(self.header + 1, self.log)
        return {int(found[1]): at for at in lines if (found := _JOB.search(self.lines[at]))}

    def _says(self, what: str) -> set[int]:
        """Return the jobs whose rows say so: it may have been true when the console last looked."""
        states = {job: found[2] for job, at in self.rows.items() if (found := _JOB.search(self.lines[at]))}
        return {job for job, state in states.items() if _LIVE.get(state) == what}

    @property
    def labels(self) -> set[tuple[str, int, int]]:
        """Labels and units of the grid of GPUs, with column and line."""
        grid = enumerate(self.lines[: self.header])
        return {(found[0], found.end(), at) for at, line in grid for found in _LABEL.finditer(line)}

    @property
    def counts(self) -> dict[str, int]:
        """Columns of the words of the status line that are always there."""
        places = {name: re.search(words, self.lines[0]) for name, words in _COUNTS.items()}
        return {name: found.start() if found else -1 for name, found in places.items()}

    @property
    def titles(self) -> dict[str, int]:
        """Lines of the titles of the parts and of the queue's sections."""
        sections = [(at, _TITLE.search(self.lines[at])) for at in range(self.header + 1, self.log)]
        return {"columns": self.header, "LOG": self.log, **{found[1]: at for at, found in sections if found}}

    @property
    def cursor(self) -> tuple[int, int]:
        """Line of the queue's cursor, and the job on it; 0 on a row that is no job's."""
        lines = (at for at in range(self.header + 1, self.log) if self.lines[at].startswith("▌"))
        at = next(lines, -1)
        return at, next((job for job, line in self.rows.items() if line == at), 0)

    @property
    def unseen(self) -> str:
        """Words for the jobs that should be in sight and are not; empty if all are."""
        shown, wanted = len(self._says("waits")), min(WAITING, len(self.waiting))
        if shown < wanted:
            return f"{shown} of {len(self.waiting)} waiting jobs in sight"
        hidden = self.running - self.rows.keys()
        if not hidden:
            return ""
        if self._spare:
            return f"running not in sight {sorted(hidden)}, beside {self._spare}"
        told = next((int(found[1]) for line in self.lines if (found := _MORE.search(line))), 0)
        return "" if told >= len(hidden) else f"{told} of {len(hidden)} running jobs out of sight are told of"

    @property
    def _spare(self) -> str:
        """Words for the lines that a running job could have instead."""
        live = self.running | self.waiting | self._says("runs") | self._says("waits")
        past = [job for job, line in self.rows.items() if job not in live and line != self.cursor[0]]
        blank = sum(not self.lines[at].strip(" ▌│") for at in range(self.header + 1, self.log))
        surplus = len(self.waiting & self.rows.keys()) - WAITING
        spare = {"other jobs": len(past), "blank lines": blank, "more waiting jobs": surplus}
        return ", ".join(f"{number} {what}" for what, number in spare.items() if number > 0)

    def covered(self, quiet: Frame) -> str:
        """Return what of the grid is missing that was there in a quiet moment; empty: nothing."""
        there = self.labels
        return ", ".join(f"{word} of line {at}" for word, column, at in sorted(quiet.labels - there))

    def moved_since(self, before: Frame) -> str:
        """Return what has moved since the frame before, other than values; empty: nothing."""
        found = [
            f"{what} from {was.get(name)} to {now}"
            for what, was, is_now in (
                ("column of {} in the status line", before.counts, self.counts),
                ("title {}", before.titles, self.titles),
            )
            for name, now in is_now.items()
            if was.get(name, now) != now
            for what in [what.format(name)]
        ]
        if self.cursor != before.cursor and before.cursor[0] >= 0:  # an empty queue has none
            found.append(f"cursor from line and job {before.cursor} to {self.cursor}")
        rows = (job for job in before.rows if job in self.running & before.running)
        found += [f"row of running {job} from {before.rows[job]} to {self.rows.get(job)}" for job in rows
                  if before.rows[job] != self.rows.get(job)]  # fmt: skip
        return "; ".join(found)

    def __str__(self) -> str:
        known = f"running {sorted(self.running)}, waiting {sorted(self.waiting)}"
        return "\n".join((f"--- {self.at}: {known}", *(line.rstrip() for line in self.lines)))


@dataclass
class Watch:
    """Frames of one console, the first of which is of a quiet moment, and what is wrong with them."""

    name: str
    frames: list[Frame] = field(default_factory=list)
    wrong: dict[str, list[tuple[str, Frame]]] = field(
        default_factory=lambda: {"not in sight": [], "covered": [], "moved": []}
    )

    def look(self, frame: Frame, covered: str = "") -> None:
        """Judge a frame; `covered` says what else lies on it."""
        if self.frames:
            self._judge("not in sight", frame.unseen, frame)
            self._judge("covered", covered or frame.covered(self.frames[0]), frame)
        if len(self.frames) > 1:
            self._judge("moved", frame.moved_since(self.frames[-1]), frame)
        self.frames.append(frame)

    def _judge(self, what: str, reason: str, frame: Frame) -> None:
        if reason:
            self.wrong[what].append((reason, frame))

    def share(self, what: str) -> float:
        return len(self.wrong[what]) / max(1, len(self.frames) - 1)

    @property
    def shares(self) -> str:
        """Shares of frames with each fault, as a line of a table."""
        waiting = [frame for frame in self.frames[1:] if frame.waiting]
        with_one = sum(bool(frame.waiting & frame.rows.keys()) for frame in waiting)
        wrong = ", ".join(f"{what} {self.share(what):.0%}" for what in self.wrong)
        number = len(self.frames) - 1
        return f"{self.name}: {number} frames, {wrong}; a waiting job in {with_one} of {len(waiting)}"

    @property
    def is_right(self) -> bool:
        return not any(self.wrong.values())

    def __str__(self) -> str:
        """Return the shares, and the first frames with each fault, each after the one before it."""
        return "\n".join(
            (self.shares, *(told for what, faults in self.wrong.items() for told in self._told(what, faults)))
        )

    def _told(self, what: str, faults: Sequence[tuple[str, Frame]]) -> Iterable[str]:
        kinds = Counter(kind for reason, _ in faults for kind in _kinds(reason))
        for kind, number in kinds.items():
            reason, frame = next((reason, frame) for reason, frame in faults if kind in _kinds(reason))
            yield f"\n{what.upper()} {number} times: {reason}"
            yield f"{self.frames[self.frames.index(frame) - 1]}\n{frame}"


def _kinds(reason: str) -> set[str]:
    """Return the parts of a reason without their numbers."""
    return {re.sub(r"[\d, ]+", " ", part) for part in reason.split("; ")}
