"""Probes of nodes that the processes of a user share: one has the nodes read, others take its readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from gputui.domain.gpu import ProbeCode, ProbeReading, ProbeStatus
from gputui.engine.cluster.poll import Turn
from gputui.gpus.node_probes import LOOKS_LAST, NEWS_LAST, SharedNodeProbes, private_directory
from tests.factories import FakeClock, gpu, sample

STARTING = ProbeReading(ProbeStatus(ProbeCode.STARTING))


class Own:
    """Probes of one process, whose readings the test makes."""

    interval = timedelta(seconds=2)

    def __init__(self, changed: Callable[[], object]) -> None:
        self.changed = changed
        self.followed: tuple[str, ...] = ()
        self.found: dict[str, ProbeReading] = {}
        self.focus: tuple[str | None, str | None] = (None, None)
        self.is_closed = False

    def follow(self, nodes: Iterable[str]) -> None:
        self.followed = tuple(nodes)

    def readings(self) -> Mapping[str, ProbeReading]:
        return {name: self.found.get(name, STARTING) for name in self.followed}

    def want_pcie(self, node: str | None, uuid: str | None) -> None:
        self.focus = (node, uuid)

    def close(self) -> None:
        self.is_closed = True

    def read(self, node: str, load: float) -> None:
        taken = sample(0, utilization=load)
        self.found[node] = ProbeReading(ProbeStatus(ProbeCode.OK, ""), (gpu(0),), {taken.uuid: taken})
        self.changed()


class Site:
    """Processes of one user, and the time by which files get old."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.seconds = 1_000_000.0
        self.own: list[Own] = []

    def process(self, *nodes: str) -> SharedNodeProbes:
        def make(changed: Callable[[], object]) -> Own:
            self.own.append(Own(changed))
            return self.own[-1]

        turn, interval = Turn(self.directory / "duty"), timedelta(seconds=2)
        made = SharedNodeProbes(self.directory, turn, make, FakeClock(), interval, wall=lambda: self.seconds)
        made.follow(nodes)
        return made

    def passes(self, seconds: float, *processes: SharedNodeProbes) -> None:
        self.seconds += seconds
        for process in processes:
            process.follow(("gpu1", "gpu2"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def loads(process: SharedNodeProbes) -> dict[str, list[float | None]]:
    readings = process.readings().items()
    return {node: [each.utilization for each in reading.samples.values()] for node, reading in readings}


def test_one_process_has_the_nodes_read_and_all_have_the_readings(site: Site) -> None:
    first, second = site.process("gpu1", "gpu2"), site.process("gpu1", "gpu2")
    assert [first.are_mine, second.are_mine] == [True, False]
    assert {reading.status.code for reading in second.readings().values()} == {ProbeCode.STARTING}
    [own] = site.own
    own.read("gpu1", 0.25)
    assert loads(first) == loads(second) == {"gpu1": [0.25], "gpu2": []}
    site.passes(2, first, second)
    own.read("gpu1", 0.5)
    own.read("gpu2", 0.75)
    assert loads(second) == {"gpu1": [0.5], "gpu2": [0.75]}
    assert second.readings()["gpu1"] == own.found["gpu1"]


def test_a_process_that_ends_leaves_the_nodes_to_another_which_shows_the_old_readings_meanwhile(site: Site) -> None:
    first, second = site.process("gpu1"), site.process("gpu1")
    site.own[0].read("gpu1", 0.25)
    assert loads(second) == {"gpu1": [0.25]}
    first.close()
    assert site.own[0].is_closed
    site.passes(2, second)
    assert second.are_mine
    assert loads(second) == {"gpu1": [0.25], "gpu2": []}
    site.own[1].read("gpu1", 0.5)
    assert loads(second) == {"gpu1": [0.5], "gpu2": []}


def test_nothing_is_written_while_nobody_looks(site: Site) -> None:
    first = site.process("gpu1")
    site.own[0].read("gpu1", 0.25)
    assert [path.name for path in site.directory.iterdir()] == ["duty"]
    second = site.process("gpu1")
    site.passes(2, first)
    assert loads(second) == {"gpu1": [0.25]}
    second.close()
    site.seconds += LOOKS_LAST + 1
    site.own[0].read("gpu1", 0.5)
    third = site.process("gpu1")
    assert loads(third) == {"gpu1": []}
    site.passes(2, first)
    assert loads(third) == {"gpu1": [0.5]}


def test_files_of_a_process_that_is_stopped_are_not_taken_for_news(site: Site) -> None:
    first, second = site.process("gpu1"), site.process("gpu1")
    site.passes(2, first, second)
    site.own[0].read("gpu1", 0.25)
    site.seconds += NEWS_LAST + 1
    assert loads(site.process("gpu1")) == {"gpu1": []}
    assert not second.are_mine


def test_details_are_read_of_the_gpu_that_another_process_shows(site: Site) -> None:
    first, second = site.process("gpu1"), site.process("gpu1")
    second.want_pcie("gpu2", "GPU-7")
    seen = []
    for seconds in (2, 4):
        site.passes(seconds, second, first)
        seen.append(site.own[0].focus)
    second.want_pcie(None, None)
    site.passes(6, second, first)
    assert [*seen, site.own[0].focus] == [("gpu2", "GPU-7"), ("gpu2", "GPU-7"), (None, None)]


def test_a_directory_that_another_user_can_write_is_not_used(tmp_path: Path) -> None:
    assert private_directory(tmp_path / "mine")
    (tmp_path / "shared").mkdir(0o777)
    (tmp_path / "shared").chmod(0o777)
    assert not private_directory(tmp_path / "shared")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    assert not private_directory(tmp_path / "link")
    (tmp_path / "file").write_text("")
    assert not private_directory(tmp_path / "file")
