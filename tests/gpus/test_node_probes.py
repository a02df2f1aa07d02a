"""Probes of several nodes: real ones over the stand-in NVML, and commands that fail as ssh does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.gpu import ProbeCode, ProbeReading
from gputui.gpus.node_probes import NodeOutput, SshNodeProbes
from gputui.gpus.untrusted import MOST_GARBLED, ProcessStream
from tests.cases import cases
from tests.gpus.standin import StandIn, uuid
from tests.gpus.watching import PATIENCE, has_ended
from tests.waiting import until

PROBE = (sys.executable, "-P", "-m", "gputui", "probe")
INTERVAL = timedelta(seconds=0.2)


class Watched:
    """Probes of nodes, whose readings a test waits for."""

    def __init__(self, command: Callable[[str], Sequence[str]]) -> None:
        self._came = threading.Event()
        self.probes = SshNodeProbes(
            lambda node, every: command(node), SystemClock(), INTERVAL, pauses=(0.05,), changed=self._came.set
        )

    def until(self, node: str, wanted: Callable[[ProbeReading], object]) -> ProbeReading:
        """Return the first reading of a node that meets the condition."""
        deadline = time.monotonic() + PATIENCE
        while True:
            self._came.clear()
            reading = self.probes.readings().get(node)
            if reading is not None and wanted(reading):
                return reading
            assert time.monotonic() < deadline, f"never came; the last: {reading}"
            self._came.wait(0.5)


Watch = Callable[[Callable[[str], Sequence[str]]], Watched]


@pytest.fixture
def watch() -> Iterator[Watch]:
    made: list[Watched] = []

    def watch(command: Callable[[str], Sequence[str]]) -> Watched:
        made.append(Watched(command))
        return made[-1]

    yield watch
    for each in made:
        each.probes.close()


def is_read(reading: ProbeReading) -> bool:
    return reading.status.code is ProbeCode.OK


def test_a_node_whose_probe_dies_says_so_and_comes_back(standin: StandIn, watch: Watch, tmp_path: Path) -> None:
    standin.write("gpu 1 temperature 66", gpus=2)
    pids = tmp_path / "pids"
    command = ("sh", "-c", f'echo $$ >> {pids}; exec "$@"', "sh", *PROBE, "--every", "0.2")
    watched = watch(lambda node: command)
    watched.probes.follow(["gpu1"])
    first = watched.until("gpu1", is_read)
    assert first.samples[uuid(1)].temperature == 66
    assert [gpu.index for gpu in first.gpus] == [0, 1]
    os.kill(int(pids.read_text().split()[-1]), signal.SIGKILL)
    died = watched.until("gpu1", lambda reading: not is_read(reading))
    assert died.status.text == "no readings: its command ended with exit code -9"
    assert died.samples[uuid(1)].temperature == 66
    again = watched.until("gpu1", is_read)
    assert again.taken_at is not None
    assert again.taken_at > (died.taken_at or again.taken_at)
    pid = int(pids.read_text().split()[-1])
    watched.probes.follow([])
    until(lambda: has_ended(pid), "the probe has ended")
    until(lambda: not watched.probes.readings(), "there are no readings")


def test_what_cannot_be_taken_is_told_and_the_node_is_read_again(
    standin: StandIn, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.write(gpus=2)
    watched = watch(lambda node: (*PROBE, "--every", "0.2"))
    watched.probes.follow(["gpu1"])
    watched.until("gpu1", is_read)

    def refuse(*_: object) -> bool:
        raise KeyError("odd")

    with monkeypatch.context() as patch:
        patch.setattr(NodeOutput, "take", refuse)
        broken = watched.until("gpu1", lambda reading: reading.status.code is ProbeCode.FAILED)
    assert broken.status.text == "no readings: KeyError: 'odd'"
    watched.until("gpu1", is_read)


def test_no_error_ends_the_probes_of_nodes(standin: StandIn, watch: Watch) -> None:
    standin.write(gpus=2)
    faults = [KeyError("odd")]

    def command(node: str) -> Sequence[str]:
        if faults:
            raise faults.pop()
        return (*PROBE, "--every", "0.2")

    watched = watch(command)
    watched.probes.follow(["gpu1"])
    broken = watched.until("gpu1", lambda reading: reading.status.code is ProbeCode.FAILED)
    assert broken.status.text == "no readings: KeyError: 'odd'"
    watched.until("gpu1", is_read)


@cases(
    ("script", "words"),
    [
        ("echo 'debug1: x' >&2; echo 'me@gpu1: Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("echo 'sh: 1: gputui: not found' >&2; exit 127", "gputui is not installed there"),
        ("exit 255", "the ssh connection was lost"),
        ("echo \"Error: No such command 'probe'.\" >&2; exit 2", "gputui there is too old"),
        ("exit 0", "the connection was closed"),
        ("echo '\x1b[31mno\x07'; exec sleep 600", "it sends"),
    ],
)
def test_a_node_says_why_it_is_not_read(watch: Watch, script: str, words: str) -> None:
    loop = f"yes | head -n {MOST_GARBLED}; {script}" if "sleep" in script else script
    watched = watch(lambda node: ("sh", "-c", loop))
    watched.probes.follow(["gpu1"])
    reading = watched.until("gpu1", lambda reading: reading.status.code is ProbeCode.UNREACHABLE)
    assert words in reading.status.text
    assert not reading.samples


def test_a_command_that_is_missing_is_told(watch: Watch) -> None:
    watched = watch(lambda node: ("/nonexistent/ssh", node))
    watched.probes.follow(["gpu1"])
    reading = watched.until("gpu1", lambda reading: reading.status.code is ProbeCode.UNREACHABLE)
    assert reading.status.text == "no readings: /nonexistent/ssh: No such file or directory"


def test_few_nodes_are_connected_to_at_a_time(watch: Watch, tmp_path: Path) -> None:
    standing = tmp_path / "standing"
    standing.mkdir()
    script = 'touch "$1/$2"; if [ "$2" = n00 ]; then exit 3; fi; exec cat'
    watched = watch(lambda node: ("sh", "-c", script, "sh", str(standing), node))
    watched.probes.follow([f"n{number:02}" for number in range(30)])
    watched.until("n00", lambda reading: reading.status.code is ProbeCode.UNREACHABLE)
    until(lambda: len(list(standing.iterdir())) >= 8, "eight stand")
    assert len(list(standing.iterdir())) <= 9  # one of them has failed and made room
    watched.probes.close()


OF_ITSELF = """
import sys
from datetime import timedelta
from gputui.gpus.node_probes import SshNodeProbes
from gputui.bootstrap import SystemClock
probes = SshNodeProbes(lambda node, every: sys.argv[1:], SystemClock(), timedelta(seconds=0.2))
probes.follow(["gpu1"])
input()
"""


def test_a_reader_that_is_killed_leaves_no_probe(standin: StandIn, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = ("sh", "-c", f'echo $$ >> {pids}; exec "$@"', "sh", *PROBE)
    reader = subprocess.Popen([sys.executable, "-c", OF_ITSELF, *command], stdin=subprocess.PIPE)
    until(lambda: pids.exists() and pids.read_text().strip(), "it runs")
    pid = int(pids.read_text())
    assert not has_ended(pid)
    reader.kill()
    reader.communicate()
    until(lambda: has_ended(pid), "the probe has ended")


def test_a_probe_ends_when_nobody_speaks_to_it(standin: StandIn) -> None:
    words = [sys.executable, "-P", "-m", "gputui.gpus.probe", "0.1", "0.1", "1", "", "1"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as probe:
        assert probe.wait(PATIENCE) == -signal.SIGALRM


def test_only_the_stdin_of_a_probe_that_gets_its_source_is_enlarged() -> None:
    """A user may enlarge some 170 pipes, and a cluster may have more nodes."""
    command = (sys.executable, "-c", "import fcntl; print(fcntl.fcntl(0, fcntl.F_GETPIPE_SZ))")

    def printed(room: int) -> int:
        stream = ProcessStream(command, room=room)
        until(lambda: stream.is_over, "it has printed")
        data = stream.take()
        stream.close()
        return int(data or b"")

    assert (printed(0), printed(70_000)) == (64 * 1024, 128 * 1024)
