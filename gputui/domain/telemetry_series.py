"""Readings of an attempt over time, for graphs and words: a bounded number of columns, however long it runs.

A full series is folded: each pair of columns becomes one of double width. So means stay exact, and the start and the
end of the attempt always have a column.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_msgpack
from gputui.domain.job import Attempt, Job
from gputui.domain.telemetry import AttemptTelemetry, Spread, percent
from gputui.domain.units import format_duration, format_size

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
            self.width *= 2
            self.length = -(-self.length // 2)
            self._columns = {name: (_folded(sums), _folded(secs)) for name, (sums, secs) in self._columns.items()}
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


_HOUR = 3600


def summary_lines(found: AttemptTelemetry) -> Iterator[tuple[str, str]]:
    """Yield a label and a sentence for each known kind of reading."""
    hours = found.kilowatt_hours
    energy = f" per GPU; {_figures(hours)} kWh in all" if hours is not None else ""
    parts = [f"read {format_size(found.io_read)}"] if found.io_read is not None else []
    parts += [f"wrote {format_size(found.io_written)}"] if found.io_written is not None else []
    disks = ", ".join(parts)
    lines = (
        ("GPU time", _gpu_time(found)),
        ("GPU use", _spread(found.utilization, percent) + _idle(found)),
        ("SMs", _spread(found.sm_activity, percent)),
        ("bandwidth", _spread(found.memory_activity, percent)),
        ("GPU mem", _spread(found.gpu_memory, _size) + _of(found)),
        ("power", _spread(found.power, _watts) + energy),
        ("heat", _spread(found.temperature, _degrees)),
        ("slowed", _slowed(found)),
        ("CPU", _cpu(found)),
        ("memory", _spread(found.memory, _size)),
        ("disks", disks),
    )
    return ((label, words) for label, words in lines if words)


def unread_words(job: Job, attempt: Attempt, engine: str, *, is_read: bool) -> str:
    """Return why nothing is known of what an attempt in a cluster did with its GPUs; empty if it has none.

    `is_read` tells whether the settings want the nodes to be read.
    """
    if not attempt.started_at or not (attempt.gpus or job.spec.gpus.minimum or job.spec.gpus.everything):
        return ""
    if not attempt.gpus:
        seen = ", and no process of it was seen on one" if is_read else ""
        return f"nothing: {engine} does not tell which GPUs it has{seen}"
    if not is_read:
        return "nothing: the nodes are not read (cluster.probe)"
    return "nothing: no process of gputui read its nodes meanwhile" if attempt.is_over else "no readings yet"


def _gpu_time(found: AttemptTelemetry) -> str:
    if found.allocated is None:
        return ""
    busy = f", busy {_hours(found.busy)} of {_hours(found.known)} measured" if found.busy is not None else ""
    return f"{_hours(found.allocated)} GPU-hours allocated{busy}"


def _idle(found: AttemptTelemetry) -> str:
    return f"; idle {percent(found.idle)} of the time" if found.idle is not None else ""


def _of(found: AttemptTelemetry) -> str:
    total = f" of {format_size(found.gpu_memory_total)}" if found.gpu_memory_total else ""
    return f"{total} per GPU" if found.gpu_memory else ""


def _slowed(found: AttemptTelemetry) -> str:
    if not found.throttled:
        return ""
    return f"{percent(found.throttled)} of the time: {', '.join(found.throttle)}"


def _cpu(found: AttemptTelemetry) -> str:
    if found.cpu is None:
        return ""
    used = f"; in use {spread}" if (spread := _spread(found.cpus, _count)) else ""
    return f"{format_duration(timedelta(seconds=found.cpu))} of CPU time{used}"


def _spread(spread: Spread | None, written: Callable[[float], str]) -> str:
    if spread is None:
        return ""
    return f"mean {written(spread.mean)}, p95 {written(spread.p95)}, peak {written(spread.peak)}"


def _size(size: float) -> str:
    return format_size(int(size))


def _watts(power: float) -> str:
    return f"{power:.0f}W"


def _degrees(celsius: float) -> str:
    return f"{celsius:.0f}°C"


def _count(cpus: float) -> str:
    return _figures(cpus)


def _hours(seconds: float | None) -> str:
    """Return GPU-hours with three significant figures, since a job may last for a minute or for a month."""
    hours = (seconds or 0.0) / _HOUR
    return f"{hours:.1f}" if hours >= 100 else _figures(hours)


def _figures(value: float) -> str:
    """Return a value with three significant figures, or up to the unit or thousandth, never with an exponent."""
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
