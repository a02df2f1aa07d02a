"""Tallies of running attempts, saved beside their logs so that the next process continues them."""

from __future__ import annotations

import logging
from collections.abc import Callable, KeysView
from concurrent.futures import Executor
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from gputui.domain.attempt import Attempt
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry_tally import Tally, TallyRecord
from gputui.engine.files import telemetry_file

log = logging.getLogger(__name__)

AttemptKey: TypeAlias = tuple[JobId, int]
"""Job and number of an attempt."""
_SAVE_EVERY = 60.0
_FIRST_SAVE = 10.0
"""Seconds after which the sums are first saved, so that consoles soon have something to show."""
_JUMP = 5.0
"""Difference in seconds from which the start of an attempt counts as shifted with the clock."""


class Measurement(Struct):
    """Tally of a running attempt; times are seconds since the epoch."""

    tally: Tally
    container_id: str
    saved_at: float
    asked_at: float = 0.0
    """Time of the last reading of its control group."""


class AttemptTallies:
    """Tallies by job and attempt number. Workers write the files."""

    def __init__(self, directory: Path, workers: Callable[[], Executor]) -> None:
        self._directory = directory
        self._workers = workers
        self._measured: dict[AttemptKey, Measurement] = {}

    @property
    def keys(self) -> KeysView[AttemptKey]:
        """Return the attempts that are being measured."""
        return self._measured.keys()

    def get(self, key: AttemptKey) -> Measurement | None:
        """Return the measurement of an attempt."""
        return self._measured.get(key)

    def of(self, key: AttemptKey, attempt: Attempt, container_id: str, second: float) -> Measurement:
        """Return the measurement of an attempt that runs: a new one, or one that an earlier process began."""
        began = attempt.started_at.timestamp() if attempt.started_at else second
        measurement = self._measured.get(key)
        if measurement is None:
            found = telemetry_file.read(self._directory, *key, container_id)
            record = found.tally if found else None
            tally = Tally(record or TallyRecord(len(attempt.gpus), began, attempt.gpu_share))
            first = second - _SAVE_EVERY + _FIRST_SAVE
            measurement = self._measured[key] = Measurement(tally, container_id, first)
        moved = began - measurement.tally.record.began
        if abs(moved) >= _JUMP:
            measurement.tally.shift(moved)
        return measurement

    def idle_since(self, key: AttemptKey) -> dict[str, tuple[float, float]]:
        """Return for each GPU of the attempt when it was last used and last read; empty before the first reading."""
        measurement = self._measured.get(key)
        return measurement.tally.idle_since() if measurement else {}

    def save_if_due(self, key: AttemptKey, second: float) -> None:
        """Write the sums of the attempt, once a minute."""
        measurement = self._measured[key]
        if measurement.tally.has_readings and abs(second - measurement.saved_at) >= _SAVE_EVERY:
            measurement.saved_at = second
            self._write(key, telemetry_file.encode_running(measurement.container_id, measurement.tally))

    def save(self) -> None:
        """Write the sums of all attempts; on an error, measurements are lost if this process ends."""
        for key, measurement in self._measured.copy().items():  # the last tick may still begin and end some
            if measurement.tally.has_readings:
                data = telemetry_file.encode_running(measurement.container_id, measurement.tally)
                _write(self._directory, key, data, durably=False)

    def close(self, key: AttemptKey) -> None:
        """Write the series of an attempt that has ended, and forget it."""
        measurement = self._measured.pop(key)
        series = measurement.tally.series()
        if series.means:
            self._write(key, telemetry_file.encode_ended(measurement.container_id, series), durably=True)

    def _write(self, key: AttemptKey, data: bytes, *, durably: bool = False) -> None:
        self._workers().submit(_write, self._directory, key, data, durably=durably)


def _write(directory: Path, key: AttemptKey, data: bytes, *, durably: bool) -> None:
    try:
        telemetry_file.write(directory, *key, data, durably=durably)
    except OSError as error:
        log.debug("the telemetry of job %d is not kept: %s", key[0], error)
    except Exception:  # the border of a worker
        log.exception("writing the telemetry of job %d", key[0])
