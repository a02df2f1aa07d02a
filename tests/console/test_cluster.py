"""What a console has in place of this machine when its queue belongs to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.config import Options
from gputui.console.cluster import Lacking, console_options
from gputui.domain.cluster import Capability, Caps
from gputui.domain.settings import ClusterSettings, Settings


def test_what_is_lacking_follows_the_rights_that_the_cluster_tells() -> None:
    told = [Caps("Slurm", {Capability.DRAIN_NODE: "only operators drain nodes"})]
    lacking = Lacking(lambda: told[-1])
    assert lacking[Capability.DRAIN_NODE] == "only operators drain nodes"
    assert Capability.HOLD not in lacking
    assert "for the queue of one machine, not for Slurm" in lacking[Capability.WHAT_IF]
    assert set(lacking) == {Capability.DRAIN_NODE, Capability.WHAT_IF}
    told.append(Caps("Slurm", {}))
    assert Capability.DRAIN_NODE not in lacking
    assert len(lacking) == 1


def test_its_log_lies_in_a_directory_of_the_user_and_it_forecasts_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    settings = replace(Settings(), cluster=ClusterSettings(engine="slurm"))
    found = console_options(Options(tmp_path / "elsewhere", settings=settings))
    assert found.state == tmp_path / "gputui-console"
    assert found.state.stat().st_mode & 0o777 == 0o700
    assert found.settings.console.what_if == "off"
    assert not (tmp_path / "elsewhere").exists()
