"""What each GPU's readings were, for the graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gputui.domain.gpu import GpuSample
from gputui.domain.gpu_past import KEPT, NO_PAST, STEP, Past, Step, mean
from gputui.domain.snapshot import Snapshot

_HELD_UP = 2.5
"""Steps between the beginnings of two that follow each other: a step is a little longer where pictures come late."""


@dataclass(frozen=True)
class TakenStep:
    """The mean readings of every GPU in one step of time."""

    at: datetime
    """When it began."""
    gpus: Mapping[str, Step]
    """By UUID."""


class Stepper:
    """Gathers the readings of pictures, and gives their means when a step is over."""

    def __init__(self) -> None:
        self._now: dict[str, list[GpuSample]] = {}
        self._since: datetime | None = None

    def add(self, snapshot: Snapshot) -> TakenStep | None:
        """Take in the readings of a picture, stale ones as not read; the step that is over with it, if one is."""
        closed = None
        if self._since is None:
            self._since = snapshot.taken_at
        if abs(snapshot.taken_at - self._since) >= STEP:  # a clock may be set back: readings would pile up
            closed = TakenStep(self._since, {uuid: mean(readings) for uuid, readings in self._now.items()})
            self._now, self._since = {}, snapshot.taken_at
        for view in snapshot.gpus:
            readings = self._now.setdefault(view.gpu.uuid, [])
            if view.sample is not None and not view.stale:
                readings.append(view.sample)
        return closed


class History:
    """The mean readings of each GPU in each step of time."""

    def __init__(self) -> None:
        self._pasts: dict[str, Past] = {}
        self._stepper = Stepper()
        self._began: datetime | None = None

    def of(self, uuid: str) -> Past:
        """The steps that are over."""
        return self._pasts.get(uuid, NO_PAST)

    def add(self, snapshot: Snapshot) -> None:
        """Take in the readings of a picture."""
        if self._began is None:
            self._began = snapshot.taken_at
        closed = self._stepper.add(snapshot)
        for uuid, step in closed.gpus.items() if closed else ():
            past = self.of(uuid)
            self._pasts[uuid] = Past((*past.steps, step)[-KEPT:], past.number + 1)

    def begin_with(self, earlier: Iterable[TakenStep], now: datetime) -> None:
        """Put before the steps taken here those that were taken by somebody else until then; time without any is empty.

        To be called once. Steps of the last hour count; ones that lie ahead were written by another clock.
        """
        began = self._began or now
        told = [each for each in earlier if began - KEPT * STEP <= each.at < began]
        before: dict[str, list[Step]] = {}
        steps = 0
        for place, each in enumerate(told):
            steps += _missing(told[place - 1].at, each.at) if place else 0
            for uuid, step in each.gpus.items():
                _pad(before.setdefault(uuid, []), steps).append(step)
            steps += 1
        steps += _missing(told[-1].at, began) if told else 0
        for uuid, found in before.items():
            past = self.of(uuid)
            self._pasts[uuid] = Past((*_pad(found, steps), *past.steps)[-KEPT:], past.number + steps)


def _missing(one: datetime, next_: datetime) -> int:
    """How many steps nobody took between two that began then."""
    return 0 if next_ - one < _HELD_UP * STEP else round((next_ - one) / STEP) - 1


def _pad(steps: list[Step], number: int) -> list[Step]:
    steps += [Step()] * (number - len(steps))
    return steps
