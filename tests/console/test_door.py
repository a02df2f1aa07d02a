"""The door of a queue as its owners change: who asks is answered by the next one, and is never refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gputui import bootstrap
from gputui.api.handlers import OwnerServices
from gputui.api.http import credentials
from gputui.bootstrap import door, hosting
from gputui.config import Options, resolve
from gputui.engine.feed import Feed
from gputui.engine.leadership import current_leader

REQUEST = b"GET /v1/about HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
PATIENCE = 60.0


class Cut(Exception):  # noqa: N818 - it is no error: clients ask again
    """The connection ended without an answer."""


def about(state: Path) -> dict[str, object]:
    """Return what the owner tells. Raises OSError if nobody listens."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(state / "api.sock"))
        link.settimeout(PATIENCE)
        data = b""
        try:
            link.sendall(REQUEST)
            while piece := link.recv(65536):
                data += piece
        except (BrokenPipeError, ConnectionResetError):
            raise Cut from None
    if not data:
        raise Cut
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), data
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


def owner_of(state: Path) -> int:
    """Return the pid of the owner, as soon as there is one that answers."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            owner = about(state)["owner"]
        except (OSError, Cut):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            assert isinstance(owner, dict)
            return int(owner["pid"])


def listening_at(state: Path) -> int:
    """Return the pid of the process that listens, as the kernel names it to clients."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(state / "api.sock"))
        return credentials(link)[0]


class Knocker:
    """Asks all the time, and remembers who answered, and what went wrong."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._knock)
        self.owners: list[int] = []
        self.refused: list[OSError] = []
        self.cuts = 0
        self.longest = 0.0

    def _knock(self) -> None:
        while not self._done.is_set():
            begun = time.monotonic()
            try:
                owner = about(self._state)["owner"]
            except Cut:
                self.cuts += 1
            except OSError as error:
                self.refused.append(error)
            else:
                assert isinstance(owner, dict)
                self.owners.append(int(owner["pid"]))
                self.longest = max(self.longest, time.monotonic() - begun)

    def until(self, pid: int) -> None:
        """Wait until this owner answers."""
        deadline = time.monotonic() + PATIENCE
        while not self.owners or self.owners[-1] != pid:
            assert time.monotonic() < deadline, (pid, self.owners[-3:], self.refused[-3:])
            time.sleep(0.01)

    def __enter__(self) -> Knocker:
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ask no more."""
        self._done.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()


def command(state: Path, *words: str) -> list[str]:
    options = ["--state", str(state), "--runtime", "process", "--probe", "sim:1"]
    return [sys.executable, "-P", "-m", "gputui", *options, "serve", *words]


@contextmanager
def serve(state: Path, *words: str, **named: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run `gputui serve`, and end it."""
    with subprocess.Popen(command(state, *words), stderr=subprocess.DEVNULL, **named) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE)


def test_a_killed_owner_is_followed_by_the_next(tmp_path: Path) -> None:
    state = tmp_path / "state"
    pids: list[int] = []
    for _ in range(3):
        with serve(state) as owner:
            assert owner_of(state) == owner.pid
            owner.send_signal(signal.SIGKILL)
            owner.wait(PATIENCE)
            with pytest.raises(ConnectionRefusedError):
                about(state)
            pids.append(owner.pid)
    assert len(set(pids)) == 3
    assert [path.name for path in state.glob("*api.sock*")] == ["api.sock"]


_CONSOLE = """
import asyncio, signal, sys
from gputui import bootstrap
from gputui.bootstrap import hosting
from gputui.config import resolve
from gputui.console import serving
from gputui.engine.feed import Feed
options = resolve(state=sys.argv[1], runtime="process", probe="sim:1")
store = bootstrap.open_store(options)
host = hosting.make_host(options, store, Feed(), "console")

async def run():
    def quit():
        serving.hand_over(options)
        host.stop()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, quit)
    await host.run()

asyncio.run(run())
"""


def test_a_console_hands_its_socket_over(tmp_path: Path) -> None:
    state = tmp_path / "state"
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-P", "-c", _CONSOLE, str(state)], env=environ) as console:
        assert owner_of(state) == console.pid
        with Knocker(state) as knocker:
            console.terminate()
            try:
                console.wait(PATIENCE / 2)
            finally:
                console.kill()
            leader = next_leader(state, console.pid)
            knocker.until(leader)
            assert listening_at(state) == leader
    assert knocker.refused == []
    assert knocker.cuts == 0
    print(f"longest wait {knocker.longest:.2f} s")
    with serve(state) as service:  # it makes room
        assert next_leader(state, leader) == service.pid


def next_leader(state: Path, before: int) -> int:
    """Return the pid of the next scheduler."""
    deadline = time.monotonic() + PATIENCE
    while (leader := current_leader(state)) is None or leader.pid == before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return leader.pid


def test_a_background_owner_makes_room_for_a_service_and_refuses_nobody(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serve(state, "--stand-in") as stand_in:
        assert owner_of(state) == stand_in.pid
        with Knocker(state) as knocker, serve(state) as service:
            knocker.until(service.pid)
            assert stand_in.wait(PATIENCE) == 0
            assert knocker.refused == []
    print(f"longest wait {knocker.longest:.2f} s, {knocker.cuts} asked again")


def test_a_service_behind_the_socket_of_systemd_answers_there_and_in_the_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    place = tmp_path / "run"
    place.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "api.sock"))
        listener.listen(64)
        for number in (signal.SIGKILL, signal.SIGTERM):
            with activated(state, listener) as service:
                assert owner_of(place) == owner_of(state) == service.pid
                assert os.geteuid() or listening_at(place) == service.pid
                with Knocker(place) as knocker:
                    service.send_signal(number)
                    service.wait(PATIENCE)
                    with activated(state, listener) as following:
                        knocker.until(following.pid)
                        knocker.stop()
            assert knocker.refused == []
            print(f"longest wait {knocker.longest:.2f} s, {knocker.cuts} asked again")


def test_a_console_makes_room_for_the_service_at_whose_socket_users_wait(tmp_path: Path) -> None:
    state, place = tmp_path / "state", tmp_path / "run"
    place.mkdir()
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with (
        socket.socket(socket.AF_UNIX) as listener,
        subprocess.Popen([sys.executable, "-P", "-c", _CONSOLE, str(state)], env=environ) as console,
    ):
        listener.bind(str(place / "api.sock"))
        listener.listen(64)
        try:
            assert owner_of(state) == console.pid
            with Knocker(state) as knocker, activated(state, listener, "--wait", "1h") as service:
                assert owner_of(place) == service.pid
                knocker.until(service.pid)
                knocker.stop()
                assert console.poll() is None
            assert knocker.refused == []
            assert owner_of(state) == console.pid
        finally:
            console.kill()


@contextmanager
def activated(state: Path, listener: socket.socket, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service as systemd does: the socket is descriptor 3."""
    shell = f'exec 3<&{listener.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    program = ["bash", "-c", shell, "-", *command(state, *words)]
    with subprocess.Popen(program, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE)


class Manager:
    """Socket at which a service tells systemd how it is."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(PATIENCE)
        self.environ = {**os.environ, "NOTIFY_SOCKET": str(path)}

    def next(self) -> Sequence[str]:
        return self.socket.recv(999).decode().split("\n")

    def is_silent(self, seconds: float) -> bool:
        """Return whether nothing comes for some time; what has come is forgotten."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(999):
                pass
        except BlockingIOError:
            self.socket.settimeout(seconds)
        try:
            self.socket.recv(999)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(PATIENCE)
        return False


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path / "notify")
    with found.socket:
        yield found


def test_systemd_is_told_that_a_service_is_ready_lives_and_ends(tmp_path: Path, manager: Manager) -> None:
    state = tmp_path / "state"
    with serve(state, env=manager.environ) as service:
        assert manager.next() == ["READY=1", "WATCHDOG=1"]
        assert about(state)
        assert manager.next() == ["WATCHDOG=1"]
        service.send_signal(signal.SIGSTOP)
        assert manager.is_silent(3)
        service.send_signal(signal.SIGCONT)
        assert manager.next() == ["WATCHDOG=1"]
        service.terminate()
        while (signs := manager.next()) == ["WATCHDOG=1"]:
            pass
        assert signs == ["STOPPING=1"]


def test_a_service_that_waits_behind_another_scheduler_lives(tmp_path: Path, manager: Manager) -> None:
    state = tmp_path / "state"
    with serve(state) as first:
        assert owner_of(state) == first.pid
        with serve(state, "--wait", "1h", env=manager.environ) as second:
            assert manager.next() == ["READY=1", "WATCHDOG=1"]
            assert manager.next() == ["WATCHDOG=1"]
            first.terminate()
            first.wait(PATIENCE)
            assert owner_of(state) == second.pid
            assert manager.next() == ["WATCHDOG=1"]


def test_a_directory_without_sockets_is_scheduled_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    state = tmp_path / "state"
    options: Options = resolve(state=str(state), runtime="process", probe="sim:1")
    store, feed = bootstrap.open_store(options), Feed()
    (state / "api.sock").mkdir()
    host = hosting.make_host(options, store, feed, "console")
    shown = threading.Event()

    def look(snapshot: object) -> None:
        del snapshot
        if feed.latest.leads_here and any("cannot ask" in each.text for each in feed.latest.notices):
            shown.set()

    feed.subscribe(look)
    console = threading.Thread(target=partial(asyncio.run, host.run()))
    console.start()
    assert shown.wait(PATIENCE)
    host.stop()
    console.join(PATIENCE)
    store.close()


def test_a_server_that_cannot_be_made_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(door, "AGAIN_AFTER", 0.01)
    state = tmp_path / "state"
    options = resolve(state=str(state), runtime="process", probe="sim:1")
    store, feed = bootstrap.open_store(options), Feed()
    make, faults = door.make_services, [ZeroDivisionError("bad luck")]

    def failing(*given: Any, **named: Any) -> OwnerServices:
        if faults:
            raise faults.pop()
        return make(*given, **named)

    monkeypatch.setattr(door, "make_services", failing)
    host = hosting.make_host(options, store, feed, "console")
    console = threading.Thread(target=lambda: asyncio.run(host.run()))
    console.start()
    assert owner_of(state) == os.getpid()
    assert not faults
    host.stop()
    console.join(PATIENCE)
    store.close()
