"""Searches cover the whole log of a running container, of which the console keeps only the end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gputui.domain.job_spec import JobId
from gputui.domain.settings import RuntimeSettings
from gputui.ports import LogStream
from gputui.ports.backend import LogRequest
from gputui.runtime.docker.runtime import DockerRuntime
from gputui.tui.present.log import without_stamp
from gputui.tui.widgets.log_follower import ANCHOR, TAIL, KnownLines, LogFollower, read_region, scan
from gputui.tui.widgets.log_lines import PackedLines
from gputui.tui.widgets.log_pattern import Pattern
from tests.factories import FakeClock
from tests.runtime.contract import Harness, shell
from tests.runtime.dockerd import IMAGE, Dockerd

pytestmark = pytest.mark.docker

LINES = 6000
SCRIPT = f"""i=0; while [ $i -lt {LINES} ]; do
case $i in *007) echo "step $i needle";; *) echo "step $i";; esac; i=$((i + 1)); done; sleep 60"""


class Opener:
    """Opener of the log of one container."""

    def __init__(self, runtime: DockerRuntime, container_id: str) -> None:
        self._runtime, self._container_id = runtime, container_id

    def log(self, job_id: JobId, request: LogRequest) -> LogStream:
        return self._runtime.logs(self._container_id, tail=request.tail, follow=request.follow, stamped=request.stamped)


@pytest.fixture
def harness(engine: Dockerd) -> Iterator[Harness]:
    settings = RuntimeSettings(docker_host=engine.host)
    harness = Harness(lambda store: DockerRuntime(store, settings, FakeClock()), image=IMAGE, name="docker")
    yield harness
    harness.clean()


def test_all_of_a_running_containers_log_is_searched(harness: Harness) -> None:
    runtime = harness.open()
    assert isinstance(runtime, DockerRuntime)
    created = runtime.create(harness.launch(shell(SCRIPT)))
    runtime.start(created.id)
    first = runtime.logs(created.id, follow=True)
    for line in first:
        if line == b"step %d" % (LINES - 1):
            break
    first.close()
    arrived = threading.Event()
    follower = LogFollower(Opener(runtime, created.id), 1, 1)
    lines = PackedLines()
    follower.start(arrived.set)
    while len(lines) < TAIL:
        assert arrived.wait(60)
        arrived.clear()
        lines.extend(follower.take()[0])
    told: list[str] = []
    found = scan(
        follower,
        Pattern("needle$"),
        KnownLines(tuple(lines.between(0, ANCHOR)), len(lines)),
        0,
        lambda: True,
        told.append,
    )
    assert (found.fault, found.shift) == ("", LINES - TAIL)
    assert [number + found.shift for number in found.numbers] == [1007, 2007, 3007, 4007]
    island = read_region(follower, found.shift, found.numbers[0], lambda: True)
    assert without_stamp(island.line(found.numbers[0])) == b"step 1007 needle"
    follower.close()
