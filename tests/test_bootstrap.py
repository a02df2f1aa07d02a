"""User and adapters chosen by the options."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.config import Options, ProbeSpec
from gputui.domain.access import Actor
from gputui.domain.errors import InputError
from gputui.domain.kept_data import EngineRecord
from gputui.domain.settings import RuntimeSettings, Settings
from tests.cases import cases


def test_under_sudo_the_user_is_the_caller_of_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert bootstrap.actor({}) == Actor(0, "root")
    assert bootstrap.actor({"SUDO_UID": "4000000"}) == Actor(4000000, "4000000")
    for nonsense in ("", "x", "-1", "9" * 40, "٣"):
        assert bootstrap.actor({"SUDO_UID": nonsense}) == Actor(0, "root")


def test_only_root_can_stand_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4000000)
    assert bootstrap.actor({"SUDO_UID": "0", "SUDO_USER": "root"}) == Actor(4000000, "4000000")


def test_time_is_utc() -> None:
    assert bootstrap.clock().now().utcoffset() == timedelta(0)


@cases("probe", [ProbeSpec(8, "VOODOO"), ProbeSpec(100_000)])
def test_impossible_simulations_are_refused(probe: ProbeSpec, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--probe"):
        adapters.check_probe(Options(tmp_path, probe=probe))


def test_possible_simulations_are_accepted(tmp_path: Path) -> None:
    for probe in (ProbeSpec(), ProbeSpec(8), ProbeSpec(1, "h100")):
        adapters.check_probe(Options(tmp_path, probe=probe))


def test_the_options_choose_the_runtimes(tmp_path: Path) -> None:
    runtimes = adapters.make_runtimes(Options(tmp_path, runtime="process"), "abcdefghijkl")
    assert [runtime.name for runtime in runtimes] == ["process"]
    for runtime in runtimes:
        runtime.close()


@cases("runtime", ["process", "docker"])
def test_without_an_engine_no_images_are_listed(runtime: str, tmp_path: Path) -> None:
    settings = replace(Settings(), runtime=RuntimeSettings(docker_host=f"unix://{tmp_path}/none.sock"))
    assert adapters.local_images(Options(tmp_path, runtime=runtime, settings=settings)) == ()


@pytest.mark.needs("root")
@pytest.mark.parametrize(("owner", "expected"), [(0, "ssh://gpu1"), (65534, "")])
def test_a_directory_of_another_user_leads_to_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, expected: str
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    book = adapters.engine_book(Options(tmp_path))
    book.write(EngineRecord("id", "gpu1", "ssh://gpu1"))
    os.chown(tmp_path, owner, -1)
    adapters.engine_book(Options(tmp_path))
    os.chown(tmp_path, 0, -1)
    assert os.environ["DOCKER_HOST"] == expected
