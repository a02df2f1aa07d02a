"""Readings of an attempt over time, for graphs and words: a bounded number of columns, however long it runs.

A full series is folded: each pair of columns becomes one of double width. So means stay exact, and the start and the
end of the attempt always have a column.
"""

from __future__ import annotations

import base64
import math
import zlib
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from math import ceil, log
from typing import Any

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import decode_msgpack
from gputui.domain.gpu import GpuSample
from gputui.domain.job import Attempt, Job
from gputui.domain.telemetry import MAX_GAP, AttemptTelemetry, Consumption, Spread, percent
from gputui.domain.text import format_duration, format_size

_OF_GPUS = ("utilization", "sm_activity", "memory_activity", "gpu_memory", "power", "temperature")
READINGS = (*_OF_GPUS, "throttled", "cpus", "memory", "io_read", "io_written")
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


class Recorder(Struct, eq=False):
    begin: float
    end: float
    width: float = 1.0
    length: int = 0
    _columns: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)

    @classmethod
    def resumed(cls, saved: Recording) -> Recorder:
        recorder = cls(saved.begin, saved.end, saved.width, min(COLUMNS, saved.length))
        for name in READINGS:
            sums, seconds = array("f", saved.sums.get(name, b"")), array("f", saved.seconds.get(name, b""))
            if len(sums) == len(seconds) == COLUMNS:
                recorder._columns[name] = (sums, seconds)
        return recorder

    def save(self) -> Recording:
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
        means = {
            name: tuple(
                total / read if read else None
                for total, read in zip(sums[: self.length], seconds[: self.length], strict=True)
            )
            for name, (sums, seconds) in self._columns.items()
        }
        return Series(self.begin, self.width, self.end, means)


class _Packed(Struct, array_like=True):
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
    names = tuple(name for name in READINGS if name in series.means)
    ranges, levels = [], bytearray()
    for name in names:
        means = series.means[name]
        known = [mean for mean in means if mean is not None] or [0.0]
        least, most = min(known), max(known)
        span = (most - least) or 1.0
        ranges.append((least, most))
        levels += bytes(_GAP if mean is None else round((mean - least) / span * _TOP) for mean in means)
    length = max((len(series.means[name]) for name in names), default=0)
    form = _Packed(series.begin, series.width, series.end, length, names, tuple(ranges), bytes(levels))
    return base64.b85encode(zlib.compress(msgspec.msgpack.encode(form), 9)).decode()


def unpacked(text: str) -> Series | None:
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b85decode(text), 4 * MOST_BYTES)
        form = decode_msgpack(data, _Packed)
    except (ValueError, zlib.error, msgspec.MsgspecError):
        return None
    if not unpacker.eof or len(form.levels) != form.length * len(form.names) or len(form.ranges) != len(form.names):
        return None
    means = {
        name: tuple(
            None if level == _GAP else least + (most - least) * min(level, _TOP) / _TOP
            for level in form.levels[place * form.length :][: form.length]
        )
        for place, (name, (least, most)) in enumerate(zip(form.names, form.ranges, strict=True))
    }
    return Series(form.begin, form.width, form.end, means)


def _empty() -> array[float]:
    return array("f", bytes(4 * COLUMNS))


def _folded(numbers: array[float]) -> array[float]:
    half = array("f", [one + two for one, two in zip(numbers[::2], numbers[1::2], strict=True)])
    return half + array("f", bytes(4 * (COLUMNS - len(half))))


_HOUR = 3600


def summary_lines(found: AttemptTelemetry) -> Iterator[tuple[str, str]]:
    """Yield a label and a sentence for each known kind of reading."""
    time = ""
    if found.allocated is not None:
        busy = f", busy {_hours(found.busy)} of {_hours(found.known)} measured" if found.busy is not None else ""
        time = f"{_hours(found.allocated)} GPU-hours allocated{busy}"
    idle = f"; idle {percent(found.idle)} of the time" if found.idle is not None else ""
    total = f" of {format_size(found.gpu_memory_total)}" if found.gpu_memory_total else ""
    hours = found.kilowatt_hours
    slowed = f"{percent(found.throttled)} of the time: {', '.join(found.throttle)}" if found.throttled else ""
    cpu = ""
    if found.cpu is not None:
        used = f"; {spread} CPUs" if (spread := _spread(found.cpus, _figures)) else ""
        cpu = f"{format_duration(timedelta(seconds=found.cpu))} of CPU time{used}"
    io = (("read", found.io_read), ("wrote", found.io_written))
    lines = (
        ("GPU time", time),
        ("GPU use", _spread(found.utilization, percent) + idle),
        ("SMs", _spread(found.sm_activity, percent)),
        ("bandwidth", _spread(found.memory_activity, percent)),
        ("GPU mem", _spread(found.gpu_memory, _size) + (f"{total} per GPU" if found.gpu_memory else "")),
        (
            "power",
            _spread(found.power, "{:.0f}W".format)
            + (f" per GPU; {_figures(hours)} kWh in all" if hours is not None else ""),
        ),
        ("heat", _spread(found.temperature, "{:.0f}°C".format)),
        ("slowed", slowed),
        ("CPU", cpu),
        ("memory", _spread(found.memory, _size)),
        ("disks", ", ".join(f"{verb} {format_size(size)}" for verb, size in io if size is not None)),
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


def _spread(spread: Spread | None, written: Callable[[float], str]) -> str:
    if spread is None:
        return ""
    return f"mean {written(spread.mean)}, p95 {written(spread.p95)}, peak {written(spread.peak)}"


def _size(size: float) -> str:
    return format_size(int(size))


def _hours(seconds: float | None) -> str:
    """Return GPU-hours with three significant figures, since a job may last for a minute or for a month."""
    hours = (seconds or 0.0) / _HOUR
    return f"{hours:.1f}" if hours >= 100 else _figures(hours)


def _figures(value: float) -> str:
    """Return a value with three significant figures, or up to the unit or thousandth, never with an exponent."""
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


MAX_PAUSE = 60.0
"""Maximum seconds between two readings of a control group for computing a rate."""
IDLE = 0.01
"""Utilization up to which a GPU is idle."""
_FLAT = 16 * 1024**2
"""Bytes by which the memory of an unused GPU may change: the driver itself allocates some at times."""
_STEP = math.log(1.02)
_ZERO = -(10**6)
"""Bin of values of 0 and below."""
_SHARES = frozenset({"utilization", "sm_activity", "memory_activity"})


class Distribution(Struct):
    """Values with the seconds for which each was known; nearly equal ones are counted together."""

    seconds: float = 0.0
    total: float = 0.0
    peak: float = -math.inf
    bins: dict[int, float] = field(default_factory=dict)
    """Seconds by hundredths for shares, and by powers of 1.02 for other values."""

    def spread(self, *, is_share: bool = False) -> Spread | None:
        if not self.seconds:
            return None
        left, p95 = 0.95 * self.seconds * (1 - 1e-9), _ZERO
        for p95 in sorted(self.bins):
            left -= self.bins[p95]
            if left <= 0:
                break
        value = p95 / 100 if is_share else 0.0 if p95 == _ZERO else math.exp((p95 - 0.5) * _STEP)
        return Spread(_rounded(self.total / self.seconds), _rounded(min(self.peak, value)), self.peak)


class GpuTrack(Struct):
    """Last reading of a GPU, and its last sign of use; times are seconds since the epoch."""

    at: float
    used_at: float
    """Time of the last reading that showed use, or could not rule it out."""
    memory: int | None = None
    """Bytes in use when it was last used."""


class HostTrack(Struct):
    """Last reading of the control group."""

    at: float
    cpu: float | None = None
    io_read: int | None = None
    io_written: int | None = None


class TallyRecord(Struct):
    """Sums of an attempt, saved for the next scheduler."""

    gpus: int
    began: float
    """Start of the attempt, in seconds since the epoch."""
    share: float = 1.0
    read: float = 0.0
    """GPU-seconds covered by readings."""
    known: float = 0.0
    used: float = 0.0
    idle: float = 0.0
    """GPU-seconds of known utilization, weighted with it, and of idle GPUs."""
    energy: float = 0.0
    clocked: float = 0.0
    throttled: float = 0.0
    reasons: dict[str, float] = field(default_factory=dict)
    """GPU-seconds in which a GPU was slowed down: total, by reason, and those for which it was read."""
    memory_total: int | None = None
    spreads: dict[str, Distribution] = field(default_factory=dict)
    tracks: dict[str, GpuTrack] = field(default_factory=dict)
    host: HostTrack | None = None
    memory_peak: int | None = None
    """Peak bytes of memory, as recorded by the kernel."""
    recording: Recording | None = None


class Tally:
    """Accumulates the readings of an attempt."""

    def __init__(self, record: TallyRecord) -> None:
        self.record = record
        saved, record.recording = record.recording, None
        self._recorder = Recorder.resumed(saved) if saved else Recorder(record.began, record.began)

    def save(self) -> TallyRecord:
        self.record.recording = self._recorder.save()
        return self.record

    @property
    def has_readings(self) -> bool:
        return self.record.read > 0 or self.record.host is not None

    @property
    def read_at(self) -> float:
        """Return the time of the last reading, in seconds since the epoch."""
        return max(self._recorder.end, self.record.began)

    def shift(self, by: float) -> None:
        """Shift all times by this amount after the clock was set."""
        record = self.record
        record.began += by
        for track in record.tracks.values():
            track.at += by
            track.used_at += by
        if record.host is not None:
            record.host.at += by
        self._recorder.begin += by
        self._recorder.end += by

    def add(self, sample: GpuSample, own: Collection[str] | None = None) -> None:
        """Add a reading if it is new; `own` are the names of the attempt's processes on a shared GPU."""
        at, record = sample.sampled_at.timestamp(), self.record
        track = record.tracks.get(sample.uuid)
        if track is None:
            track = record.tracks[sample.uuid] = GpuTrack(record.began, record.began)
        last = track.at
        if at <= last:
            if last - at > MAX_GAP:  # the clock was set back
                track.at = track.used_at = at
            return
        track.at = at
        seconds = min(MAX_GAP, at - last)
        values = _attributed(sample, own, record.share)
        memory = values.get("gpu_memory")
        # unused: idle, with as much memory as when it was last used
        is_flat = memory is not None and track.memory is not None and abs(memory - track.memory) <= _FLAT
        if at - last > MAX_GAP or values.get("utilization") != 0 or not is_flat:
            track.used_at = at
            track.memory = None if memory is None else int(memory)
        self._count(sample, values, seconds)
        self._recorder.add(at - seconds, at, values)

    def _count(self, sample: GpuSample, values: dict[str, float], seconds: float) -> None:
        record = self.record
        record.read += seconds
        utilization = values.get("utilization")
        if utilization is not None:
            record.known += seconds
            record.used += seconds * utilization
            record.idle += seconds * (utilization <= IDLE)
        record.energy += values.get("power", 0.0) * seconds
        record.clocked += seconds
        if values.get("throttled"):
            record.throttled += seconds
            for reason in sample.throttle:
                record.reasons[reason] = record.reasons.get(reason, 0.0) + seconds
        if sample.memory_total is not None:
            record.memory_total = max(sample.memory_total, record.memory_total or 0)
        for name, value in values.items():
            if name != "throttled":
                self._spread(name, value, seconds)

    def add_host(self, found: Consumption, at: float) -> None:
        """Add a reading of the control group, in which only the attempt has run."""
        record = self.record
        before = record.host or HostTrack(record.began, 0.0, 0, 0)
        if at <= before.at:
            return
        record.host = HostTrack(at, found.cpu, found.io_read, found.io_written)
        most = max(filter(None, (found.memory_peak, found.memory)), default=None)
        record.memory_peak = most if record.memory_peak is None else max(record.memory_peak, most or 0)
        seconds = at - before.at
        if seconds > MAX_PAUSE:
            return
        rates = {
            "cpus": _rate(before.cpu, found.cpu, seconds),
            "memory": found.memory,
            "io_read": _rate(before.io_read, found.io_read, seconds),
            "io_written": _rate(before.io_written, found.io_written, seconds),
        }
        values = {name: float(value) for name, value in rates.items() if value is not None}
        for name in ("cpus", "memory"):
            if name in values:
                self._spread(name, values[name], seconds)
        self._recorder.add(before.at, at, values)

    def _spread(self, name: str, value: float, seconds: float) -> None:
        found = self.record.spreads.get(name)
        if found is None:
            found = self.record.spreads[name] = Distribution()
        is_share = name in _SHARES
        place = ceil(value * 100 - 1e-6) if is_share else ceil(log(value) / _STEP) if value > 0 else _ZERO
        found.seconds += seconds
        found.total += value * seconds
        if value > found.peak:
            found.peak = value
        bins = found.bins
        bins[place] = bins.get(place, 0.0) + seconds

    def idle_since(self) -> dict[str, tuple[float, float]]:
        """Return when each GPU was last used, and when it was last read, in seconds since the epoch."""
        return {uuid: (track.used_at, track.at) for uuid, track in self.record.tracks.items()}

    def series(self) -> Series:
        return self._recorder.series()

    def summary(self, ended: float, asked: int = 0) -> AttemptTelemetry | None:
        """Return the figures until `ended`, in seconds since the epoch; None if nothing was read.

        `asked` are the promised bytes of a shared GPU.
        """
        if not self.has_readings:
            return None
        record = self.record
        found: dict[str, Any] = {}
        if record.gpus:
            allocated = round(record.gpus * record.share * max(0.0, ended - record.began), 3)
            found["allocated"] = allocated
        if record.gpus and record.read:
            known = min(allocated, record.known * record.share) if record.known else None
            busy = None if known is None else min(known, record.used * record.share)
            found |= {
                "seconds": round(record.read / record.gpus, 1),
                "known": None if known is None else round(known, 3),
                "busy": None if busy is None else round(busy, 3),
                "idle": round(record.idle / record.known, 4) if record.known else None,
                **{name: self._spread_of(name) for name in _OF_GPUS},
                "gpu_memory_total": asked or record.memory_total,
                "energy": round(record.energy, 1) if "power" in record.spreads else None,
                "throttled": round(record.throttled / record.clocked, 4) if record.clocked else None,
                "throttle": tuple(sorted(record.reasons, key=lambda reason: -record.reasons[reason])),
            }
        if (host := record.host) is not None:
            memory = self._spread_of("memory")
            if memory is not None and record.memory_peak is not None:
                memory = Spread(memory.mean, memory.p95, max(memory.peak, float(record.memory_peak)))
            found |= {"cpu": None if host.cpu is None else round(host.cpu, 3), "cpus": self._spread_of("cpus")}
            found |= {"memory": memory, "io_read": host.io_read, "io_written": host.io_written}
        return AttemptTelemetry(**found)

    def _spread_of(self, name: str) -> Spread | None:
        found = self.record.spreads.get(name)
        return found.spread(is_share=name in _SHARES) if found else None


def _attributed(sample: GpuSample, own: Collection[str] | None, share: float) -> dict[str, float]:
    """Return the known readings of a GPU that belong to the attempt.

    For a shared GPU these are memory and time of its processes, and its tenant's share of the power. For a MIG instance
    the driver reports no power, or that of the whole GPU.
    """
    is_alone, utilization, memory = True, sample.utilization, sample.memory_used
    if own is not None:
        listed = sample.processes
        mine = [each for each in listed or () if each.container_id in own or each.attempt in own]
        is_alone = listed is not None and len(mine) == len(listed)
        memory = None if listed is None else sum(each.memory or 0 for each in mine)
        if not is_alone and utilization:  # the driver reports shares of those processes only that ran recently, or none
            has_shares = any(each.sm is not None for each in listed or ())
            utilization = min(1.0, sum(each.sm or 0.0 for each in mine)) if has_shares else None
    power = None if sample.uuid.startswith("MIG-") or sample.power is None else sample.power * share
    found = {
        "utilization": utilization,
        "sm_activity": sample.sm_activity if is_alone else None,
        "memory_activity": sample.memory_activity if is_alone else None,
        "gpu_memory": memory,
        "power": power,
        "temperature": sample.temperature,
        "throttled": float(bool(sample.slowed)),
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def _rate(before: float | None, now: float | None, seconds: float) -> float | None:
    return (now - before) / seconds if now is not None and before is not None and now >= before else None


def _rounded(value: float) -> float:
    """Return the value to six significant figures: more are noise, and would be stored with each attempt."""
    return float(f"{value:.6g}")
