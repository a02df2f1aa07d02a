"""GPUs of another machine: by its python3, and over a real sshd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from msgspec.structs import replace

from gputui.bootstrap import SystemClock
from gputui.domain.gpu import ProbeCode
from gputui.domain.settings import GpuSettings
from gputui.gpus.remote_probe import Machine, remote_probe
from gputui.gpus.supervisor import first_reading
from gputui.runtime.docker import endpoint
from tests.gpus.machines import ByShell, Elsewhere
from tests.gpus.standin import StandIn, uuid
from tests.gpus.watching import FAST, Watcher, is_whole
from tests.runtime.sshd import Sshd

Start = Callable[..., Watcher]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Watcher] = []

    def start(machine: Machine, settings: GpuSettings = FAST) -> Watcher:
        made.append(Watcher(remote_probe(machine, settings, SystemClock())))
        made[-1].probe.start()
        return made[-1]

    yield start
    for each in made:
        each.probe.close()
    endpoint.close_tunnels()


@pytest.mark.nvml
def test_gpus_of_another_machine_are_read_by_its_python(standin: StandIn, start: Start) -> None:
    standin.write("gpu 1 temperature 66", gpus=2)
    reading = start(ByShell()).until(is_whole)
    assert (reading.machine, reading.status.code) == ("gpu1", ProbeCode.OK)
    assert reading.samples[uuid(1)].temperature == 66
    assert reading.notes[0] == "the GPUs of gpu1 are read by its python3, over ssh"


@pytest.mark.nvml
def test_a_call_that_hangs_there_is_skipped_and_told(standin: StandIn, start: Start) -> None:
    standin.write("hang nvmlDeviceGetPowerUsage", gpus=2)
    watcher = start(ByShell(), replace(FAST, hang_after=timedelta(seconds=1)))
    wedged = watcher.until(lambda reading: reading.status.code is ProbeCode.WEDGED)
    assert wedged.status.text.startswith("no readings of gpu1: the NVIDIA driver has stopped answering")
    again = watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
    assert "the driver does not answer nvmlDeviceGetPowerUsage: what that reads is unknown" in again.notes


@pytest.mark.nvml
@pytest.mark.ssh
def test_a_connection_that_is_cut_makes_them_unknown_until_it_is_back(standin: StandIn, start: Start) -> None:
    standin.write(gpus=2)
    server = Sshd(standin.environment)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", server.path)
            patch.setattr(endpoint, "FIRST_PAUSE", 0.3)
            watcher = start(Elsewhere("ssh://lab/run/none.sock"))
            first = watcher.until(is_whole)
            server.cut()
            lost = watcher.until(lambda reading: reading.status.code is not ProbeCode.OK)
            assert lost.status.code is ProbeCode.UNREACHABLE
            assert lost.status.text.startswith(f"no readings of {first.machine}: ")
            assert lost.taken_at is not None
            assert set(lost.samples) == set(first.samples)
            back = watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
            assert back.taken_at is not None
            assert back.taken_at > lost.taken_at
            watcher.probe.close()
            endpoint.close_tunnels()
    finally:
        server.close()


@pytest.mark.nvml
def test_a_command_waits_for_its_first_reading(standin: StandIn) -> None:
    reading = first_reading(remote_probe(ByShell(), FAST, SystemClock()), 30)
    assert len(reading.samples) == 8
    assert reading.status.code is ProbeCode.OK
