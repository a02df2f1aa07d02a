"""Real `docker run` lines: gputui and docker's client create the same container from each."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.types import IPAMConfig, IPAMPool

from gputui.domain.container import Launch
from gputui.domain.job_spec import JobSpec
from gputui.domain.settings import RuntimeSettings
from gputui.request import draft
from gputui.request import draft as drafts
from gputui.request.submitter import Submitter
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.factories import NOW, FakeClock, uuid
from tests.runtime.contract import STORE
from tests.runtime.docker_lines import LINES, DockerLine
from tests.runtime.dockerd import IMAGE_OF_NVIDIA, Dockerd

pytestmark = pytest.mark.docker
HERE = Path("/tmp")
_STREAMS = {"AttachStdin", "AttachStdout", "AttachStderr", "OpenStdin", "StdinOnce", "Tty"}
_ON_PURPOSE = {"AutoRemove", "RestartPolicy", "LogConfig", "Init", "ConsoleSize"}
"""Fields of HostConfig that differ on purpose, as the table in docker_lines.py explains."""
_CHOSEN = ("GPUTUI_", "PYTHONUNBUFFERED=", "NVIDIA_VISIBLE_DEVICES=", "CUDA_VISIBLE_DEVICES=")


@pytest.fixture(scope="module")
def api(engine: Dockerd) -> Iterator[docker.APIClient]:
    client = docker.APIClient(base_url=engine.host)
    network = client.create_network("lines", ipam=IPAMConfig(pool_configs=[IPAMPool("172.31.77.0/24")]))["Id"]
    yield client
    client.remove_network(network)
    client.close()


@pytest.fixture(scope="module")
def runtime(engine: Dockerd) -> Iterator[DockerRuntime]:
    made = DockerRuntime(STORE, RuntimeSettings(docker_host=engine.host), FakeClock())
    yield made
    made.close()


def spec_of(wanted: DockerLine) -> JobSpec:
    text = f"docker run {wanted.options} {IMAGE_OF_NVIDIA} {wanted.command}"
    environ = {"HOME": "/root", "USER": "root", "PWD": str(HERE)}
    return drafts.asked(draft.read_line(text, HERE, environ).draft, Submitter("root", NOW, HERE, environ)).spec


def by_docker(engine: Dockerd, wanted: DockerLine) -> str:
    """Return the id of the container that docker's client creates: `create` takes no -d, and nothing is pulled."""
    words = shlex.split(wanted.options.replace("$PWD", str(HERE)).replace("--pull always", ""))
    kept = [word for word in words if word != "-d"]
    return engine.docker("create", *kept, IMAGE_OF_NVIDIA, *shlex.split(wanted.command))


@cases("wanted", LINES)
def test_a_container_equals_that_of_docker_run(
    engine: Dockerd, api: docker.APIClient, runtime: DockerRuntime, wanted: DockerLine
) -> None:
    made = [by_docker(engine, wanted)]
    try:
        spec = spec_of(wanted)
        count = 2 if spec.gpus.everything else spec.gpus.minimum
        launch = Launch(STORE, 1, 1, spec, tuple(map(uuid, range(count))))
        created = runtime.create(launch)
        made.append(created.id)
        theirs, ours = (api.inspect_container(each) for each in made)
        assert comparable(ours) == comparable(theirs)
        assert ours["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == list(launch.gpus)
    finally:
        for each in made:
            api.remove_container(each, v=True, force=True)


def comparable(inspected: dict[str, Any]) -> dict[str, Any]:
    """Return the fields to compare, without empty ones, which clients write differently."""
    config, host = dict(inspected["Config"]), dict(inspected["HostConfig"])
    if config["Hostname"] == inspected["Id"][:12]:
        config["Hostname"] = ""
    config["Labels"] = {k: v for k, v in config["Labels"].items() if not k.startswith("gputui.") and k != "user"}
    config["Env"] = sorted(text for text in config["Env"] or () if not text.startswith(_CHOSEN))
    requests = host["DeviceRequests"] or ()
    host["DeviceRequests"] = [(each["Driver"], each["Capabilities"], each["Options"] or {}) for each in requests]
    host["Ulimits"] = sorted(host["Ulimits"] or (), key=str)
    host["Binds"] = sorted(host["Binds"] or ())  # docker's client sends them in any order
    for field in ("CapAdd", "CapDrop"):  # clients before 23.0 do not add the prefix
        host[field] = [name if name == "ALL" else f"CAP_{name.removeprefix('CAP_')}" for name in host[field] or ()]
    networks = inspected["NetworkSettings"]["Networks"]
    return {
        "config": _said(config, _STREAMS),
        "host": _said(host, _ON_PURPOSE),
        "networks": {name: _network(each, inspected["Id"]) for name, each in networks.items()},
    }


def _said(fields: dict[str, Any], without: set[str]) -> dict[str, Any]:
    nothing: tuple[Any, ...] = (None, "", [], {}, 0, False)
    return {name: value for name, value in fields.items() if name not in without and value not in nothing}


def _network(endpoint: dict[str, Any], container_id: str) -> object:
    aliases = [alias for alias in endpoint["Aliases"] or () if alias != container_id[:12]]
    return aliases, endpoint["IPAMConfig"] or {}
