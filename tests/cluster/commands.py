"""Commands over a fake cluster."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gputui import bootstrap
from gputui.bootstrap import clusters
from gputui.cli.main import run as run_command
from tests.cluster.fake import FakeCluster
from tests.factories import ACTOR, FakeClock
from tests.results import Result

Run = Callable[..., Result]
MakeCluster = Callable[[FakeCluster], FakeCluster]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(bootstrap, "clock", lambda: clock)
    return clock


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> MakeCluster:
    """Make all commands of a test use a cluster."""
    monkeypatch.setenv("GPUTUI_CLUSTER", "slurm")
    monkeypatch.setattr(bootstrap, "actor", lambda: ACTOR)

    def use(cluster: FakeCluster) -> FakeCluster:
        monkeypatch.setattr(clusters, "open_cluster", lambda options: cluster)
        return cluster

    return use


@pytest.fixture
def cluster(use: MakeCluster, clock: FakeClock) -> FakeCluster:
    """Return a cluster of three nodes with two GPUs each, of which the user is an operator."""
    return use(FakeCluster(clock))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command."""

    def run(*arguments: str) -> Result:
        code = run_command(arguments)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    return run
