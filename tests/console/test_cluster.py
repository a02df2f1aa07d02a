"""A console whose queue belongs to a cluster, and what it has in place of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.bootstrap.hosting import console_options
from gputui.config import Options
from gputui.console import startup
from gputui.domain.cluster import Capability, Caps
from gputui.domain.settings import ClusterSettings, Settings
from gputui.engine.cluster.backend import EngineBackend
from gputui.engine.cluster.queue import EngineQueue
from gputui.ports.backend import About
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock


def test_what_is_lacking_follows_the_rights_that_the_cluster_tells() -> None:
    class Site(FakeCluster):
        told = Caps("Slurm", {Capability.DRAIN_NODE: "only operators drain nodes"})

        @property
        def caps(self) -> Caps:
            return self.told

    cluster = Site(FakeClock())
    backend = EngineBackend(EngineQueue(cluster), Settings())
    lacking = backend.about().caps.lacking
    assert lacking[Capability.DRAIN_NODE] == "only operators drain nodes"
    assert "for the queue of one machine, not for Slurm" in lacking[Capability.WHAT_IF]
    assert set(lacking) == {Capability.DRAIN_NODE, Capability.WHAT_IF}
    cluster.told = Caps("Slurm")
    assert set(backend.about().caps.lacking) == {Capability.WHAT_IF}


def test_its_log_lies_in_a_directory_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = replace(Settings(), cluster=ClusterSettings(engine="slurm"))
    about = About("cluster", "alice", "", Caps("Slurm"))
    found = console_options(Options(tmp_path / "elsewhere", settings=settings), startup.directory(), about)
    assert found.state == tmp_path / "gputui-console"
    assert found.state.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "elsewhere").exists()
