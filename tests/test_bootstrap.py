"""User and adapters chosen by the options."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from gputui import bootstrap
from gputui.bootstrap import adapters
from gputui.bootstrap.backend import open_foreign_use, recorded_machine
from gputui.config import Options, ProbeSpec
from gputui.domain.access import Actor
from gputui.domain.errors import InputError, OtherEngineError
from gputui.domain.job_spec import ContainerOptions, JobSpec, Submission
from gputui.domain.kept_data import EngineRecord
from gputui.domain.settings import AllowSettings, PolicySettings, RuntimeSettings, Settings
from gputui.domain.submit_action import SubmitJobs
from gputui.runtime.docker import endpoint
from tests.cases import cases
from tests.memory_store import MemoryJobStore
from tests.runtime.standin_engine import StandInEngine
from tests.runtime.test_docker_endpoint import add_context


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
@pytest.mark.parametrize(
    ("owner", "writer", "expected"), [(0, 0, "ssh://gpu1"), (65534, 0, ""), (0, 65534, ""), (65534, 65534, "")]
)
def test_what_another_user_may_have_prepared_leads_to_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, writer: int, expected: str
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(endpoint, "_recorded", {})
    book = adapters.engine_book(Options(tmp_path))
    book.write(EngineRecord("id", "gpu1", "ssh://gpu1"))
    os.chown(book.path, writer, -1)
    os.chown(tmp_path, owner, -1)
    adapters.engine_book(Options(tmp_path))
    os.chown(tmp_path, 0, -1)
    assert endpoint.environment()["DOCKER_HOST"] == expected


@pytest.mark.needs("root")
def test_who_may_not_read_the_record_of_a_queue_still_sees_foreign_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(StandInEngine(ID="another")) as engine:
        engine.runs("a")
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        options = Options(tmp_path, runtime="docker")
        adapters.engine_book(options).write(EngineRecord("id", "gpu1", "ssh://gpu1"))
        with closing(open_foreign_use(options, MemoryJobStore)) as use, pytest.raises(OtherEngineError):
            use.container("a")
        tmp_path.chmod(0o700)
        os.seteuid(65534)
        try:
            with closing(open_foreign_use(options, MemoryJobStore)) as use:
                assert use.container("a").id == "a"
        finally:
            os.seteuid(0)


def test_the_socket_of_a_docker_context_is_guarded_as_that_of_docker_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    add_context(tmp_path, "own", "unix:///srv/engine/d.sock", current=True)
    allow = AllowSettings(options={"docker_socket": False})
    options = Options(tmp_path, runtime="docker", settings=Settings(policy=PolicySettings(allow=allow)))
    mounting = JobSpec(image="debian", options=ContainerOptions(volumes=("/srv/engine:/e",)))
    with pytest.raises(InputError, match="holds an engine's socket"):
        bootstrap.actions(MemoryJobStore(), options).act(SubmitJobs((Submission(mounting),)))


def test_an_action_of_many_jobs_looks_once_where_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, machine = Mock(return_value="unix:///srv/d.sock"), Mock(return_value="")
    monkeypatch.setattr(adapters, "engine_url", engine)
    policy = PolicySettings(allow=AllowSettings(options={"docker_socket": False}))
    options = Options(tmp_path, runtime="docker", settings=Settings(policy=policy))
    many = [Submission(JobSpec(image="debian", options=ContainerOptions(volumes=("/srv/data:/data",))))] * 3
    many += [Submission(JobSpec(command=("true",)))] * 3
    bootstrap.actions(MemoryJobStore(), options, jobs_machine=machine).act(SubmitJobs(tuple(many)))
    assert (engine.call_count, machine.call_count) == (1, 1)


@cases(
    ("machine", "address", "known"),
    [
        ("gpu1", "ssh://gpu1", "gpu1"),
        ("gpu1", "tcp://10.0.0.1:2376", "gpu1"),
        (socket.gethostname(), "tcp://127.0.0.1:2375", ""),
        ("gpu1", "unix:///run/d.sock", ""),
        ("", "", ""),
    ],
)
def test_while_nobody_schedules_the_record_tells_where_jobs_run(
    tmp_path: Path, machine: str, address: str, known: str
) -> None:
    if address:
        adapters.engine_book(Options(tmp_path)).write(EngineRecord("engine-1", machine, address))
    assert recorded_machine(Options(tmp_path, runtime="docker")) == known
    assert recorded_machine(Options(tmp_path, runtime="process")) == ""
