"""Failures without any reading, end to end: real pynvml in a real probe process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.domain.gpu import ProbeCode
from tests.cases import cases
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn
from tests.gpus.watching import FAST, is_whole
from tests.lane import in_its_lane

pytestmark = pytest.mark.nvml


@cases(
    ("lines", "code", "word"),
    [
        (("init 18",), ProbeCode.DRIVER_MISMATCH, "reboot"),
        (("init 9",), ProbeCode.DRIVER_NOT_LOADED, "modprobe"),
        (("init 4",), ProbeCode.NO_PERMISSION, "/dev/nvidia"),
        (("init 999",), ProbeCode.UNKNOWN_ERROR, "Unknown Error (NVML error 999)"),
        (("init 17",), ProbeCode.BLOCKED, "operating system blocks"),
        (("init 16",), ProbeCode.RESET_REQUIRED, "--gpu-reset"),
        (("init 15",), ProbeCode.GPU_LOST, "reboot"),
        (("init 8",), ProbeCode.FAILED, "NVML error 8"),
        (("count_error 999",), ProbeCode.COUNT_FAILED, "Unknown Error"),
        (("count_error 15",), ProbeCode.COUNT_FAILED, "dmesg"),
        (("count 0",), ProbeCode.NO_GPUS, "lists no GPU"),
    ],
)
def test_the_status_says_why_there_are_no_gpus(
    standin: StandIn, watch: Start, lines: tuple[str, ...], code: ProbeCode, word: str
) -> None:
    standin.write(*lines)
    watcher = watch()
    reading = watcher.until(lambda reading: reading.status.code is not ProbeCode.STARTING)
    assert reading.status.code is code
    assert word in reading.status.text
    assert reading.gpus == ()


def test_a_missing_library_is_reported(tmp_path: Path, watch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")  # hides one that may be installed
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    reading = watch().until(lambda reading: reading.status.code is not ProbeCode.STARTING)
    assert reading.status.code is ProbeCode.NO_LIBRARY
    assert "install the driver" in reading.status.text


def test_readings_return_with_the_driver(standin: StandIn, watch: Start) -> None:
    standin.write("init 9")
    watcher = watch()
    watcher.until(lambda reading: reading.status.code is ProbeCode.DRIVER_NOT_LOADED)
    standin.write()
    assert len(watcher.until(lambda reading: reading.status.code is ProbeCode.OK).gpus) == 8


def test_a_failed_count_while_running_is_not_zero_gpus(standin: StandIn, watch: Start) -> None:
    watcher = watch()
    watcher.until(is_whole)
    standin.change("count_error 999")
    reading = watcher.until(lambda reading: reading.status.code is ProbeCode.COUNT_FAILED)
    assert len(reading.gpus) == 8
    assert len(reading.samples) == 8


def test_a_driver_wedged_at_start_is_reported(standin: StandIn, watch: Start) -> None:
    standin.write("hang *")
    watcher = watch(replace(FAST, hang_after=timedelta(seconds=1)))
    reading = watcher.until(lambda reading: reading.status.code is ProbeCode.WEDGED_AT_START)
    assert "did not answer" in reading.status.text
    standin.write()
    watcher.until(lambda reading: reading.status.code is ProbeCode.OK)


@pytest.mark.parametrize("function", ["*", in_its_lane("nvmlDeviceGetPowerUsage", is_long=True), "nvmlEventSetWait"])
def test_a_driver_wedged_later_keeps_the_last_samples_and_their_age(
    standin: StandIn, watch: Start, function: str
) -> None:
    watcher = watch(replace(FAST, hang_after=timedelta(seconds=1)))
    watcher.until(is_whole)
    standin.change(f"hang {function}")
    reading = watcher.until(lambda reading: reading.status.code is ProbeCode.WEDGED)
    assert "stopped answering" in reading.status.text
    assert reading.status.since is not None
    ages = {reading.status.since - sample.sampled_at for sample in reading.samples.values()}
    assert len(reading.samples) == 8
    assert min(ages) >= timedelta(seconds=1)
    standin.change(without=("hang",))
    back = watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
    assert all(sample.sampled_at > reading.status.since for sample in back.samples.values())
