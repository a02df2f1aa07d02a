"""Engines of other versions: API versions too old to be spoken to, old, new, and none at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.container import EngineGpus, Launch, RuntimeStatus
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.factories import FakeClock, spec
from tests.runtime.standin_engine import StandInEngine

STORE = "store0000000"
LIVE: dict[str, Any] = {"LiveRestoreEnabled": True, "Runtimes": {"runc": {}, "nvidia": {}}}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StandInEngine]:
    made = StandInEngine(tmp_path / "d.sock", **LIVE)
    yield made
    made.close()


def runtime(engine: StandInEngine) -> DockerRuntime:
    return DockerRuntime(STORE, RuntimeSettings(docker_host=engine.url), FakeClock())


def checked(engine: StandInEngine, **version: Any) -> RuntimeStatus:
    engine.version = engine.version | version
    found = runtime(engine)
    status = found.check()
    found.close()
    return status


@pytest.mark.parametrize(
    ("version", "api", "least"),
    [
        ("20.10.24", "1.41", "1.12"),
        ("23.0.6", "1.42", "1.12"),
        ("28.3.0", "1.51", "1.24"),
        ("29.0.0", "1.52", "1.44"),
        ("31.0.0", "1.60", "1.50"),
    ],
)
def test_supported_engines_are_spoken_to_in_their_own_version(
    engine: StandInEngine, version: str, api: str, least: str
) -> None:
    """Docker 29 refuses the versions below 1.44 that docker-py would use by itself."""
    status = checked(engine, Version=version, ApiVersion=api, MinAPIVersion=least)
    assert (status.up, status.warnings) == (True, ())
    assert status.gpus is not None
    assert status.gpus.mode == "nvidia"
    asked = runtime(engine)
    created = asked.create(Launch(STORE, 1, 1, spec(), ()))
    asked.start(created.id)
    asked.close()
    assert {found for _, found in engine.versions if found} == {api}


@cases(
    ("version", "words"),
    [
        ({"Version": "1.11.2", "ApiVersion": "1.23"}, "is too old: its API is 1.23"),
        ({"ApiVersion": "next"}, "is no Docker engine: it names no API version"),
        ({"ApiVersion": None}, "is no Docker engine: it names no API version"),
    ],
)
def test_an_engine_that_cannot_be_spoken_to_is_down_in_words(
    engine: StandInEngine, version: dict[str, Any], words: str
) -> None:
    status = checked(engine, **version)
    assert not status.up
    assert words in status.text


def test_an_old_engine_is_warned_about(engine: StandInEngine) -> None:
    status = checked(engine, Version="18.09.9", ApiVersion="1.39")
    assert status.up
    assert [warning for warning in status.warnings if "gputui supports Docker 20.10 (API 1.41) and newer" in warning]
    assert isinstance(status.gpus, EngineGpus)
    assert status.gpus.mode == "none"


@pytest.mark.parametrize(("version", "api"), [("4.9.3", "1.41"), ("5.6.0", "1.41"), ("3.4.4", "1.40")])
def test_podman_and_rootless_engines_are_judged_by_their_own_version(
    engine: StandInEngine, version: str, api: str
) -> None:
    engine.info["SecurityOptions"] = ["name=seccomp", "name=rootless"]
    status = checked(engine, Version=version, ApiVersion=api, Components=[{"Name": "Podman Engine"}])
    assert (status.up, status.warnings) == (True, ())
    assert status.gpus is not None
    assert status.gpus.is_rootless
    assert status.gpus.mode == ("cdi" if version.startswith("5.") else "none")
    assert bool(status.gpus.warnings) is (not version.startswith("5."))


@cases(("api", "words"), [("1.39", "the engine is too old"), ("1.20", "is too old: its API is 1.20")])
def test_doctor_says_that_an_engine_is_too_old(engine: StandInEngine, tmp_path: Path, api: str, words: str) -> None:
    engine.version |= {"Version": "1.9", "ApiVersion": api}
    environ = {"PATH": "/usr/bin:/bin", "DOCKER_HOST": engine.url, "GPUTUI_STATE": str(tmp_path / "state")}
    told = subprocess.run(
        [sys.executable, "-m", "gputui", "--probe", "sim:1", "doctor", "--json"],
        env=environ | {"GPUTUI_CONFIG": "/dev/null"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    checks = json.loads(told.stdout)
    found = [each for each in checks if words in each["text"]]
    assert found, checks
    assert "upgrade" in json.dumps(found)
