"""Twenty followers over ten thousand jobs: the scheduler's passes stay within their time."""

from __future__ import annotations

import re
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gputui.domain.action import Pause
from gputui.domain.job_spec import GpuRequest, JobSpec
from tests.api.serving import connect
from tests.e2e.site import act_directly, submit_directly
from tests.machine_load import stretched
from tests.torture.owners import PATIENCE, Owners

pytestmark = [pytest.mark.torture, pytest.mark.timeout(600)]

JOBS, FOLLOWERS = 10_000, 20
SECONDS = 8.0
"""Seconds of a measurement for each unit of `--torture`."""
MOST = 0.25
"""Seconds that a pass may take on average with followers: a quarter of the interval in which they come."""


class Followers:
    """Readers of events that look for nothing but their ids: they cost next to nothing themselves."""

    def __init__(self, path: Path, count: int) -> None:
        self.last = [b""] * count
        self.bytes = 0
        self._selector = selectors.DefaultSelector()
        self._links: list[socket.socket] = []
        for number in range(count):
            link = connect(path)
            link.sendall(b"GET /v1/events HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n")
            self._selector.register(link, selectors.EVENT_READ, number)
            self._links.append(link)
        self._is_over = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select(0.2):
                assert isinstance(key.fileobj, socket.socket)
                data = key.fileobj.recv(1 << 20)
                assert data, "an owner has cut a follower off"
                self.bytes += len(data)
                if found := re.findall(rb"^id: (\S+)$", data, re.MULTILINE):
                    self.last[key.data] = found[-1]

    def close(self) -> None:
        self._is_over = True
        self._thread.join(PATIENCE)
        for link in self._links:
            link.close()


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    found = Owners(tmp_path / "state", settings='[metrics]\nenabled = true\nlisten = "127.0.0.1:0"\n')
    yield found
    found.close()


def passes(owners: Owners) -> tuple[float, float, float]:
    """Return the number of the scheduler's passes, their seconds, and the processor seconds of its process."""
    with closing(owners.client()) as client:
        page = client.request("GET", "/metrics").body.decode()
    count, seconds = (
        float(re.search(rf"^gputui_tick_duration_seconds_{name} (\S+)$", page, re.MULTILINE)[1])  # type: ignore[index]
        for name in ("count", "sum")
    )
    words = Path(f"/proc/{owners.pid}/stat").read_text().rpartition(")")[2].split()
    return count, seconds, (int(words[11]) + int(words[12])) / 100


class Measured:
    """Mean seconds of a pass, and share of a core, from one moment to another."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._begun, self._before = time.monotonic(), passes(owners)
        self.seconds = self.core = 0.0

    def end(self, words: str) -> None:
        after, elapsed = passes(self._owners), time.monotonic() - self._begun
        self.seconds = (after[1] - self._before[1]) / (after[0] - self._before[0])
        self.core = (after[2] - self._before[2]) / elapsed
        print(f"{words}: {self.seconds:.3f} s a pass, {self.core:.0%} of a core in {elapsed:.0f} s")


def change(owners: Owners, seconds: float) -> None:
    """Change a job each second."""
    begun = time.monotonic()
    for number in range(1, round(seconds) + 1):
        owners.told("priority", str(number), "+1")
        time.sleep(max(0.0, begun + number - time.monotonic()))


@pytest.mark.long
def test_followers_leave_the_scheduler_its_time(owners: Owners, torture: float) -> None:
    act_directly(owners.state, Pause("the test"))
    submit_directly(
        owners.state,
        [JobSpec(command=("true",), name=f"job-{n}", gpus=GpuRequest(1, 1), priority=n % 100) for n in range(JOBS)],
    )
    owners.begin()
    owners.until_it_answers()
    alone = Measured(owners)
    change(owners, SECONDS * torture)
    alone.end("\nalone")
    arriving = Measured(owners)
    with closing(Followers(owners.socket, FOLLOWERS)) as followers:
        until_all_have_heard_the_same(owners, followers)
        arriving.end("as twenty followers come")
        beside = Measured(owners)
        change(owners, SECONDS * torture)
        beside.end("with twenty followers")
        until_all_have_heard_the_same(owners, followers)
    print(f"{followers.bytes / FOLLOWERS / 1e6:.1f} MB for each follower")
    assert arriving.seconds < stretched(MOST)
    assert beside.seconds < stretched(MOST)


def until_all_have_heard_the_same(owners: Owners, followers: Followers) -> None:
    """Wait until each has the events up to a change."""
    before, deadline = set(followers.last), time.monotonic() + PATIENCE
    owners.told("priority", "1", "+1")
    while len(now := set(followers.last)) > 1 or now & before:
        assert time.monotonic() < deadline, followers.last
        time.sleep(0.02)
