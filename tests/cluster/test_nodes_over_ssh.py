"""Readings of nodes through a login node, which is a real sshd here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.bootstrap import clusters
from gputui.config import Options, resolve
from gputui.domain.gpu import ProbeCode
from gputui.domain.settings import ClusterSettings, Settings
from tests.cluster.fake import FakeCluster
from tests.factories import FakeClock
from tests.gpus.standin import StandIn
from tests.login_shells import SHELLS, talkative
from tests.needs import need
from tests.runtime.sshd import Sshd
from tests.waiting import until

pytestmark = [pytest.mark.ssh, pytest.mark.nvml]
PATIENCE = 60.0
PROBE = (
    "sh -c 'echo $$ >> {pids}; exec env LD_LIBRARY_PATH={library} NVML_STANDIN={behaviour} "
    '"{python}" -P -m gputui.gpus.probe 0.2 0.2 1 "" 90\' {{node}}'
)


@pytest.fixture(autouse=True)
def _own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Share readings in the test's directory, not in the machine's memory."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "memory"))


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sshd]:
    sshd = Sshd()
    monkeypatch.setenv("PATH", sshd.path)
    with tempfile.TemporaryDirectory(prefix="rt-", dir="/tmp") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield sshd
        sshd.close()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Return the settings of a cluster behind a login node."""
    standin = StandIn(tmp_path / "behaviour")
    standin.write("gpu 1 util 37", gpus=2)
    library = standin.environment["LD_LIBRARY_PATH"]
    command = PROBE.format(pids=tmp_path / "pids", library=library, behaviour=standin.path, python=sys.executable)
    cluster = ClusterSettings("slurm+ssh://lab", probe="ssh", probe_command=command)
    made = resolve(state=str(tmp_path), environ={"GPUTUI_CONFIG": "/dev/null"})
    return replace(made, settings=replace(Settings(), cluster=cluster))


def test_nodes_are_read_through_few_connections_which_leave_nothing_behind(
    login: Sshd, options: Options, tmp_path: Path
) -> None:
    cluster = FakeCluster(FakeClock(), {f"n{number}": 2 for number in range(10)})
    found = clusters.read_once(options, cluster.snapshot(), PATIENCE)
    assert {node.probe.code for node in found.nodes} == {ProbeCode.OK}
    assert [view.sample.utilization for view in found.gpus if view.sample] == [0, 0.37] * 10
    assert len(login.sessions()) == 2
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 10
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "they have ended")


CONSOLE = """
from gputui.bootstrap.clusters import make_reader
from gputui.config import resolve
from tests.cluster.fake import FakeCluster
from tests.factories import NOW, FakeClock
make_reader(resolve()).joined(FakeCluster(FakeClock(), {"n1": 2, "n2": 2}).snapshot(), NOW)
input()
"""


def test_a_console_that_is_killed_leaves_no_probes(login: Sshd, options: Options, tmp_path: Path) -> None:
    command = options.settings.cluster.probe_command or ""
    settings = {"GPUTUI_CLUSTER": "slurm+ssh://lab", "GPUTUI_CLUSTER_PROBE": "ssh", "GPUTUI_CONFIG": "/dev/null"}
    environ = os.environ | settings | {"GPUTUI_CLUSTER_PROBE_COMMAND": command, "GPUTUI_STATE": str(tmp_path)}
    console = subprocess.Popen([sys.executable, "-c", CONSOLE], stdin=subprocess.PIPE, env=environ)
    noted = tmp_path / "pids"
    until(lambda: noted.exists() and len(noted.read_text().split()) == 2, "two probes run")
    console.kill()
    console.communicate()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in noted.read_text().split()), "none is left")


def test_a_node_is_read_over_ssh_without_further_settings(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin = StandIn(tmp_path / "behaviour")
    own = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", **standin.environment}
    node = Sshd(own)
    monkeypatch.setenv("PATH", node.path)
    cluster = ClusterSettings("slurm", probe="ssh")
    here = replace(options, settings=replace(Settings(), cluster=cluster))
    with closing(node):
        found = clusters.read_once(here, FakeCluster(FakeClock(), {"lab": 2}).snapshot(), PATIENCE)
    assert found.nodes[0].probe.code is ProbeCode.OK, found.nodes[0].probe
    assert [view.sample.utilization for view in found.gpus if view.sample] == [0, 0.37]


@pytest.mark.parametrize("shell", SHELLS)
def test_lines_of_login_shells_are_passed_over(options: Options, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    need(shell)
    with talkative(shell) as sshd:
        monkeypatch.setenv("PATH", sshd.path)
        found = clusters.read_once(options, FakeCluster(FakeClock(), {"n1": 2}).snapshot(), PATIENCE)
    assert [view.sample.utilization for view in found.gpus if view.sample] == [0, 0.37], found.nodes[0].probe


def test_a_login_node_that_refuses_is_the_reason(options: Options, login: Sshd) -> None:
    login.trust(login.directory / "user.pub")
    cluster = FakeCluster(FakeClock(), {"n1": 2})
    found = clusters.read_once(options, cluster.snapshot(), PATIENCE)
    told = "no readings: Host key verification failed.; `ssh lab` must work without a password"
    assert found.nodes[0].probe.text == told
