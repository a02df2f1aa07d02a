"""Kills and restarts of the engine under a runtime that watches it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import docker
import pytest

from gputui.bootstrap import SystemClock
from gputui.domain.container import ContainerRecord, ContainerState
from gputui.domain.errors import Blame, CauseCode, RuntimeFault, RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.ports import Clock, Runtime
from gputui.runtime.docker.records import made_success_up
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.runtime.contract import PATIENCE, STORE, Harness, record, seen, shell
from tests.runtime.dockerd import IMAGE, Dockerd, is_alive, processes_of
from tests.waiting import until

if TYPE_CHECKING:
    from docker import APIClient

pytestmark = pytest.mark.docker


class Watched:
    """Runtime with a watch, whose wake-ups are counted."""

    def __init__(self, engine: Dockerd, clock: Clock | None = None) -> None:
        self.engine = engine
        settings, clock = RuntimeSettings(docker_host=engine.host), clock or SystemClock()
        self.harness = Harness(lambda store: DockerRuntime(store, settings, clock), image=IMAGE)
        self.runtime = self.harness.open()
        self.woken = threading.Event()
        self.runtime.watch(self.woken.set)
        self.wait()

    def wait(self) -> None:
        """Wait for the next wake-up."""
        assert self.woken.wait(PATIENCE)
        self.woken.clear()

    def run(self, script: str, *, trap: str = "true", **options: Any) -> str:
        """Start a shell job and wait until it is running."""
        created = self.runtime.create(self.harness.launch(shell(f"{trap}; echo ready; {script}"), **options))
        self.runtime.start(created.id)
        seen(self.runtime, created.id, b"ready")
        return created.id

    def down(self) -> None:
        """Wait until the runtime knows that the engine is gone."""
        until(lambda: not self.runtime.status().up, "it is known to be down")


@pytest.fixture
def watched(own_engine: Dockerd) -> Iterator[Watched]:
    watched = Watched(own_engine)
    yield watched
    watched.runtime.close()


@pytest.fixture
def live(live_engine: Dockerd) -> Iterator[Watched]:
    watched = Watched(live_engine)
    yield watched
    watched.runtime.close()


def test_live_restore_keeps_containers_and_their_ends(live: Watched, tmp_path: Path) -> None:
    assert not any("live-restore" in warning for warning in live.runtime.check().warnings)
    stays = live.run("sleep 600")
    ends = live.run("while [ ! -e /data/end ]; do sleep 0.02; done; exit 5", volumes=(f"{tmp_path}:/data",))
    pid = record(live.runtime, ends).pid
    live.engine.kill()
    live.down()
    (tmp_path / "end").touch()
    until(lambda: not is_alive(Path(f"/proc/{pid}")), "it ended while the engine was away")
    with pytest.raises(RuntimeUnavailableError):
        live.runtime.containers()
    live.woken.clear()
    live.engine.launch(live_restore=True)
    live.wait()
    until(lambda: record(live.runtime, ends).state is ContainerState.EXITED, "the end was noticed")
    assert record(live.runtime, ends).exit_code == 5
    assert record(live.runtime, stays).state is ContainerState.RUNNING
    assert {each.id for each in live.runtime.containers()} == {stays, ends}
    assert live.runtime.status().up
    live.woken.clear()
    live.runtime.kill(stays)
    live.wait()
    assert record(live.runtime, stays).exit_code == 137


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_without_live_restore_lost_jobs_are_not_charged(watched: Watched, how: signal.Signals) -> None:
    assert any("live-restore" in warning for warning in watched.runtime.check().warnings)
    container_id = watched.run("exec sleep 600")
    before = watched.run("exit 9")
    watched.harness.ended(watched.runtime, before)
    watched.engine.stop(how)
    watched.down()
    watched.woken.clear()
    watched.engine.launch()
    watched.wait()
    ended = {each.id: each for each in watched.runtime.containers()}[container_id]
    assert ended.state is ContainerState.EXITED
    assert ended.cause is not None
    assert ended.cause.code is CauseCode.CONTAINER_LOST, ended
    assert ended.cause.blame is Blame.INFRASTRUCTURE
    assert record(watched.runtime, container_id) == ended
    other = record(watched.runtime, before).cause
    assert other is not None
    assert other.code is CauseCode.NON_ZERO_EXIT


class EarlyClock(SystemClock):
    """Clock of a machine that is an hour ahead of the engine's."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


def test_a_restart_of_an_engine_whose_clock_is_an_hour_behind_is_not_charged(own_engine: Dockerd) -> None:
    watched = Watched(own_engine, EarlyClock())
    try:
        container_id = watched.run("exec sleep 600")
        own_engine.stop()
        watched.down()
        own_engine.launch(live_restore=True)  # so that the times alone tell
        watched.wait()
        ended = record(watched.runtime, container_id)
        assert ended.cause is not None
        assert ended.cause.code is CauseCode.CONTAINER_LOST
        assert ended.ended_at is not None
        assert abs(EarlyClock().now() - ended.ended_at) < timedelta(minutes=1)
    finally:
        watched.runtime.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_scheduler_that_was_away_recognises_what_a_restart_ended(own_engine: Dockerd, how: signal.Signals) -> None:
    before = Watched(own_engine)
    container_id = before.run("exec sleep 600")
    before.runtime.close()
    own_engine.stop(how)
    own_engine.launch()
    after = before.harness.open()
    cause = record(after, container_id).cause
    assert cause is not None
    assert cause.code is CauseCode.CONTAINER_LOST
    after.close()


def test_a_signal_while_no_scheduler_ran_is_not_taken_for_a_restart(watched: Watched) -> None:
    container_id = watched.run("exec sleep 600")
    watched.runtime.kill(container_id)
    other = watched.harness.open()
    cause = watched.harness.ended(other, container_id).cause
    assert cause is not None
    assert cause.code is CauseCode.SIGNALLED, "the engine is the same"
    other.close()


def answers(runtime: Runtime) -> bool:
    try:
        runtime.containers()
    except RuntimeUnavailableError:
        return False
    return True


@pytest.mark.long
def test_jobs_that_end_with_a_stopping_engine_are_not_charged(watched: Watched) -> None:
    """A stopping engine waits ten seconds, in which it accepts no new connections."""
    container_id = watched.run("exec sleep 600")
    stubborn = watched.run("while true; do sleep 0.1; done", trap='trap "" TERM')
    watched.engine.send(signal.SIGTERM)
    socket = Path(watched.engine.host.removeprefix("unix://"))
    until(lambda: not socket.exists(), "it takes no new callers")
    assert not answers(watched.runtime)
    assert watched.engine.pid is not None, "but it is there"
    watched.engine.stop()
    watched.down()
    watched.woken.clear()
    watched.engine.launch()
    watched.wait()
    for each in (container_id, stubborn):
        cause = record(watched.runtime, each).cause
        assert cause is not None
        assert cause.code is CauseCode.CONTAINER_LOST, cause


def test_a_followed_log_outlives_its_engine(live: Watched, tmp_path: Path) -> None:
    """The log repeats and loses no line, and ends with the container."""
    script = "i=0; while [ ! -e /data/end ]; do i=$((i + 1)); echo line $i; sleep 0.01; done; echo last"
    container_id = live.run(script, volumes=(f"{tmp_path}:/data",))
    stream, lines = live.runtime.logs(container_id, follow=True), list[bytes]()
    thread = threading.Thread(target=lambda: lines.extend(stream), daemon=True)
    thread.start()
    until(lambda: len(lines) > 20, "it is followed")
    live.engine.kill()
    live.down()
    live.engine.launch(live_restore=True)
    before = len(lines)
    until(lambda: len(lines) > before + 20, "it is followed again")
    (tmp_path / "end").touch()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert lines == [b"ready", *(f"line {number}".encode() for number in range(1, len(lines) - 1)), b"last"]


def test_the_runtime_reconnects_without_an_event_watcher(own_engine: Dockerd) -> None:
    runtime = DockerRuntime(STORE, RuntimeSettings(docker_host=own_engine.host), SystemClock())
    assert runtime.containers() == ()
    own_engine.kill()
    with pytest.raises(RuntimeUnavailableError):
        runtime.containers()
    assert not runtime.status().up
    own_engine.launch()
    assert runtime.check().up
    assert runtime.containers() == ()
    runtime.close()


def test_close_ends_the_watching_thread(watched: Watched) -> None:
    (thread,) = [each for each in threading.enumerate() if each.name == "docker-events"]
    watched.runtime.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_suspended_container_outlives_a_killed_engine_and_is_woken_afterwards(live: Watched) -> None:
    container_id = live.run("while :; do sleep 0.1; done", trap="trap 'exit 5' TERM")
    live.runtime.suspend(container_id)
    live.engine.kill()
    live.down()
    live.engine.launch(live_restore=True)
    until(lambda: live.runtime.check().up, "the engine is back")
    assert record(live.runtime, container_id).is_suspended
    live.runtime.unsuspend(container_id)
    assert not record(live.runtime, container_id).is_suspended
    live.runtime.suspend(container_id)
    live.runtime.terminate(container_id)
    assert live.harness.ended(live.runtime, container_id).exit_code == 5


def begun(watched: Watched, tmp_path: Path, script: str = "true", **options: Any) -> str:
    """Start a container that counts its runs in a file, while the engine is killed; return its id once it is back."""
    words = shell(f"echo ran >> /data/ran; {script}")
    created = watched.runtime.create(watched.harness.launch(words, volumes=(f"{tmp_path}:/data",), **options))
    with pytest.raises(RuntimeUnavailableError):
        watched.runtime.start(created.id)
    watched.engine.stop(signal.SIGKILL)
    watched.engine.launch(live_restore=True)
    until(lambda: watched.runtime.check().up, "the engine is back")
    return created.id


def status(engine: Dockerd, container_id: str) -> str:
    client = docker.APIClient(base_url=engine.host)
    try:
        return str(client.inspect_container(container_id)["State"]["Status"])
    finally:
        client.close()


def runs(tmp_path: Path) -> int:
    path = tmp_path / "ran"
    return len(path.read_text().split()) if path.exists() else 0


def test_a_start_that_the_engine_did_not_survive_is_not_made_again(live: Watched, tmp_path: Path) -> None:
    """The engine lists it as created, although its command ran."""
    live.engine.kill_at("after", "start")
    container_id = begun(live, tmp_path, "echo done")
    until(lambda: runs(tmp_path) == 1, "it ran")
    other = live.harness.open()
    for runtime in (live.runtime, other):  # what the first one knows, the next scheduler has to find out too
        assert status(live.engine, container_id) == "created", "according to the engine"
        seen = record(runtime, container_id)
        assert (seen.state, seen.exit_code) == (ContainerState.EXITED, None)
        assert seen.cause is not None
        assert seen.cause.code is CauseCode.END_UNKNOWN
        assert seen in runtime.containers()
        runtime.start(container_id)
        assert runs(tmp_path) == 1
    other.close()
    live.runtime.save_log(container_id, tmp_path / "log")
    live.runtime.remove(container_id)
    assert live.runtime.containers() == ()


def test_a_start_that_never_reached_the_runtime_is_made_again(live: Watched, tmp_path: Path) -> None:
    live.engine.kill_at("before", "create")
    container_id = begun(live, tmp_path)
    assert record(live.runtime, container_id).state is ContainerState.CREATED
    with suppress(RuntimeFault):  # containerd may still know the task: then the container is removed, and never ran
        live.runtime.start(container_id)
    started = live.runtime.inspect(container_id) is not None
    assert not started or live.harness.ended(live.runtime, container_id).exit_code == 0
    assert runs(tmp_path) == started


def test_without_an_init_nothing_proves_that_it_never_ran(live: Watched, tmp_path: Path) -> None:
    live.engine.kill_at("before", "create")
    container_id = begun(live, tmp_path, no_init=True)
    cause = record(live.runtime, container_id).cause
    assert cause is not None
    assert cause.code is CauseCode.END_UNKNOWN


@pytest.mark.parametrize("options", [{}, {"no_init": True}], ids=["init", "no init"])
def test_a_created_container_of_a_dead_scheduler_is_started(live: Watched, options: dict[str, Any]) -> None:
    """The engine remembers its creation, so it knows that nobody has started it."""
    launch = live.harness.launch(shell("true"), **options)
    created = live.runtime.create(launch)
    other = live.harness.open()
    assert other.create(launch).adopted
    other.start(created.id)
    assert live.harness.ended(other, created.id).exit_code == 0
    other.close()


def test_a_success_while_the_engine_was_away_is_one(live: Watched, tmp_path: Path) -> None:
    succeeds = live.run("while [ ! -e /data/end ]; do sleep 0.02; done", volumes=(f"{tmp_path}:/data",))
    pid = record(live.runtime, succeeds).pid
    live.engine.kill()
    live.down()
    (tmp_path / "end").touch()
    until(lambda: not is_alive(Path(f"/proc/{pid}")), "it ended while the engine was away")
    live.engine.launch(live_restore=True)
    until(lambda: live.runtime.check().up, "the engine is back")
    other = live.harness.open()
    for runtime in (live.runtime, other):
        ended = record(runtime, succeeds)
        assert (ended.cause, ended.exit_code) == (None, 0)
    other.close()


class Engine:
    """An engine that remembers these events, of which the second answer has some more."""

    def __init__(self, *events: str, late: tuple[str, ...] = (), kind: str = "Engine") -> None:
        self.events_of = [(*events,), (*events, *late)]
        self.kind = kind

    def info(self) -> dict[str, str]:
        return {"SystemTime": BACK.isoformat()}

    def version(self) -> dict[str, list[dict[str, str]]]:
        return {"Components": [{"Name": f"{self.kind} Engine"}]}

    def events(self, **_: object) -> Iterator[dict[str, str]]:
        words = (event.split() for event in self.events_of.pop(0))
        return iter([{"Action": action, "id": container} for action, container in words])


BACK = datetime(2026, 3, 2, 12, 0, 5, tzinfo=UTC)
BEGAN = BACK - timedelta(seconds=2)
MANY = ("die other",) * 256


@cases(
    ("engine", "began", "is_made_up"),
    [
        (Engine("die other"), BEGAN, True),
        (Engine("die other"), None, True),
        (Engine("die other"), BACK, False),  # containerd tells of ends before that
        (Engine("die mine"), BEGAN, False),
        (Engine("start mine"), BEGAN, False),  # the same process watches it
        (Engine(late=("die mine",)), BEGAN, False),
        (Engine(*MANY), BEGAN, False),  # it may have forgotten the end
        (Engine(kind="Podman"), BEGAN, False),
    ],
)
def test_a_success_that_the_engine_may_have_made_up(engine: Engine, began: datetime | None, is_made_up: bool) -> None:
    """dockerd reports 0 for a task that containerd no longer knows, and its own start as the time of the end."""
    ended = ContainerRecord("mine", 1, 1, ContainerState.EXITED, exit_code=0, ended_at=BACK - timedelta(seconds=1))
    assert made_success_up(cast("APIClient", engine), ended, began) is is_made_up


def test_an_end_that_the_engine_did_not_see_is_unknown(live: Watched, tmp_path: Path) -> None:
    """The shim that knows the exit code is lost together with the engine, which then reports 255."""
    container_id = live.run("exec sleep 600")
    running, own = record(live.runtime, container_id), live.run("exit 255")
    live.harness.ended(live.runtime, own)
    live.engine.kill()
    for pid in processes_of(live.engine.directory):
        with suppress(OSError):  # it has ended
            if container_id.encode() in Path(f"/proc/{pid}/cmdline").read_bytes() or pid == running.pid:
                os.kill(pid, signal.SIGKILL)
    live.down()
    live.engine.launch(live_restore=True)
    until(lambda: live.runtime.check().up, "the engine is back")
    other = live.harness.open()
    for runtime in (live.runtime, other):
        ended = record(runtime, container_id)
        assert ended.exit_code is None
        assert ended.cause is not None
        assert ended.cause.code is CauseCode.END_UNKNOWN, ended
    other.close()
    seen_before = record(live.runtime, own).cause
    assert seen_before is not None
    assert seen_before.code is CauseCode.NON_ZERO_EXIT
