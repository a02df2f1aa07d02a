"""GPUs of another machine, read in a container of its engine."""

from __future__ import annotations

import io
import socket
import struct
import tarfile
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread
from typing import Any

import docker
import pytest
from docker import APIClient

from gputui.bootstrap import SystemClock
from gputui.domain.gpu import ProbeCode
from gputui.domain.settings import RuntimeSettings
from gputui.gpus.remote_probe import remote_probe
from gputui.gpus.supervisor import first_reading
from gputui.runtime.docker.engine import GpuMode
from gputui.runtime.docker.engine_machine import NAME, ContainerStream, hosts
from gputui.runtime.docker.job_exec import ContainerChannel
from gputui.runtime.docker.logs import frames
from gputui.runtime.docker.records import is_probe
from gputui.runtime.docker.transport import EngineSocket
from tests.gpus.machines import Elsewhere
from tests.gpus.standin import UUID, build
from tests.gpus.watching import FAST, Watcher, is_whole
from tests.remote.image import multiarch, python_archive
from tests.runtime.dockerd import IMAGE, Dockerd
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.nvml]
WITH_GPUS = "gputui-probe-test:latest"


@pytest.fixture(scope="module")
def client(engine: Dockerd) -> Iterator[APIClient]:
    """Yield a client of an engine that has an image with Python, whose NVML has two GPUs."""
    with closing(docker.APIClient(base_url=engine.host)) as made:
        packed = io.BytesIO(python_archive())
        behaviour = b"count 2\ngpu 1 temperature 66\ngpu 0 process 1 1048576 C\n"
        with tarfile.open(fileobj=packed, mode="a") as tar:
            tar.add(build() / "libnvidia-ml.so.1", f"{multiarch()}/libnvidia-ml.so.1")
            entry = tarfile.TarInfo("behaviour")
            entry.size = len(behaviour)
            tar.addfile(entry, io.BytesIO(behaviour))
        repository, tag = WITH_GPUS.split(":")
        changes = ["ENV NVML_STANDIN=/behaviour"]
        made.import_image_from_data(packed.getvalue(), repository=repository, tag=tag, changes=changes)
        yield made


def machine(engine: Dockerd, image: str = WITH_GPUS) -> Elsewhere:
    return Elsewhere(engine.host, RuntimeSettings(docker_host=engine.host, probe_image=image))


def probes(client: APIClient) -> list[dict[str, Any]]:
    return [each for each in client.containers(all=True) if each["Names"][0].startswith(f"/{NAME}")]


def test_gpus_are_read_in_a_container_that_goes_with_the_probe(engine: Dockerd, client: APIClient) -> None:
    watcher = Watcher(remote_probe(machine(engine), FAST, SystemClock()))
    watcher.probe.start()
    try:
        reading = watcher.until(is_whole)
        assert [gpu.uuid for gpu in reading.gpus] == [UUID.format(0), UUID.format(1)]
        assert reading.samples[UUID.format(1)].temperature == 66
        assert reading.machine
        assert reading.notes[0] == f"the GPUs of {reading.machine} are read in a container of {WITH_GPUS}"
        processes = reading.samples[UUID.format(0)].processes
        assert processes is not None
        assert [process.visible for process in processes] == [True]
        (container,) = probes(client)
        assert is_probe(client.inspect_container(container["Id"]))
        client.kill(container["Id"])
        lost = watcher.until(lambda reading: reading.status.code is not ProbeCode.OK)
        assert lost.status.code is ProbeCode.UNREACHABLE
        assert set(lost.samples) == set(reading.samples)
        watcher.until(lambda reading: reading.status.code is ProbeCode.OK)
    finally:
        watcher.probe.close()
    until(lambda: not probes(client), "it is removed")


def test_an_image_without_python_is_told(engine: Dockerd, client: APIClient) -> None:
    reading = first_reading(remote_probe(machine(engine, IMAGE), FAST, SystemClock()), 30)
    assert reading.status.code is ProbeCode.UNREACHABLE
    assert f"{IMAGE}: " in reading.status.text
    assert f"`docker pull {IMAGE}` there" in reading.status.hint
    assert reading.status.text.endswith(f" ({reading.status.hint})")
    assert reading.machine in reading.status.text
    until(lambda: not probes(client), "nothing is left")


class Endless(ContainerChannel):
    """Channel whose output comes faster than it can be taken."""

    def __init__(self, *, is_error: bool) -> None:
        super().__init__(
            EngineSocket(socket.socket()), b"", is_tty=False, resize=lambda rows, columns: None, exit_code=lambda: None
        )
        self.is_error = is_error

    @property
    def has_pending(self) -> bool:
        return True

    def receive(self) -> list[tuple[bool, bytes]]:
        return [(self.is_error, b"x" * 65536)]


class Halting(Endless):
    """Channel that has received a half of what was sent."""

    def __init__(self) -> None:
        super().__init__(is_error=False)
        self.ours, self.theirs = socket.socketpair()
        self.is_received, self.is_whole = Event(), Event()
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return self.ours.fileno()

    def receive(self) -> list[tuple[bool, bytes]]:
        self.is_received.set()
        assert self.is_whole.wait(60)
        return super().receive()

    def send(self, data: bytes) -> None:
        self.sent.append(data)


def test_a_command_waits_for_no_half_received_output() -> None:
    channel = Halting()
    stream = ContainerStream(channel, lambda: None)
    reader = Thread(target=stream.take)
    reader.start()
    assert channel.is_received.wait(60)
    for command in (b"pcie GPU-0\n", b"refresh\n"):
        stream.send(command)
    assert reader.is_alive()
    assert not channel.sent
    channel.is_whole.set()
    reader.join()
    assert channel.sent == [b"pcie GPU-0\n", b"refresh\n"]
    stream.send(b"alive\n")
    assert channel.sent[2:] == [b"alive\n"]
    stream.kill()
    for end in (channel.ours, channel.theirs):
        end.close()


def test_a_frame_without_an_end_is_not_kept() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = ContainerChannel(
            EngineSocket(ours), b"", is_tty=False, resize=lambda rows, columns: None, exit_code=lambda: None
        )
        sent = struct.pack(">BxxxL", 2, 2**32 - 1) + b"x"
        theirs.sendall(sent[:3])
        assert channel.receive() == []
        theirs.sendall(sent[3:])
        assert channel.receive() == [(True, b"x")]
        theirs.sendall(b"yz")
        assert channel.receive() == [(True, b"yz")]
    with pytest.raises(ValueError, match="too long"):
        list(frames(iter([sent])))


@pytest.mark.parametrize("is_error", [False, True])
def test_output_that_never_pauses_holds_nobody(is_error: bool) -> None:
    removed = Event()
    stream = ContainerStream(Endless(is_error=is_error), removed.set)
    taken = stream.take()
    assert taken is not None
    assert len(taken) <= 4 * 1024**2
    stream.kill()
    assert removed.is_set()


@pytest.mark.parametrize("mode", [GpuMode.NVIDIA, GpuMode.CDI])
def test_any_name_of_a_machine_is_told_as_it_is(mode: GpuMode) -> None:
    notes = [note for _, lacks in hosts(mode, "{0} {x}") for note in lacks]
    assert notes
    assert all("of {0} {x} " in note for note in notes)


def test_an_image_that_cannot_be_had_is_told(engine: Dockerd, client: APIClient) -> None:
    watcher = Watcher(remote_probe(machine(engine, "localhost:1/none:latest"), FAST, SystemClock()))
    watcher.probe.start()
    try:
        failed = watcher.until(lambda reading: reading.status.code is ProbeCode.UNREACHABLE)
    finally:
        watcher.probe.close()
    assert "localhost:1/none" in failed.status.text
    waiting = watcher.readings[0].status
    assert waiting.code is ProbeCode.STARTING
    assert waiting.text.endswith("gets the image localhost:1/none:latest, in which its GPUs are read")


def test_what_a_killed_console_left_is_removed(engine: Dockerd, client: APIClient) -> None:
    body = {"Image": IMAGE, "Cmd": ["true"], "Labels": {"gputui.probe": "1"}}
    names = (f"{NAME}ended", f"{NAME}new", "of-somebody")
    ended, theirs, others = (client.create_container_from_config(body, name)["Id"] for name in names)  # type: ignore[no-untyped-call]
    for each in (ended, others):
        client.start(each)
        client.wait(each)
    first_reading(remote_probe(machine(engine), FAST, SystemClock()), 30)
    until(lambda: [each["Id"] for each in probes(client)] == [theirs], "only the one that may start yet is there")
    for each in (theirs, others):
        client.remove_container(each)
