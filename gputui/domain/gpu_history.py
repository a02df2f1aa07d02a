"""Readings of each GPU over time, for the graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from gputui.domain.gpu import GpuSample
from gputui.domain.snapshot import Snapshot

K = TypeVar("K")
HOLD = timedelta(seconds=10)
"""Time for which a state must last until it is told, and be over until it is no longer told."""


class Steady(Struct, Generic[K], eq=False):
    """States of which each is told while it holds."""

    _holding: frozenset[K] | None = None
    _changing: dict[K, datetime] = field(default_factory=dict)
    """Time since which each state differs from what is told."""

    def update(
        self, present: Iterable[K], now: datetime, since: Mapping[K, datetime] = MappingProxyType({})
    ) -> frozenset[K]:
        """Take the present states, with the known times of their beginning; return those that hold.

        At first all do: nothing is known of the time before.
        """
        found = frozenset(present)
        before = found if self._holding is None else self._holding
        changing = {key: self._changing.get(key) or since.get(key, now) for key in before ^ found}
        changed = {key for key, begun in changing.items() if abs(now - begun) >= HOLD}
        self._changing = {key: begun for key, begun in changing.items() if key not in changed}
        self._holding = before ^ changed
        return self._holding


def holds(readings: Iterable[bool | None]) -> bool | None:
    """Return whether a state holds by the same rule, given whether it was there in each second, the newest first.

    The last stretch of 10 seconds without a change decides, else the oldest reading. None: nothing was read.
    """
    state: bool | None = None
    length = 0
    for reading in readings:
        if reading is None:
            continue
        length = length + 1 if reading is state else 1
        state = reading
        if length > HOLD.total_seconds():
            break
    return state


STEP = timedelta(seconds=10)
"""Length of a step: a graph of 40 cells shows nearly seven minutes, and needs little terminal output."""
KEPT = 360
"""Number of steps that are kept: one hour."""
SECONDS_KEPT = 600
"""Number of single seconds that are kept."""
_SECONDS = int(STEP.total_seconds())
_HOLD = 10
"""Seconds for which a reading counts if the next one is late; shorter gaps are not worth showing."""


class Step(NamedTuple):
    """The means of a step; None where nothing was read."""

    utilization: float | None = None
    memory_used: float | None = None
    power: float | None = None
    temperature: float | None = None
    sm_clock: float | None = None
    memory_utilization: float | None = None
    pcie_tx: float | None = None
    pcie_rx: float | None = None
    nvlink_tx: float | None = None
    nvlink_rx: float | None = None


_READINGS = attrgetter(*Step._fields)


class GpuPast(Struct, frozen=True, eq=False):
    """Past of a GPU: the last minutes by second, and the last hour by completed step; newest last."""

    steps: tuple[Step, ...] = ()
    number: int = 0
    """Number of steps ever completed."""
    ended: int = 0
    """Second since the epoch in which the last step ended."""
    seconds: tuple[Step, ...] = ()
    second: int = 0
    """Second since the epoch of the last of `seconds`; 0 without any."""
    pair: GpuPast | None = None
    """The past a second ago, where this one only begins a new pair of seconds: whole pairs are the same in both."""

    def values(self, name: str, most: float | None = None) -> list[float | None]:
        """Return one reading over the steps; with `most`, as a share of it."""
        readings = [getattr(step, name) for step in self.steps]
        if most is None:
            return readings
        return [None if value is None or not most else value / most for value in readings]

    def columns(self, name: str, width: int, count: int) -> list[float | None]:
        """Return the last `count` means of one reading, each over `width` seconds; None where nothing was read.

        Columns begin at whole multiples of `width`, so that a column keeps its value while newer ones are added. The
        last one contains the last reading and may be incomplete.
        """
        at = Step._fields.index(name)
        if width == 1 and len(self.seconds) >= count:
            return [reading[at] for reading in self.seconds[-count:]]
        now = self.second or self.ended
        last = now // width
        sums, reads = [0.0] * count, [0] * count
        begin = self.second - len(self.seconds) + 1 if self.seconds else self.ended
        place = count - 1 - last

        def add(value: float | None, column: int) -> None:
            if value is not None and 0 <= column < count:
                sums[column] += value
                reads[column] += 1

        shown = self.seconds[-count * width :]
        for second, reading in enumerate(shown, now - len(shown) + 1):
            add(reading[at], place + second // width)
        first = (last - count + 1) * width
        end = self.ended
        for step in reversed(self.steps):
            start = end - _SECONDS
            if end <= first:
                break
            for second in range(start, end, min(width, _SECONDS)):
                if second < begin:
                    add(step[at], place + second // width)
            end = start
        return [total / read if read else None for total, read in zip(sums, reads, strict=True)]

    def holds_from(self, name: str, least: float) -> bool | None:
        """Return whether a reading is at least that much and has held so; None: it was not read."""
        at = Step._fields.index(name)
        values = (reading[at] for reading in reversed(self.seconds))
        return holds(None if value is None else value >= least for value in values)


NO_PAST = GpuPast()


def mean(samples: list[GpuSample]) -> Step:
    means = []
    for name in Step._fields:
        known = [value for sample in samples if (value := getattr(sample, name)) is not None]
        means.append(sum(known) / len(known) if known else None)
    return Step(*means)


_HELD_UP = 2.5
"""Maximum distance between two consecutive steps, in steps; a step is a little longer if snapshots are late."""


class TakenStep(Struct, frozen=True):
    """The mean readings of every GPU in one step of time."""

    at: datetime
    """Start of the step."""
    gpus: Mapping[str, Step]
    """Mean readings by UUID."""


class Stepper(Struct, eq=False):
    """Collects the readings of snapshots, and returns their means at the end of a step."""

    _now: dict[str, list[GpuSample]] = field(default_factory=dict)
    _since: datetime | None = None

    def add(self, snapshot: Snapshot) -> TakenStep | None:
        """Add the readings of a snapshot, stale ones as not read; return the step that it completes, if any."""
        closed = None
        if self._since is None:
            self._since = snapshot.taken_at
        if abs(snapshot.taken_at - self._since) >= STEP:  # a clock may be set back: readings would pile up in one step
            closed = TakenStep(self._since, {uuid: mean(readings) for uuid, readings in self._now.items()})
            self._now, self._since = {}, snapshot.taken_at
        for view in snapshot.gpus:
            readings = self._now.setdefault(view.gpu.uuid, [])
            if view.current is not None:
                readings.append(view.current)
        return closed


class GpuHistory(Struct, eq=False):
    """The readings of each GPU by second, and their means by step."""

    _pasts: dict[str, GpuPast] = field(default_factory=dict)
    _stepper: Stepper = field(default_factory=Stepper)
    _began: datetime | None = None

    def past_of(self, uuid: str) -> GpuPast:
        return self._pasts.get(uuid, NO_PAST)

    @property
    def recorded(self) -> timedelta:
        """Time for which steps are known."""
        return max((len(past.steps) for past in self._pasts.values()), default=0) * STEP

    def add(self, snapshot: Snapshot) -> None:
        if self._began is None:
            self._began = snapshot.taken_at
        closed = self._stepper.add(snapshot)
        now = int(snapshot.taken_at.timestamp())
        for uuid, step in closed.gpus.items() if closed else ():
            past = self.past_of(uuid)
            steps = (*past.steps, step)[-KEPT:]
            self._pasts[uuid] = replace(past, steps=steps, number=past.number + 1, ended=now, pair=None)
        for view in snapshot.gpus:
            step = Step() if view.current is None else Step(*_READINGS(view.current))
            self._pasts[view.gpu.uuid] = _with_second(self.past_of(view.gpu.uuid), step, now)

    def begin_with(self, earlier: Iterable[TakenStep], now: datetime) -> None:
        """Prepend the steps that another process recorded before this one; periods without steps stay empty.

        Call it once. Only steps of the last hour count; steps in the future were written with another clock.
        """
        began = self._began or now
        known = [each for each in earlier if began - KEPT * STEP <= each.at < began]
        before: dict[str, list[Step]] = {}
        steps = 0
        for place, each in enumerate(known):
            steps += _missing(known[place - 1].at, each.at) if place else 0
            for uuid, step in each.gpus.items():
                _pad(before.setdefault(uuid, []), steps).append(step)
            steps += 1
        steps += _missing(known[-1].at, began) if known else 0
        for uuid, found in before.items():
            past = self.past_of(uuid)
            ended = past.ended if past.steps else int(began.timestamp())
            kept = (*_pad(found, steps), *past.steps)[-KEPT:]
            self._pasts[uuid] = replace(past, steps=kept, number=past.number + steps, ended=ended, pair=None)


def _with_second(past: GpuPast, reading: Step, now: int) -> GpuPast:
    """Return the past with the reading of a second; it replaces an earlier reading of the same second."""
    passed = now - past.second
    if -_HOLD < passed <= 0 and past.seconds:
        return replace(past, seconds=(*past.seconds[:-1], reading))
    if not past.seconds or not 0 < passed <= SECONDS_KEPT:  # or the clock was set
        return replace(past, seconds=(reading,), second=now, pair=None)
    between = past.seconds[-1] if passed <= _HOLD else Step()
    seconds = (*past.seconds, *[between] * (passed - 1), reading)[-SECONDS_KEPT:]
    pair = replace(past, pair=None) if past.pair else past
    return replace(past, seconds=seconds, second=now, pair=pair if passed == 1 and now % 2 == 0 else None)


def _missing(one: datetime, next_: datetime) -> int:
    return 0 if next_ - one < _HELD_UP * STEP else round((next_ - one) / STEP) - 1


def _pad(steps: list[Step], number: int) -> list[Step]:
    steps += [Step()] * (number - len(steps))
    return steps
