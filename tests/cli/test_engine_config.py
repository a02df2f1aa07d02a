"""The engine's own process and its settings file, as `gputui doctor` finds and changes them."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputui.cli.engine_checks import (
    HOOK,
    SYSTEM_SETTINGS,
    TOOLKIT,
    ConfigChange,
    EngineProcess,
    look,
    process_behind,
    toolkit_of,
    write,
)
from gputui.domain.container import EngineGpus
from gputui.domain.errors import GputuiError
from tests.cases import cases

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOBODY = 2**31 - 2
"""A user id without an account."""
OWN = 1234
"""The user who asks."""


@cases(
    ("process", "path"),
    [
        (EngineProcess(), SYSTEM_SETTINGS),
        (EngineProcess(7, ("dockerd", "--config-file=/a.json")), Path("/a.json")),
        (EngineProcess(7, ("dockerd", "--config-file", "/b.json", "-D")), Path("/b.json")),
        (EngineProcess(7, ("dockerd", "--config-file")), SYSTEM_SETTINGS),
        (EngineProcess(7, uid=NOBODY), Path.home() / ".config/docker/daemon.json"),
        (EngineProcess(7, uid=1, home="/h/.config"), Path("/h/.config/docker/daemon.json")),
        (EngineProcess(7, uid=1), Path(pwd.getpwuid(1).pw_dir) / ".config/docker/daemon.json"),
    ],
)
def test_the_settings_file_is_the_one_that_the_engine_reads(process: EngineProcess, path: Path) -> None:
    assert process.settings_file == path


@cases(
    ("process", "restart", "reload"),
    [
        (EngineProcess(7, ("dockerd",)), "sudo systemctl restart docker", "sudo systemctl reload docker"),
        (
            EngineProcess(7, ("dockerd",), group="/system.slice/docker-tls.service"),
            "sudo systemctl restart docker-tls",
            "sudo systemctl reload docker-tls",
        ),
        (EngineProcess(7, ("/snap/docker/1/bin/dockerd",)), "sudo snap restart docker", "sudo snap restart docker"),
        (EngineProcess(7, ("dockerd",), uid=OWN), "systemctl --user restart docker", "systemctl --user reload docker"),
        (
            EngineProcess(7, ("dockerd",), uid=OWN, group=f"/user.slice/user-{OWN}.slice/app.slice/docker.service"),
            "systemctl --user restart docker",
            "systemctl --user reload docker",
        ),
        (
            EngineProcess(7, ("dockerd",), uid=OWN, group="/system.slice/docker-alice.service"),
            "sudo systemctl restart docker-alice",
            "sudo systemctl reload docker-alice",
        ),
        (
            EngineProcess(7, ("dockerd",), uid=NOBODY),
            f"sudo -u '#{NOBODY}' XDG_RUNTIME_DIR=/run/user/{NOBODY} systemctl --user restart docker",
            f"sudo -u '#{NOBODY}' XDG_RUNTIME_DIR=/run/user/{NOBODY} systemctl --user reload docker",
        ),
        (EngineProcess(7, ("dockerd",), group="/x.scope"), "restart the engine at A, process 7", "sudo kill -HUP 7"),
    ],
)
def test_the_commands_are_those_of_its_kind(
    process: EngineProcess, restart: str, reload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OWN)
    service = process.service("A")
    assert (service.restart, service.reload) == (restart, reload)
    assert service.settings == str(process.settings_file)


def test_an_engine_behind_a_port_is_found_and_no_other_is_judged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        assert process_behind(address).pid == os.getpid()
    assert process_behind(address) == EngineProcess()
    assert look(EngineGpus(is_local=True, address="unix:///nowhere/docker.sock")) is None


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a socket on which this process listens."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "docker.sock"))
        server.listen()
        yield f"http+unix://{tmp_path}/docker.sock"


def test_the_engine_is_the_process_that_listens(listening: str, tmp_path: Path) -> None:
    found = process_behind(listening)
    assert (found.pid, found.uid, found.path) == (os.getpid(), os.geteuid(), os.environ["PATH"])
    assert found.arguments[0]
    assert found.root.exists()
    assert process_behind(f"unix://{tmp_path}/none") == EngineProcess()


def test_the_toolkit_is_searched_on_the_path_of_the_engine(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for directory, name in ((first, HOOK), (second, HOOK), (second, TOOLKIT[1])):
        directory.mkdir(exist_ok=True)
        (directory / name).touch(0o755)
    (first / TOOLKIT[2]).touch(0o644)  # no program
    assert toolkit_of(EngineProcess(path=f"{first}:{second}:")) == (f"{first}/{HOOK}", f"{second}/{TOOLKIT[1]}")


def test_a_hook_that_the_engine_may_not_know_is_told(
    listening: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gputui.cli.engine_checks.SYSTEM_SETTINGS", tmp_path / "daemon.json")
    found = look(EngineGpus(is_local=True, address=listening, runtimes=(("nvidia", str(tmp_path / "runtime")),)))
    assert found is not None
    assert (found.path_exists, found.is_written, found.hook_is_new) == (False, False, False)
    (tmp_path / "runtime").touch(0o755)
    (tmp_path / "daemon.json").write_text('{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    again = look(EngineGpus(is_local=True, address=listening, runtimes=(("nvidia", str(tmp_path / "runtime")),)))
    assert again is not None
    assert again.path_exists
    (tmp_path / "daemon.json").write_text("[]")
    broken = look(EngineGpus(is_local=True, address=listening))
    assert broken is not None
    assert not broken.is_written
    assert look(EngineGpus(is_local=False, address=listening)) is None


def test_a_change_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for target in (tmp_path / "file" / "daemon.json", tmp_path / ("x" * 250)):
        with pytest.raises(GputuiError, match="cannot be written"):
            write(ConfigChange(target, "", "{}\n"), NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
