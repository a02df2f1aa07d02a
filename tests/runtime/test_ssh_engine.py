"""Engine behind a real sshd: one shared connection, reopened when it is cut, and ssh's messages on failure."""

from __future__ import annotations

import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from gputui.domain.errors import RuntimeUnavailableError
from gputui.domain.settings import RuntimeSettings
from gputui.runtime.docker import endpoint
from gputui.runtime.docker.connection import Connection
from gputui.runtime.docker.endpoint import Tunnel
from gputui.runtime.docker.runtime import DockerRuntime
from tests.cases import cases
from tests.factories import FakeClock
from tests.login_shells import SHELLS, talkative
from tests.process_list import children
from tests.runtime.contract import Harness, shell
from tests.runtime.dockerd import IMAGE, Dockerd
from tests.runtime.sshd import Sshd
from tests.runtime.standin_engine import StandInEngine, this_machine
from tests.waiting import until

pytestmark = pytest.mark.ssh


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    server = Sshd()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def ssh_of_the_tests(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", sshd.path)
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.3)
    yield
    endpoint.close_tunnels()
    until(lambda: ssh_processes() == [], "none is left")


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[StandInEngine]:
    made = StandInEngine(tmp_path / "d.sock", **this_machine())
    yield made
    made.close()


@pytest.fixture
def url(standin: StandInEngine) -> str:
    return standin.url.replace("unix://", "ssh://lab")


@pytest.fixture
def connect() -> Iterator[Callable[[str], Connection]]:
    made: list[Connection] = []

    def connect(url: str) -> Connection:
        made.append(Connection(RuntimeSettings(docker_host=url)))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


Connect = Callable[[str], Connection]


def ssh_processes() -> list[str]:
    """Return the names of ssh processes started by this process, zombies included."""
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in children("self")]
    return [name for name in names if name == "ssh"]


def test_many_calls_at_once_share_one_login(sshd: Sshd, url: str, connect: Connect) -> None:
    """The port is only in the configuration of ssh."""
    first, second = connect(url), connect(url)
    with ThreadPoolExecutor(8) as workers:
        calls = [workers.submit(each.call, lambda client: client.info()) for each in (first, second) * 20]
        assert all(call.result()["NCPU"] == 8 for call in calls)
    assert ssh_processes() == ["ssh"]
    assert len(sshd.sessions()) == 1
    first.close()
    assert second.call(lambda client: client.version())
    assert len(sshd.sessions()) == 1


def test_a_cut_connection_is_reopened(sshd: Sshd, url: str) -> None:
    runtime = DockerRuntime("store0000000", RuntimeSettings(docker_host=url), FakeClock())
    woken: list[int] = []
    runtime.watch(lambda: woken.append(1))
    until(lambda: bool(woken), "its events are watched")
    sshd.cut()
    before = len(woken)
    until(lambda: len(woken) > before, "they are watched again")
    assert runtime.check().up
    assert runtime.containers() == ()
    assert ssh_processes() == ["ssh"]
    runtime.close()


@pytest.mark.docker
def test_containers_run_over_ssh(engine: Dockerd, tmp_path: Path) -> None:
    """A few jobs on a real engine, with their logs."""
    url = engine.host.replace("unix://", "ssh://lab")
    harness = Harness(lambda store: DockerRuntime(store, RuntimeSettings(docker_host=url), FakeClock()), image=IMAGE)
    runtime = harness.open()
    made = [runtime.create(harness.launch(shell(f"echo {number}; sleep 0.3; echo end"))).id for number in range(4)]
    for container_id in made:
        runtime.start(container_id)
    with ThreadPoolExecutor(4) as readers:
        logs = [readers.submit(list, runtime.logs(container_id, follow=True)) for container_id in made]
        assert [log.result() for log in logs] == [[str(number).encode(), b"end"] for number in range(4)]
    assert ssh_processes() == ["ssh"]
    for number, container_id in enumerate(made):
        runtime.save_log(container_id, tmp_path / "log")
        assert (tmp_path / "log").read_text() == f"{number}\nend\n"
        runtime.remove(container_id)
    assert runtime.containers() == ()
    runtime.close()


@pytest.mark.long
def test_a_silent_connection_is_abandoned_within_15_seconds(sshd: Sshd, url: str) -> None:
    """A firewall that forgets a connection drops packets without a reply."""
    runtime = DockerRuntime("store0000000", RuntimeSettings(docker_host=url), FakeClock())
    woken: list[float] = []
    runtime.watch(lambda: woken.append(time.monotonic()))
    until(lambda: bool(woken), "its events are watched")
    frozen, frozen_at = sshd.freeze(), time.monotonic()
    try:
        until(lambda: woken[-1] > frozen_at, "they are watched again, over another connection")
        assert woken[-1] - frozen_at < 15
        assert runtime.check().up
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGKILL)
        runtime.close()


def test_ssh_has_no_terminal_and_asks_nothing(url: str, connect: Connect) -> None:
    connection = connect(url)
    connection.call(lambda client: client.version())
    [pid] = [pid for pid in children("self") if Path(f"/proc/{pid}/comm").read_text() == "ssh\n"]
    session, terminal = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3:5]
    assert int(session) == pid != os.getsid(0)
    assert terminal == "0"
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    assert b"-oBatchMode=yes" in words
    assert b"-p" not in words


@cases(
    ("host", "what", "hint"),
    [
        ("nowhere", "Could not resolve hostname", "HostName in ~/.ssh/config"),
        ("moved", "Connection refused", "Port in ~/.ssh/config"),
        ("a@b@lab", "refused the login: .*Permission denied", "`ssh a@b@lab` must work without a password"),
        ("nobody@lab", "refused the login: .*Permission denied", "`ssh nobody@lab` must work without a password"),
    ],
)
def test_the_words_of_ssh_reach_the_user(connect: Connect, host: str, what: str, hint: str) -> None:
    with pytest.raises(RuntimeUnavailableError, match=what) as caught:
        connect(f"ssh://{host}").call(lambda client: client.version())
    assert hint in (caught.value.hint or "")


def test_unknown_and_changed_host_keys_are_refused(sshd: Sshd, url: str, connect: Connect) -> None:
    known = sshd.directory / "known_hosts"
    (known).write_text("")
    try:
        with pytest.raises(RuntimeUnavailableError, match="not a known host") as caught:
            connect(url).call(lambda client: client.version())
        assert caught.value.hint == "`ssh lab` once, and compare its key"
        sshd.trust(sshd.directory / "user.pub")
        with pytest.raises(RuntimeUnavailableError, match="host key of lab has changed") as caught:
            Tunnel(url).socket_path()
        assert f'ssh-keygen -f "{known}" -R "[127.0.0.1]:{sshd.port}"' in (caught.value.hint or "")
    finally:
        sshd.trust(sshd.directory / "host.pub")


def test_a_missing_socket_is_reported(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match=f"the Docker socket {tmp_path}/none on lab cannot be opened"):
        connect(f"ssh://lab{tmp_path}/none").call(lambda client: client.version())


def test_a_failed_login_is_not_retried_at_once() -> None:
    tunnel = Tunnel("ssh://moved")
    for _ in range(2):
        with pytest.raises(RuntimeUnavailableError, match="refused"):
            tunnel.socket_path()
    assert tunnel.fault() is None, "the second was told the first one's reason"


@cases(
    ("said", "away_for", "pause"),
    [
        ("ssh: connect to host lab port 22: No route to host", 10.0, 5.0),
        ("ssh: connect to host lab port 22: Connection timed out", 120.0, 10.0),
        ("ssh: connect to host lab port 22: Connection refused", 3600.0, 30.0),
        ("ssh: connect to host lab port 22: Connection refused", math.inf, 30.0),
        ("me@lab: Permission denied (publickey).", 10.0, 30.0),
        ("kex_exchange_identification: Connection closed by remote host", 10.0, 30.0),
    ],
)
def test_a_line_that_was_cut_is_tried_more_often(said: str, away_for: float, pause: float) -> None:
    assert endpoint.longest_pause([said], away_for) == pause


def test_a_host_is_away_since_its_connection_was_lost(url: str, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def pause(said: Iterable[str], away_for: float) -> float:
        asked.append(away_for)
        return 0.0

    monkeypatch.setattr(endpoint, "_LASTS", 0.0)
    monkeypatch.setattr(endpoint, "longest_pause", pause)
    tunnel = Tunnel(url)
    tunnel.socket_path()
    sshd.stop()

    def is_lost() -> bool:
        with suppress(RuntimeUnavailableError):
            tunnel.socket_path()
        return bool(asked)

    try:
        until(is_lost, "it does not answer")
    finally:
        sshd.start()
    assert asked[0] < 60
    until(lambda: tunnel.socket_path(), "it is back")
    tunnel.close()


def test_files_that_a_cleaner_removed_are_made_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "FIRST_PAUSE", 0.0)
    tunnel = Tunnel(url)
    shutil.rmtree(Path(tunnel.socket_path()).parent)
    assert Path(tunnel.socket_path()).is_socket()
    tunnel.close()


def test_leftovers_of_killed_processes_are_removed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
        dead, alive = Path(place, f"gputui-ssh-{2**22 + 1}-a"), Path(place, f"gputui-ssh-{os.getpid()}-b")
        for directory in (dead, alive):
            directory.mkdir()
        tunnel = Tunnel(url)
        assert tunnel.socket_path().startswith(place)
        tunnel.close()
        assert list(Path(place).iterdir()) == [alive]


def test_an_engine_of_this_machine_is_known_by_its_boot_id(url: str) -> None:
    runtime = DockerRuntime("store0000000", RuntimeSettings(docker_host=url), FakeClock())
    gpus = runtime.check().gpus
    runtime.close()
    assert gpus is not None
    assert gpus.is_local


@pytest.mark.parametrize("shell", SHELLS)
def test_a_login_shell_that_prints_hides_no_machine(url: str, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    with talkative(shell) as server:
        monkeypatch.setenv("PATH", server.path)
        tunnel = Tunnel(url)
        assert tunnel.socket_path()
        assert (tunnel.machine(), tunnel.is_here()) == (os.uname().nodename, True)
        tunnel.close()


def test_a_forced_command_that_tells_nothing_is_waited_for_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "TOLD_WITHIN", 1.0)
    forced = "sh -c 'exec cat' sh"
    with closing(Sshd(shell=forced)) as server:
        monkeypatch.setenv("PATH", server.path)
        tunnel, begun = Tunnel(url), time.monotonic()
        assert tunnel.socket_path()
        assert {tunnel.machine() for _ in range(10)} == {"lab"}
        assert not tunnel.is_here()
        assert time.monotonic() - begun < 9
        tunnel.close()


@pytest.mark.needs("busybox")
def test_links_are_followed_as_the_host_s_own_realpath_does(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("it's a place", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "-link").symlink_to("it's a place")
    for realpath in ("realpath", "busybox"):
        (tmp_path / "bin" / "realpath").unlink(missing_ok=True)
        (tmp_path / "bin" / "realpath").symlink_to(str(shutil.which(realpath)))
        with closing(Sshd({"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})) as server:
            monkeypatch.setenv("PATH", server.path)
            with closing(Tunnel(url)) as tunnel:
                assert tunnel.real_path(f"{tmp_path}/-link/../-link") == f"{tmp_path}/it's a place"
                with pytest.raises(OSError, match="No such file"):
                    tunnel.real_path(f"{tmp_path}/none/below")


def test_what_a_slow_login_tells_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(endpoint, "TOLD_WITHIN", 1.0)
    late = "sh -c 'sleep 0.3; exec sh \"$@\"' sh"
    with closing(Sshd(shell=late)) as server:
        slow = tmp_path / "ssh"
        slow.write_text(f'#!/bin/sh\nsleep 1.2\nexec {server.directory}/bin/ssh "$@"\n')
        slow.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{server.path}")
        tunnel = Tunnel(url)
        assert tunnel.socket_path()
        assert tunnel.is_here()
        tunnel.close()


@cases("url", ["ssh://", "ssh://-oProxyCommand=x", "ssh://-lx@y", "ssh://a:b", "ssh://a:secret@b"])
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(RuntimeUnavailableError, match="not an ssh address"):
        Tunnel(url)
