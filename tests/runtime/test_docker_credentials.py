"""Credentials for pulls: found where `docker login` puts them; what cannot be used is told and delays no pull."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.errors import CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker import pull_process
from gputui.runtime.docker.pull_process import find_credentials
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.factories import FakeClock
from tests.runtime.dockerd import Dockerd

HUB = "https://index.docker.io/v1/"
LAB = "lab.example:5000"


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Use an empty directory as ~/.docker, with a directory of helpers on the PATH."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return tmp_path / "config.json"


def add_helper(config: Path, name: str, script: str) -> None:
    path = config.parent / "bin" / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@cases(
    ("image", "settings", "auth"),
    [
        ("busybox", {}, {}),
        ("busybox", {"auths": {HUB: {"auth": encoded("ann:a:b")}}}, {"username": "ann", "password": "a:b"}),
        ("ann/tool:1", {"auths": {"docker.io": {"auth": encoded("ann:x")}}}, {"username": "ann", "password": "x"}),
        (f"{LAB}/tool", {"auths": {HUB: {"auth": encoded("ann:x")}}}, {}),
        (f"{LAB}/tool", {"auths": {f"https://{LAB}/v2/": {"identitytoken": "t"}}}, {"identitytoken": "t"}),
        (f"{LAB}/tool", {"credsStore": "good"}, {"username": "bob", "password": f"for {LAB}"}),
        ("busybox", {"credHelpers": {HUB: "good"}}, {"username": "bob", "password": f"for {HUB}"}),
        (f"{LAB}/tool", {"credHelpers": {HUB: "good"}}, {}),
        ("busybox", {"credsStore": "token"}, {"identitytoken": "t"}),
        ("busybox", {"credsStore": "none", "auths": {HUB: {}}}, {}),
        (
            "busybox",
            {"credsStore": "none", "auths": {HUB: {"auth": encoded("ann:x")}}},
            {"username": "ann", "password": "x"},
        ),
    ],
)
def test_credentials_are_found(config: Path, image: str, settings: dict[str, Any], auth: dict[str, str]) -> None:
    add_helper(
        config, "good", """read -r server; echo "{\\"Username\\": \\"bob\\", \\"Secret\\": \\"for $server\\"}\""""
    )
    add_helper(config, "token", """echo '{"Username": "<token>", "Secret": "t"}'""")
    add_helper(config, "none", "echo credentials not found in native keychain; exit 1")
    config.write_text(json.dumps(settings))
    found = find_credentials(image)
    assert {key: value for key, value in found.auth.items() if key != "serveraddress"} == auth
    assert not found.problem


UNUSABLE = {
    "no helper": (
        '{"credsStore": "desktop.exe"}',
        "docker-credential-desktop.exe, which .*config.json names,",
    ),
    "failing helper": ('{"credsStore": "bad"}', "docker-credential-bad failed with code 3: the keyring is locked"),
    "babbling helper": ('{"credsStore": "babbling"}', "docker-credential-babbling answered with something else"),
    "hanging helper": ('{"credsStore": "hanging"}', "docker-credential-hanging did not answer within"),
    "no program": ('{"credsStore": "odd"}', "docker-credential-odd cannot be run"),
    "no JSON": ("{", "config.json cannot be read"),
    "no object": ("[]", "config.json is not a JSON object"),
    "no login": ('{"auths": {"127.0.0.1:1": {"auth": "?"}}}', "the entry for 127.0.0.1:1 in .*config.json is damaged"),
    "a list of logins": ('{"auths": ["x"]}', "auths in .*config.json is not an object"),
    "a word as login": ('{"auths": {"127.0.0.1:1": "x"}}', "the entry for 127.0.0.1:1"),
}


@pytest.fixture(params=UNUSABLE)
def unusable(request: pytest.FixtureRequest, config: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a pattern of the reason why the credentials cannot be used."""
    monkeypatch.setattr(pull_process, "HELPER_PATIENCE", 0.2)
    add_helper(config, "bad", "echo the keyring is locked >&2; exit 3")
    add_helper(config, "babbling", "true")
    add_helper(config, "hanging", "exec sleep 60")
    (config.parent / "bin" / "docker-credential-odd").write_bytes(b"\x7fELF")
    (config.parent / "bin" / "docker-credential-odd").chmod(0o755)
    text, pattern = UNUSABLE[request.param]
    config.write_text(text)
    return pattern


def test_credentials_that_cannot_be_used_are_told(unusable: str) -> None:
    with pytest.raises(AssertionError, match=unusable):
        raise AssertionError(find_credentials("127.0.0.1:1/tool").problem)


@pytest.fixture
def runtime(engine: Dockerd) -> Iterator[DockerRuntime]:
    """Yield a runtime of the real engine."""
    made = DockerRuntime("c" * 12, RuntimeSettings(docker_host=engine.host), FakeClock())
    yield made
    made.close()


@cases("settings", [text for text, _ in UNUSABLE.values()])
def test_damaged_settings_of_the_docker_command_do_not_hide_the_engine(
    config: Path, runtime: DockerRuntime, settings: str
) -> None:
    config.write_text(settings)
    assert runtime.check().up
    assert not runtime.has_image("some/image")


def test_a_pull_without_its_helper_fails_because_of_the_registry(config: Path, runtime: DockerRuntime) -> None:
    config.write_text('{"credsStore": "desktop.exe"}')
    assert any("desktop.exe" in warning for warning in runtime.check().warnings)
    with pytest.raises(RuntimeFault, match=r"cannot pull 127.*refused.*docker-credential-desktop\.exe") as found:
        runtime.pull("127.0.0.1:1/tool", lambda _: None, threading.Event())
    assert found.value.cause.code is CauseCode.PULL_FAILED


@cases("image", ["https://127.0.0.1:1/tool", "-x.example/tool"])
def test_a_name_that_docker_py_refuses_is_the_jobs_fault(runtime: DockerRuntime, image: str) -> None:
    with pytest.raises(RuntimeFault) as found:
        runtime.pull(image, lambda _: None, threading.Event())
    assert found.value.cause.code is CauseCode.IMAGE_NOT_FOUND
    assert not isinstance(found.value, RuntimeUnavailableError)
    assert runtime.check().up
