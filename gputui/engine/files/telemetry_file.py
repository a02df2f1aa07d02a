"""Telemetry of attempts on disk, beside their logs: sums that the next scheduler continues, later only the series.

A file is replaced as a whole. It may be lost at any time: then the graphs are lost too, and a running attempt's figures
cover less time.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
from msgspec import Struct

from gputui.domain.attempt import Attempt
from gputui.domain.decoding import msgpack_decoder
from gputui.domain.job import Job
from gputui.domain.job_spec import JobId
from gputui.domain.telemetry_series import Measured, Series, packed, unpacked
from gputui.domain.telemetry_tally import Tally, TallyRecord
from gputui.engine.files.file_modes import file_mode, folder_in, new_file, open_regular

_MOST = 1 << 18
"""Maximum number of bytes that are read."""


class TelemetryFile(Struct, omit_defaults=True):
    """Contents of the file of an attempt."""

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


def encode_running(container_id: str, tally: Tally) -> bytes:
    """Return the contents for an attempt that runs."""
    return _ENCODER.encode(TelemetryFile(container_id, tally=tally.save()))


def encode_ended(container_id: str, series: Series) -> bytes:
    """Return the contents for an attempt that has ended."""
    return _ENCODER.encode(TelemetryFile(container_id, series=packed(series)))


def read(directory: Path, job_id: JobId, attempt: int, container_id: str | None) -> TelemetryFile | None:
    """Return the contents if they belong to that container; None if missing or invalid."""
    try:
        with os.fdopen(open_regular(directory / telemetry_path(job_id, attempt)), "rb") as file:
            found = _DECODER.decode(file.read(_MOST))
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.container_id == (container_id or "") else None


def write(directory: Path, job_id: JobId, attempt: int, data: bytes, *, durably: bool) -> None:
    """Replace the contents of the file; raises OSError."""
    place, _, name = telemetry_path(job_id, attempt).rpartition("/")
    with folder_in(directory, place) as folder:
        partial = folder / f".{name}.{os.getpid()}.{threading.get_native_id()}"
        try:
            with os.fdopen(new_file(partial, file_mode(directory)), "wb") as file:
                file.write(data)
                if durably:
                    file.flush()
                    os.fsync(file.fileno())
            partial.replace(folder / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def measured(directory: Path, job: Job, attempt: Attempt) -> Measured:
    """Return the telemetry of an attempt; that of a running one is up to a minute old."""
    found = read(directory, job.id, attempt.number, attempt.container_id)
    if found is None or found.tally is None:
        return Measured(attempt.telemetry, unpacked(found.series) if found and found.series else None)
    tally = Tally(found.tally)
    if attempt.telemetry is not None:
        return Measured(attempt.telemetry, tally.series())
    return Measured(tally.summary(tally.read_at, job.spec.gpus.promised), tally.series())
