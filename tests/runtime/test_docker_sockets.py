"""A runtime keeps few connections to its engine, after any number of calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker import connection
from gputui.runtime.docker.connection import MOST_IDLE, Connection
from gputui.runtime.docker.runtime import DockerRuntime
from tests.factories import FakeClock
from tests.runtime.standin_engine import Handler, StandInEngine
from tests.waiting import until

WORKERS = 8


def sockets() -> int:
    """Return the open sockets of this process."""
    return sum(1 for entry in Path("/proc/self/fd").iterdir() if _target(entry).startswith("socket:"))


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def test_sockets_stay_few_after_200_containers_by_8_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = StandInEngine(tmp_path / "d.sock")
    names = [f"{number:064x}" for number in range(200)]
    for name in names:
        engine.runs(name)
    runtime = DockerRuntime("store0000000", RuntimeSettings(docker_host=engine.url), FakeClock())
    runtime.check()
    woken: list[int] = []
    runtime.watch(lambda: woken.append(1))
    until(lambda: bool(woken), "the events are watched")
    before = sockets()
    with ThreadPoolExecutor(WORKERS) as workers:
        list(workers.map(runtime.inspect, names * 2))
    # of each connection the stand-in, in this process too, has the other end
    until(lambda: sockets() <= before + 2 * MOST_IDLE, "idle connections are few")
    monkeypatch.setattr(connection, "IDLE_FOR", 0.0)
    runtime.inspect(names[0])
    until(lambda: sockets() <= before, "they are closed after a while")
    runtime.close()
    engine.close()


def test_a_call_that_trickles_is_aborted_at_its_total_time(tmp_path: Path) -> None:
    """The bytes come in time one by one, the answer never does."""
    engine = StandInEngine(tmp_path / "d.sock")

    def drip(handler: Handler, query: dict[str, str]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not engine.stopped.wait(0.02):
            handler.wfile.write(b" ")

    engine.special["/info"] = drip
    connection = Connection(RuntimeSettings(docker_host=engine.url, docker_timeout=timedelta(seconds=0.3)))
    with pytest.raises(RuntimeUnavailableError, match="did not answer in time"):
        connection.call(lambda client: client.info())
    assert connection.call(lambda client: client.version(), patient=False)["Version"]
    connection.close()
    engine.close()


def test_many_foreign_containers_take_longer_than_one_request_may(tmp_path: Path) -> None:
    engine, slow = StandInEngine(tmp_path / "d.sock"), timedelta(seconds=0.5)
    for number in range(12):
        engine.runs(f"{number:064x}")
        engine.created[f"{number:064x}"]["HostConfig"] = {
            "DeviceRequests": [{"DeviceIDs": ["0"], "Capabilities": [["gpu"]]}]
        }
    whole = engine.answer

    def late(handler: Handler, path: str, query: dict[str, str], body: dict[str, Any]) -> None:
        engine.stopped.wait(0.05 if path.startswith("/containers/0") else 0)
        whole(handler, path, query, body)

    engine.answer = late  # type: ignore[method-assign]
    runtime = DockerRuntime("store0000000", RuntimeSettings(docker_host=engine.url, docker_timeout=slow), FakeClock())
    with closing(engine), closing(runtime):
        assert len(runtime.foreign()) == 12
