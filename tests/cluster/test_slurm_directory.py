"""The directory in which what is known about a cluster is kept."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from gputui.bootstrap.clusters import open_cluster
from gputui.cluster.journal import Submissions
from gputui.cluster.slurm.cluster import SlurmCluster
from gputui.cluster.slurm.commands import SlurmCommands
from gputui.cluster.slurm.listings import Ended, JobDetail
from gputui.cluster.slurm.poll import Poll, Polled
from gputui.config import Options
from gputui.domain.action import Cancel
from gputui.domain.errors import InputError, StoreAccessError
from gputui.domain.settings import ClusterSettings, Settings
from tests.cluster.test_slurm_recorded import row


def options(state: Path, engine: str = "slurm") -> Options:
    return Options(state, settings=Settings(cluster=ClusterSettings(engine=engine)))


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the user's own state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return tmp_path / "own" / "gputui"


def kept(state: Path) -> list[str]:
    return sorted(path.name for path in (state / "clusters").glob("*"))


def test_each_cluster_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("slurm", "slurm+ssh://ann@login1:2222"):
        open_cluster(options(tmp_path, engine)).close()
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    open_cluster(options(tmp_path)).close()
    assert kept(tmp_path) == ["slurm", "slurm-6c66d07e", "slurm-ann@login1-2222"]
    assert {(tmp_path / "clusters" / name).stat().st_mode & 0o777 for name in kept(tmp_path)} == {0o700}


@pytest.mark.needs("root")
def test_the_directory_of_another_user_is_left_alone(tmp_path: Path, own_state: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 65534, 65534)
    open_cluster(options(shared)).close()
    assert (kept(shared), kept(own_state)) == ([], ["slurm"])


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreAccessError, match="Not a directory"):
        open_cluster(options(tmp_path / "file" / "state"))


def test_no_cluster_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no cluster is named"):
        open_cluster(options(tmp_path, ""))


def test_a_shared_picture_tells_its_age_once_it_is_old(tmp_path: Path) -> None:
    settings = Settings(cluster=ClusterSettings(poll_interval=timedelta(hours=1)))
    cluster = SlurmCluster(SlurmCommands(None, 1.0, {"PATH": ""}), settings, tmp_path)
    file = tmp_path / "poll.json"
    file.write_bytes(msgspec.json.encode(Polled(time.time() - 1)))
    assert cluster.snapshot().notices == ()
    file.write_bytes(msgspec.json.encode(Polled(time.time() - 90)))
    other = SlurmCluster(SlurmCommands(None, 1.0, {"PATH": ""}), settings, tmp_path)
    [notice] = other.snapshot().notices
    assert notice.text.startswith("this was so 1m30s ago: Slurm is asked every 1h (")


def test_a_job_that_slurm_has_forgotten_stops_no_cancellation_of_others(tmp_path: Path) -> None:
    settings = Settings(cluster=ClusterSettings(poll_interval=timedelta(hours=1)))
    commands = SlurmCommands(None, 1.0, {"PATH": ""})
    (tmp_path / "poll.json").write_bytes(msgspec.json.encode(Polled(time.time())))
    past = replace(row(state="COMPLETED"), number="7", array="7", index="N/A")
    Poll(commands, tmp_path, 1.0, Submissions(tmp_path)).records.add([Ended(past, JobDetail(past.run_key, past.state))])
    assert SlurmCluster(commands, settings, tmp_path).act(Cancel((7,))) == ()
