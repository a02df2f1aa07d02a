"""Supervisor of the probe process: restarted, abandoned, never waited for, never left behind."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.bootstrap import SystemClock
from gputui.domain.gpu import HealthCode, ProbeCode, ProbeReading
from gputui.domain.settings import GpuSettings
from gputui.gpus.readings import ReadingAssembler
from gputui.gpus.supervisor import MOST_STUCK, NvmlProbe, ProbeProcess, first_reading
from tests.gpus.conftest import Start
from tests.gpus.standin import StandIn, uuid
from tests.gpus.watching import FAST, PATIENCE, Watcher, has_ended, is_whole, sample_of
from tests.machine_load import stretched
from tests.waiting import until

pytestmark = pytest.mark.nvml


def pid_of(watcher: Watcher) -> int:
    assert isinstance(watcher.probe, NvmlProbe)
    pid = watcher.probe.pid
    assert pid is not None
    return pid


def has_process_with(memory: int, reading: ProbeReading) -> bool:
    return [process.memory for process in sample_of(reading, 0).processes or ()] == [memory]


def test_a_killed_probe_is_reported_and_restarted(standin: StandIn, watch: Start) -> None:
    watcher = watch()
    watcher.until(is_whole)
    first = pid_of(watcher)
    os.kill(first, signal.SIGKILL)
    reading = watcher.until(lambda reading: reading.status.code is ProbeCode.DIED)
    assert "SIGKILL" in reading.status.text
    assert len(reading.samples) == 8
    back = watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
    assert pid_of(watcher) != first
    assert len(back.samples) == 8


def test_readings_that_cannot_be_taken_are_told_and_come_again(
    standin: StandIn, watch: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = watch()
    watcher.until(is_whole)

    def refuse(*_: object) -> None:
        raise KeyError("odd")

    with monkeypatch.context() as patch:
        patch.setattr(ReadingAssembler, "ingest", refuse)
        reading = watcher.until(lambda reading: reading.status.code is ProbeCode.DIED)
    assert "KeyError: 'odd'" in reading.status.text
    watcher.until(is_whole)


def test_the_last_error_output_of_a_probe_is_reported(watch: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    reading = watch().until(lambda reading: reading.status.code is ProbeCode.DIED)
    assert "encodings" in reading.status.text or "exit code" in reading.status.text


def test_a_hanging_probe_is_killed(standin: StandIn, watch: Start) -> None:
    watcher = watch(replace(FAST, hang_after=timedelta(seconds=1)))
    watcher.until(is_whole)
    hanging = pid_of(watcher)
    standin.change("hang *")
    watcher.until(lambda reading: reading.status.code is ProbeCode.WEDGED)
    until(lambda: has_ended(hanging), "it is gone")


class Unkillable(ProbeProcess):
    """Process in uninterruptible sleep, simulated: signals do nothing."""

    born: list[Unkillable] = []  # noqa: RUF012

    def __init__(self, settings: GpuSettings, skipped: Sequence[str] = ()) -> None:
        super().__init__(settings, skipped)
        self.born.append(self)

    def kill(self) -> None:
        """Do nothing."""


@pytest.fixture
def unkillable() -> object:
    Unkillable.born.clear()
    yield Unkillable
    for child in Unkillable.born:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


def test_stuck_probes_are_neither_awaited_nor_multiplied(
    standin: StandIn, watch: Start, unkillable: type[Unkillable]
) -> None:
    standin.write("hang *")
    watcher = watch(replace(FAST, hang_after=timedelta(seconds=0.1)), spawn=unkillable)
    deadline = time.monotonic() + PATIENCE
    while len(unkillable.born) < MOST_STUCK and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.6)  # several pauses more: another would have come by now
    assert len(unkillable.born) == MOST_STUCK
    before = time.monotonic()
    watcher.probe.close()
    assert time.monotonic() - before < stretched(1)


def test_close_does_not_wait_for_a_wedged_driver(standin: StandIn, watch: Start) -> None:
    watcher = watch()
    watcher.until(is_whole)
    pid = pid_of(watcher)
    standin.change("hang *")
    before = time.monotonic()
    watcher.probe.close()
    assert time.monotonic() - before < stretched(1)
    until(lambda: has_ended(pid), "it is gone")


def test_nothing_blocks_while_the_driver_hangs(standin: StandIn, watch: Start) -> None:
    standin.write("hang *")
    watcher = watch()
    before = time.monotonic()
    for _ in range(20_000):  # more than a pipe holds
        watcher.probe.refresh()
    watcher.probe.want_pcie(uuid(0))
    watcher.probe.latest()
    assert time.monotonic() - before < stretched(5)


def test_refresh_brings_processes_within_50_ms(standin: StandIn, watch: Start) -> None:
    lazy = replace(FAST, sample_interval=timedelta(hours=1), process_interval=timedelta(hours=1))
    watcher = watch(lazy)
    watcher.until(lambda reading: is_whole(reading) and reading.gpus[0].links)
    took = []
    for used in range(1, 12):
        standin.write(f"gpu 0 process {os.getpid()} {used}")
        asked = time.monotonic()
        watcher.probe.refresh()
        watcher.until(partial(has_process_with, used))
        took.append(time.monotonic() - asked)
    assert statistics.median(took) < stretched(0.05), took


def test_the_probe_dies_with_its_supervisor_even_when_it_hangs(standin: StandIn, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys, time\n"
        "from gputui.gpus.supervisor import NvmlProbe\n"
        "from gputui.bootstrap import SystemClock\n"
        "from tests.gpus.watching import FAST\n"
        "probe = NvmlProbe(FAST, SystemClock())\n"
        "probe.subscribe(lambda reading: print(probe.pid, flush=True))\n"
        "probe.start()\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        probe = int(parent.stdout.readline())
        standin.change("hang *")
        time.sleep(0.5)  # ten sweeps: by now it is inside a call, where it cannot see its stdin end
        assert not has_ended(probe)
        parent.kill()
    until(lambda: has_ended(probe), "it is gone")


def test_the_probe_ends_when_its_stdin_does(standin: StandIn) -> None:
    command = [sys.executable, "-m", "gputui.gpus.probe"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as probe:
        probe.communicate(timeout=PATIENCE)
        assert probe.returncode == 0


def test_the_probe_restarts_when_the_kernel_module_drives_other_gpus(standin: StandIn, tmp_path: Path) -> None:
    driven = tmp_path / "gpus"
    (driven / "0000:10:00.0").mkdir(parents=True)
    standin.write("fail nvmlDeviceGetTopologyCommonAncestor 3")  # no links: facts are told once
    command = [sys.executable, "-m", "gputui.gpus.probe", "0.05", "0.05", "0.05", str(driven)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as probe:
        assert probe.stdout is not None
        lines = iter(probe.stdout.readline, b"")
        kinds = [json.loads(next(lines))["kind"] for _ in range(8)]
        (driven / "0000:11:00.0").mkdir()
        assert any(json.loads(line)["kind"] == "facts" for line in lines)
        assert probe.poll() is None
    assert kinds == ["facts", *["sweep"] * 7]


def test_nothing_in_the_working_directory_is_imported(
    standin: StandIn, watch: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    watcher = watch()
    watcher.until(is_whole)
    assert all(reading.status.code in {ProbeCode.STARTING, ProbeCode.OK} for reading in watcher.readings)


def test_a_restarted_probe_reads_pcie_too(standin: StandIn, watch: Start) -> None:
    watcher = watch()
    watcher.probe.want_pcie(uuid(0))
    watcher.until(lambda reading: is_whole(reading) and sample_of(reading, 0).pcie_tx is not None)
    os.kill(pid_of(watcher), signal.SIGKILL)
    watcher.until(lambda reading: reading.status.code is ProbeCode.DIED)
    watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
    watcher.until(lambda reading: sample_of(reading, 0).pcie_tx is not None)


def test_a_listener_that_fails_does_not_stop_the_others(
    standin: StandIn, watch: Start, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = watch()
    failing = threading.Event()

    def fail(_: object) -> None:
        failing.set()
        raise ValueError("a listener's own trouble")

    watcher.probe.subscribe(fail)
    second = Watcher(watcher.probe)
    assert failing.wait(PATIENCE)
    second.next()
    assert "a listener of the GPU probe failed" in caplog.text


def test_the_probe_process_imports_little(standin: StandIn) -> None:
    code = "import gputui.gpus.probe.__main__, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "msgspec",
        "dataclasses",
        "typing",
        "pathlib",
        "logging",
        "asyncio",
        "textual",
        "gputui.domain",
    }


def test_the_first_reading_is_a_whole_one(standin: StandIn) -> None:
    standin.write("gpu 1 lost 1", f"gpu 0 process {os.getpid()} 5")
    reading = first_reading(NvmlProbe(FAST, SystemClock()), 20)
    assert reading.status.code is ProbeCode.OK
    assert len(sample_of(reading, 0).processes or ()) == 1
    assert sample_of(reading, 1).health.code is HealthCode.LOST


def test_the_first_reading_of_a_wedged_driver_is_over_in_time(standin: StandIn) -> None:
    standin.write("hang *")
    before = time.monotonic()
    probe = NvmlProbe(replace(FAST, hang_after=timedelta(seconds=0.4)), SystemClock())
    assert first_reading(probe, 0.5).status.code is ProbeCode.WEDGED_AT_START
    assert time.monotonic() - before < stretched(2)
