"""`gputui doctor` about the service: who answers, what this user may do, and who is root anyway."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from gputui import config as options
from gputui.api.connections import bind
from gputui.api.http import AboutView, CallerView, OwnerView, Peer, Request, Response
from gputui.api.server import DoorServer
from gputui.cli import checks
from gputui.cli.checks import CheckLevel
from gputui.domain.access import Actor
from gputui.domain.errors import GputuiError
from gputui.domain.job import Job
from gputui.domain.job_spec import JobSpec
from gputui.domain.settings import AccessSettings, Settings, StoreSettings
from tests.cases import cases
from tests.cli.conftest import KeptStore, Run
from tests.factories import NOW


def named(result: str) -> dict[str, tuple[str, str]]:
    return {check["name"]: (check["level"], check["text"]) for check in json.loads(result)}


@pytest.fixture
def of_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The service's socket, for a user other than root."""
    path = tmp_path / "api.sock"
    monkeypatch.setattr(options, "SERVICE_SOCKET", str(path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return path


@pytest.fixture
def answering(of_machine: Path) -> Iterator[Path]:
    owner, caller = OwnerView(4711, "serve", "root"), CallerView(1000, "alice", "user")

    def handle(request: Request) -> Response:
        assert isinstance(request.peer, Peer)
        return Response(body=msgspec.json.encode(AboutView("1", "1.0", "1.0", "here", "id", owner, caller)))

    listener = bind(of_machine, 0o666)
    server = DoorServer([listener.socket], handle)
    server.start()
    yield of_machine
    server.stop(1.0)
    listener.socket.close()


@pytest.mark.usefixtures("answering")
def test_a_user_of_the_service_hears_of_nothing_that_is_the_services(run: Run, answering: Path, tmp_path: Path) -> None:
    done = run("doctor", "--json")
    text = f"serve of root, pid 4711, answers at {answering}; alice is a user"
    assert (done.code, list(named(done.out))) == (0, ["settings", "service"])
    assert named(done.out)["service"] == ("ok", text)
    assert not (tmp_path / "xdg-state").exists()


@pytest.mark.usefixtures("answering")
def test_a_queue_of_ones_own_is_not_forgotten(run: Run, store: KeptStore, tmp_path: Path) -> None:
    own = tmp_path / "xdg-state" / "gputui"
    own.mkdir(parents=True)
    (own / "queue.json").touch()
    store.submit([Job(0, JobSpec(image="busybox"), NOW)], actor=Actor(1000, "alice"))
    assert named(run("doctor", "--json").out)["queue"] == ("warn", f"1 live job in {own}, a queue of your own")


def test_a_service_that_does_not_run_is_told(run: Run, of_machine: Path) -> None:
    bind(of_machine, 0o666).socket.close()
    done = run("doctor")
    assert done.code == 1
    assert "the service of this machine does not run" in done.out
    assert "systemctl start gputui.socket" in done.out


@cases(
    ("role", "silent_for", "level"),
    [("operator", 0, CheckLevel.OK), ("viewer", 0, CheckLevel.WARN), ("user", 40, CheckLevel.FAIL)],
)
def test_what_the_service_tells_is_judged(role: str, silent_for: int, level: CheckLevel) -> None:
    assert checks.of_answer("PATH", "serve", "alice", role, timedelta(seconds=silent_for)).level is level


def test_consoles_root_and_a_service_that_cannot_be_asked_are_told() -> None:
    for silent_for in (0, 40):
        told = checks.of_answer("P", "console of ann, pid 7,", "ann", "operator", timedelta(seconds=silent_for))
        assert told.name == "console"
        assert "systemctl" not in told.hint + told.text + told.why
    found = checks.of_engine_group("docker", ["g", "f", "e", "d", "c", "b"])
    assert found is not None
    assert found.text == "in the group docker: b, c, d, e, f and 1 more"
    assert checks.of_engine_group("docker", []) is None
    assert checks.of_silence(GputuiError("no", where="PATH", hint="do")).text == "PATH: no"


def test_settings_that_leave_users_outside_are_told() -> None:
    users = AccessSettings(users=("*",))
    both = checks.of_access(Settings(access=users, store=StoreSettings(group="gpu")), has_socket=True)
    assert both is not None
    assert both.level is CheckLevel.FAIL
    without = checks.of_access(Settings(access=users), has_socket=False)
    assert without is not None
    assert without.text == "all accounts may use the queue, but gputui.socket is not installed"
    assert checks.of_access(Settings(access=users), has_socket=True) is None
    assert checks.of_access(Settings(), has_socket=False) is None
