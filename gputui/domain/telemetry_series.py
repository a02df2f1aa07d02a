"""Readings of an attempt over time, for graphs: a bounded number of columns, however long the attempt runs.

A full series is folded: each pair of columns becomes one of double width. So means stay exact, and the start and the
end of the attempt always have a column.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Mapping, Sequence
from itertools import chain

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_msgpack
from gputui.domain.telemetry import AttemptTelemetry

READINGS = (
    "utilization",
    "sm_activity",
    "memory_activity",
    "gpu_memory",
    "power",
    "temperature",
    "throttled",
    "cpus",
    "memory",
    "io_read",
    "io_written",
)
"""Names as in `AttemptTelemetry`; GPU readings are means over its GPUs, `io_*` are bytes per second."""
COLUMNS = 256
"""Most columns of a series."""
MOST_BYTES = 4096
"""Most bytes of a packed series, as text."""
_GAP = 255
"""Level of a column without a reading."""
_TOP = 254
"""Level of the highest mean."""


class Series(Struct, frozen=True):
    """Means of each reading by column. None: nothing was read during it."""

    begin: float
    """Second since the epoch at which the first column begins."""
    width: float
    """Seconds of a column."""
    end: float
    """Second since the epoch of the last reading."""
    means: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Values by name of the reading, all of one length; readings that were never known are omitted."""


class Measured(Struct, frozen=True):
    """Telemetry of an attempt, ended or running."""

    summary: AttemptTelemetry | None = None
    series: Series | None = None


class Recording(Struct):
    """A growing series."""

    begin: float
    width: float = 1.0
    end: float = 0.0
    length: int = 0
    sums: dict[str, bytes] = field(default_factory=dict)
    """Sums of value times seconds by reading, as numbers of four bytes; filled in only by `save`."""
    seconds: dict[str, bytes] = field(default_factory=dict)


class Recorder:
    """Recorder of a series."""

    __slots__ = ("_columns", "begin", "end", "length", "width")

    def __init__(self, begin: float) -> None:
        self.begin, self.end = begin, begin
        self.width = 1.0
        self.length = 0
        self._columns: dict[str, tuple[array[float], array[float]]] = {}

    @classmethod
    def resumed(cls, saved: Recording) -> Recorder:
        """Return a recorder that continues a saved series."""
        recorder = cls(saved.begin)
        recorder.width, recorder.end, recorder.length = saved.width, saved.end, min(COLUMNS, saved.length)
        for name in READINGS:
            sums, seconds = array("f", saved.sums.get(name, b"")), array("f", saved.seconds.get(name, b""))
            if len(sums) == len(seconds) == COLUMNS:
                recorder._columns[name] = (sums, seconds)
        return recorder

    def save(self) -> Recording:
        """Return the series so far, to be continued later."""
        sums = {name: columns[0].tobytes() for name, columns in self._columns.items()}
        seconds = {name: columns[1].tobytes() for name, columns in self._columns.items()}
        return Recording(self.begin, self.width, self.end, self.length, sums, seconds)

    def add(self, begin: float, end: float, values: Mapping[str, float]) -> None:
        """Record readings that count from `begin` to `end`, in seconds since the epoch."""
        begin = max(begin, self.begin)
        if end <= begin:
            return
        while (last := math.ceil((end - self.begin) / self.width)) > COLUMNS:
            self._fold()
        self.length, self.end = max(self.length, last), max(self.end, end)
        first = int((begin - self.begin) / self.width)
        if first + 1 == last:  # the usual case, once columns are wider than the pause between readings
            self._add(first, end - begin, values)
            return
        for column in range(first, last):
            start = self.begin + column * self.width
            part = min(end, start + self.width) - max(begin, start)
            if part > 0:
                self._add(column, part, values)

    def _add(self, column: int, seconds: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            columns = self._columns.get(name)
            if columns is None:
                columns = self._columns[name] = (_empty(), _empty())
            columns[0][column] += value * seconds
            columns[1][column] += seconds

    def _fold(self) -> None:
        self.width *= 2
        self.length = -(-self.length // 2)
        self._columns = {name: (_folded(sums), _folded(secs)) for name, (sums, secs) in self._columns.items()}

    def series(self) -> Series:
        """Return the means so far."""
        means = {
            name: tuple(
                total / read if read else None
                for total, read in zip(sums[: self.length], seconds[: self.length], strict=True)
            )
            for name, (sums, seconds) in self._columns.items()
        }
        return Series(self.begin, self.width, self.end, means)


class _Packed(Struct, array_like=True):
    """Packed form of a series."""

    begin: float
    width: float
    end: float
    length: int
    names: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    """Minimum and maximum mean of each reading."""
    levels: bytes
    """Levels of all readings in sequence, one byte per column."""


def packed(series: Series) -> str:
    """Return the series as ASCII of at most `MOST_BYTES`; a mean is off by at most 1/500 of its reading's range."""
    named = {name: series.means[name] for name in READINGS if name in series.means}
    ranges = tuple(_range(means) for means in named.values())
    levels = bytes(chain.from_iterable(map(_levels, named.values(), ranges)))
    length = max(map(len, named.values()), default=0)
    told = _Packed(series.begin, series.width, series.end, length, tuple(named), ranges, levels)
    return base64.b85encode(zlib.compress(msgspec.msgpack.encode(told), 9)).decode()


def unpacked(text: str) -> Series | None:
    """Return the series; None if the text is not a packed series."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b85decode(text), 4 * MOST_BYTES)
        told = decode_msgpack(data, _Packed)
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return None
    if not unpacker.eof or len(told.levels) != told.length * len(told.names) or len(told.ranges) != len(told.names):
        return None
    means = {
        name: tuple(_mean(level, told.ranges[place]) for level in told.levels[place * told.length :][: told.length])
        for place, name in enumerate(told.names)
    }
    return Series(told.begin, told.width, told.end, means)


def _range(means: Sequence[float | None]) -> tuple[float, float]:
    known = [mean for mean in means if mean is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _levels(means: Sequence[float | None], over: tuple[float, float]) -> bytes:
    least, most = over
    span = (most - least) or 1.0
    return bytes(_GAP if mean is None else round((mean - least) / span * _TOP) for mean in means)


def _mean(level: int, over: tuple[float, float]) -> float | None:
    least, most = over
    return None if level == _GAP else least + (most - least) * min(level, _TOP) / _TOP


def _empty() -> array[float]:
    return array("f", bytes(4 * COLUMNS))


def _folded(numbers: array[float]) -> array[float]:
    half = array("f", [one + two for one, two in zip(numbers[::2], numbers[1::2], strict=True)])
    return half + array("f", bytes(4 * (COLUMNS - len(half))))
