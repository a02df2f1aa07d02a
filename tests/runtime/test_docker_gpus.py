"""GPUs of engines: CDI names as the engine lists them, and whether an engine runs on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.container import EngineGpus, Launch
from gputui.domain.errors import RuntimeFault
from gputui.domain.policy.availability import cdi_names, engine_support
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker import runtime as docker_runtime
from gputui.runtime.docker.endpoint import Endpoint
from gputui.runtime.docker.engine import MachineFacts, listed_cdi_names, runs_here
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.factories import FakeClock, gpu, spec, uuid
from tests.runtime.standin_engine import StandInEngine, this_machine

STORE = "store0000000"
TWO = (gpu(0), gpu(1))


def listing(*names: str) -> dict[str, Any]:
    """The fields of `/info` of an engine that has these CDI devices."""
    devices = [{"Source": "cdi", "ID": f"nvidia.com/gpu={name}"} for name in names]
    return {"DiscoveredDevices": devices, "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"]}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StandInEngine]:
    made = StandInEngine(tmp_path / "d.sock", **this_machine())
    yield made
    made.close()


@pytest.fixture
def runtime(engine: StandInEngine) -> Iterator[DockerRuntime]:
    made = DockerRuntime(STORE, RuntimeSettings(docker_host=engine.url), FakeClock())
    yield made
    made.close()


def gives(runtime: DockerRuntime) -> EngineGpus:
    found = runtime.check().gpus
    assert found is not None
    return found


def launch(names: tuple[str, ...] = ()) -> Launch:
    return Launch(STORE, 1, 1, spec(1, image="busybox"), (uuid(1),), gpu_names=names)


@pytest.mark.parametrize(
    ("listed", "asked"),
    [(("0", "1", "all"), "1"), ((uuid(0), uuid(1)), uuid(1)), (("0", "1", uuid(0), uuid(1)), uuid(1))],
)
def test_gpus_are_requested_by_the_names_that_the_engine_lists(
    engine: StandInEngine, runtime: DockerRuntime, listed: tuple[str, ...], asked: str
) -> None:
    engine.info |= listing(*listed)
    runtime.create(launch(cdi_names(gives(runtime), TWO, (uuid(1),))))
    [body] = engine.created.values()
    assert body["HostConfig"]["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={asked}"]}]
    assert body["Labels"]["gputui.gpus"] == uuid(1)


def test_devices_added_while_the_engine_runs_are_noticed(
    engine: StandInEngine, runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.info |= listing("of-another")
    assert gives(runtime).cdi_devices == ("nvidia.com/gpu=of-another",)
    engine.info |= listing("0", "1")
    monkeypatch.setattr(docker_runtime, "_FACTS_FOR", 0.0)
    runtime.foreign()
    found = runtime.status().gpus
    assert found is not None
    assert found.cdi_devices == ("nvidia.com/gpu=0", "nvidia.com/gpu=1")


def test_an_old_podman_is_asked_for_no_gpus(engine: StandInEngine, runtime: DockerRuntime) -> None:
    """Podman before 5.4 would start containers without GPUs and report no error."""
    engine.version |= {"Version": "4.3.1", "ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}
    assert engine_support(gives(runtime), TWO).refusal is not None
    with pytest.raises(RuntimeFault, match="silently ignores"):
        runtime.create(launch())
    assert not engine.created


# specifications that the engine does not list

YAML = """---
cdiVersion: 0.5.0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args: [nvidia-ctk, hook, update-ldcache]
    hookName: createContainer
    path: /usr/bin/nvidia-ctk
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- name: GPU-1234
  containerEdits: {}
- containerEdits: {}
  name: all
kind: nvidia.com/gpu
"""


def test_names_are_read_from_specification_files(tmp_path: Path) -> None:
    assert listed_cdi_names([str(tmp_path), str(tmp_path / "none")]) is None
    (tmp_path / "nvidia.yaml").write_text(YAML)
    (tmp_path / "other.yaml").write_text(YAML.replace("nvidia.com/gpu", "vendor.com/nic").replace("all", "nic"))
    devices = [{"name": "0:1", "containerEdits": {}}, {"name": "all"}]
    (tmp_path / "mig.json").write_text(json.dumps({"kind": "nvidia.com/gpu", "devices": devices}))
    (tmp_path / "torn.json").write_text("{")
    found = listed_cdi_names([str(tmp_path)])
    assert found == ("nvidia.com/gpu=0:1", "nvidia.com/gpu=all", "nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1234")


def test_names_are_read_from_directories_if_the_engine_lists_none(
    engine: StandInEngine, runtime: DockerRuntime, tmp_path: Path
) -> None:
    (tmp_path / "nvidia.yaml").write_text(YAML)
    engine.info |= {"CDISpecDirs": [str(tmp_path)]}
    assert "nvidia.com/gpu=GPU-1234" in (gives(runtime).cdi_devices or ())


# which machine

HERE = this_machine()
SOCKET, LOOPBACK, FAR = (Endpoint(url) for url in ("unix:///none", "tcp://127.0.0.1:1", "tcp://192.0.2.1:1"))


@cases(
    ("endpoint", "info", "is_here"),
    [
        (SOCKET, HERE, True),
        (SOCKET, HERE | {"Name": "a-container"}, True),
        (SOCKET, HERE | {"MemTotal": 1}, False),
        (SOCKET, HERE | {"KernelVersion": "6.6.6-linuxkit"}, False),
        (LOOPBACK, HERE, True),
        (LOOPBACK, HERE | {"Name": "its-twin"}, False),
        (LOOPBACK, {}, False),
        (FAR, HERE, False),
    ],
)
def test_local_and_remote_engines_are_distinguished(endpoint: Endpoint, info: dict[str, Any], is_here: bool) -> None:
    assert runs_here(info, endpoint) == is_here


def test_facts_of_this_machine_are_read() -> None:
    assert MachineFacts.of_engine(HERE) == MachineFacts.here()
    assert MachineFacts.here().is_complete
