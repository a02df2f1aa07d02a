"""Telemetry of attempts on disk, beside their logs: sums that the next process continues, later only the series.

A file is replaced as a whole. It may be lost at any time: then the graphs are lost too, and a running attempt's figures
cover less time.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct, field

from gputui.domain.decoding import json_decoder, msgpack_decoder
from gputui.domain.gpu_history import KEPT, Step, Stepper, TakenStep
from gputui.domain.job import Attempt, Job
from gputui.domain.job_spec import JobId
from gputui.domain.snapshot import Snapshot
from gputui.domain.telemetry_series import Measured, Tally, TallyRecord, packed, unpacked
from gputui.engine.files import folder_in, open_file, open_regular, read_file, replace_file

log = logging.getLogger(__name__)

_MOST = 1 << 18
"""Maximum number of bytes that are read."""


class TelemetryFile(Struct, omit_defaults=True):
    container_id: str = ""
    """Container of the attempt; a queue that was set up again reuses the same numbers."""
    tally: TallyRecord | None = None
    """Sums of an attempt that runs."""
    series: str = ""
    """Packed series of one that has ended."""


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgpack_decoder(TelemetryFile)


def telemetry_path(job_id: JobId, attempt: int) -> str:
    """Return the path of the file, relative to the state directory."""
    return f"logs/{job_id}/{attempt}.telemetry"


def read(directory: Path, job_id: JobId, attempt: int, container_id: str | None) -> TelemetryFile | None:
    """Return the contents if they belong to that container; None if missing or invalid."""
    try:
        with os.fdopen(open_regular(directory / telemetry_path(job_id, attempt)), "rb") as file:
            found = _DECODER.decode(file.read(_MOST))
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.container_id == (container_id or "") else None


def write(directory: Path, job_id: JobId, attempt: int, data: bytes, *, durably: bool) -> None:
    place, _, name = telemetry_path(job_id, attempt).rpartition("/")
    with folder_in(directory, place) as folder:
        replace_file(folder / name, data, is_durable=durably)


def measured(directory: Path, job: Job, attempt: Attempt) -> Measured:
    """Return the telemetry of an attempt; that of a running one is up to a minute old."""
    found = read(directory, job.id, attempt.number, attempt.container_id)
    if found is None or found.tally is None:
        return Measured(attempt.telemetry, unpacked(found.series) if found and found.series else None)
    tally = Tally(found.tally)
    if attempt.telemetry is not None:
        return Measured(attempt.telemetry, tally.series())
    return Measured(tally.summary(tally.read_at, job.spec.gpus.promised), tally.series())


AttemptKey: TypeAlias = tuple[JobId, int]
"""Job and number of an attempt."""
_SAVE_EVERY = 60.0
_FIRST_SAVE = 10.0
"""Seconds after which the sums are first saved, so that consoles soon have something to show."""
_JUMP = 5.0
"""Difference in seconds from which the start of an attempt counts as shifted with the clock."""


def attempt_key(job: Job) -> AttemptKey:
    return job.id, job.attempts[-1].number


class Measurement(Struct):
    """Tally of a running attempt; times are seconds since the epoch."""

    tally: Tally
    container_id: str
    saved_at: float
    asked_at: float = 0.0
    """Time of the last reading of its control group."""

    def encoded(self) -> bytes:
        return _ENCODER.encode(TelemetryFile(self.container_id, tally=self.tally.save()))


class AttemptTallies(Struct, eq=False):
    """Tallies by job and attempt number. Workers write the files."""

    _directory: Path
    _workers: Callable[[], Executor]
    running: dict[AttemptKey, Measurement] = field(default_factory=dict)

    def of(self, key: AttemptKey, attempt: Attempt, container_id: str, second: float) -> Measurement:
        """Return the measurement of an attempt that runs: a new one, or one that an earlier process began."""
        began = attempt.started_at.timestamp() if attempt.started_at else second
        measurement = self.running.get(key)
        if measurement is None:
            found = read(self._directory, *key, container_id)
            record = found.tally if found else None
            tally = Tally(record or TallyRecord(len(attempt.gpus), began, attempt.gpu_share))
            first = second - _SAVE_EVERY + _FIRST_SAVE
            measurement = self.running[key] = Measurement(tally, container_id, first)
        moved = began - measurement.tally.record.began
        if abs(moved) >= _JUMP:
            measurement.tally.shift(moved)
        return measurement

    def idle_since(self, key: AttemptKey) -> dict[str, tuple[float, float]]:
        """Return for each GPU of the attempt when it was last used and last read; empty before the first reading."""
        measurement = self.running.get(key)
        return measurement.tally.idle_since() if measurement else {}

    def save_if_due(self, key: AttemptKey, second: float) -> None:
        measurement = self.running[key]
        if measurement.tally.has_readings and abs(second - measurement.saved_at) >= _SAVE_EVERY:
            measurement.saved_at = second
            self._write(key, measurement.encoded())

    def save(self) -> None:
        """Write the sums of all attempts; on an error, measurements are lost if this process ends."""
        for key, measurement in self.running.copy().items():  # the last tick may still begin and end some
            if measurement.tally.has_readings:
                _write(self._directory, key, measurement.encoded(), durably=False)

    def close(self, key: AttemptKey) -> None:
        """Write the series of an attempt that has ended, and forget it."""
        measurement = self.running.pop(key)
        series = measurement.tally.series()
        if series.means:
            data = _ENCODER.encode(TelemetryFile(measurement.container_id, series=packed(series)))
            self._write(key, data, durably=True)

    def _write(self, key: AttemptKey, data: bytes, *, durably: bool = False) -> None:
        self._workers().submit(_write, self._directory, key, data, durably=durably)


def _write(directory: Path, key: AttemptKey, data: bytes, *, durably: bool) -> None:
    try:
        write(directory, *key, data, durably=durably)
    except OSError as error:
        log.debug("the telemetry of job %d is not kept: %s", key[0], error)
    except Exception:  # the border of a worker
        log.exception("writing the telemetry of job %d", key[0])


GPU_LOG = "gpus.jsonl"
_DIGITS = 3
_STEP_DECODER = json_decoder(TakenStep)


class GpuLog:
    """History of every GPU in the last hour, so that a new console starts with filled graphs.

    A file with a line of JSON for each step of ten seconds. It may be lost at any time, so it is never synced to disk,
    and a torn line is skipped. `add` blocks briefly every ten seconds; errors lose a step.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / GPU_LOG
        self._stepper = Stepper()
        self._lines: int | None = None

    def add(self, snapshot: Snapshot) -> None:
        step = self._stepper.add(snapshot)
        if step is None or not step.gpus:
            return
        try:
            if self._lines is None:
                self._lines = len(_lines(self._path))
            if self._lines >= 2 * KEPT:
                kept = _lines(self._path)[-KEPT:]  # the last hour
                replace_file(self._path, b"\n".join(kept))
                self._lines = len(kept)
            short = {
                uuid: Step(*(None if value is None else round(value, _DIGITS) for value in each))
                for uuid, each in step.gpus.items()
            }
            line = msgspec.json.encode(TakenStep(step.at, short))
            fd = open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            with os.fdopen(fd, "ab", buffering=0) as file:
                file.write(b"\n" + line)  # the previous line may be torn
            self._lines += 1
        except OSError as error:  # a full disk is no reason to stop scheduling
            log.debug("readings of GPUs are not kept: %s", error)


def read_gpu_log(directory: Path) -> list[TakenStep]:
    steps = []
    for line in _lines(directory / GPU_LOG)[-2 * KEPT :]:
        with suppress(msgspec.MsgspecError):
            steps.append(_STEP_DECODER.decode(line))
    return steps


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in read_file(path).split(b"\n") if line]
    except OSError:
        return []


FOLDER = "input"
_MARK_EVERY = 1.0


class InputMark(Struct, eq=False):
    """Record of a job's last input, for its idle timeout: the modification time of a file.

    Processes of streams write it, which outlive the scheduler that reads it. It may be lost at any time.
    """

    _directory: Path
    _job_id: JobId
    _marked_at: float = float("-inf")

    def set(self) -> None:
        """Record input now, at most once in `_MARK_EVERY` seconds."""
        if time.monotonic() - self._marked_at < _MARK_EVERY:
            return
        self._marked_at = time.monotonic()
        with suppress(OSError), folder_in(self._directory, FOLDER) as folder:
            mark = open_file(folder / str(self._job_id), os.O_RDWR | os.O_CREAT)
            try:
                os.utime(mark)
            finally:
                os.close(mark)


def last_input(directory: Path, job_id: JobId) -> int:
    """Return the time of the last recorded input in nanoseconds; 0 for none."""
    with suppress(OSError):
        status = (directory / FOLDER / str(job_id)).stat(follow_symlinks=False)
        return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0
    return 0


def forget_input(directory: Path, job_id: JobId) -> None:
    if last_input(directory, job_id):
        with suppress(OSError), folder_in(directory, FOLDER) as folder:
            (folder / str(job_id)).unlink()
