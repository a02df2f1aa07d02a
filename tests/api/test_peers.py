"""Peers: the process at the other end of a connection, by the kernel's word."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.api import connections
from tests.cases import cases
from tests.needs import need

_CONNECT = "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as found:
        Path(place).chmod(0o755)
        found.bind(f"{place}/s")
        Path(f"{place}/s").chmod(0o666)
        found.listen()
        yield found


def start(listener: socket.socket, then: str, *wrapper: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Return a connection of a new process, and the process."""
    command = [*wrapper, sys.executable, "-S", "-c", _CONNECT + then, listener.getsockname()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    return listener.accept()[0], process


def end(process: subprocess.Popen[bytes]) -> None:
    process.communicate(timeout=30)


@cases("count", [2, 300])
def test_another_user_is_known_with_all_groups(listener: socket.socket, count: int) -> None:
    need("root", "readers")
    groups = range(70000, 70000 + count)
    wrapper = ["setpriv", "--reuid=61234", "--regid=61235", f"--groups={','.join(map(str, groups))}"]
    connection, process = start(listener, "sys.stdin.read()", *wrapper)
    with connection:
        peer = connections.peer_of(connection)
        assert peer is not None
        assert (peer.uid, peer.gid, peer.pid) == (61234, 61235, process.pid)
        assert sorted(peer.groups) == list(groups)
        assert peer.cgroup == Path(f"/proc/{process.pid}/cgroup").read_text().strip()
    end(process)


def test_one_that_has_left_its_connection_to_a_child_is_nobody(listener: socket.socket) -> None:
    connection, process = start(listener, "import os; os.fork() or sys.stdin.read()")
    with connection:
        process.wait(30)  # the child reads on
        assert connections.peer_of(connection) is None
    end(process)


def test_one_that_is_not_waited_for_is_nobody_too(listener: socket.socket) -> None:
    connection, process = start(listener, "import os; os.fork() and os._exit(0); sys.stdin.read()")
    with connection:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert connections.peer_of(connection) is None
    end(process)


def test_an_older_kernel_is_asked_by_the_time_of_the_start(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SO_PEERPIDFD", 9999)  # an option that this one does not know
    connection, process = start(listener, "sys.stdin.read()")
    with connection:
        peer = connections.peer_of(connection)
        assert peer is not None
        assert peer.cgroup
        end(process)
        assert connections.peer_of(connection) is None


def test_a_container_of_its_own_is_seen(listener: socket.socket) -> None:
    need("root")
    assert connections.shares_namespace(os.getpid())
    command = [sys.executable, "-S", "-c", "import sys; print(flush=True); sys.stdin.read()"]
    inside = subprocess.Popen(["unshare", "--pid", "--fork", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert inside.stdout is not None
    inside.stdout.readline()
    (child,) = Path(f"/proc/{inside.pid}/task/{inside.pid}/children").read_text().split()
    assert not connections.shares_namespace(int(child))
    end(inside)
    assert not connections.shares_namespace(int(child))


def test_a_user_namespace_is_seen(listener: socket.socket) -> None:
    need("root", "readers")
    for wrapper, is_mapped in ((), False), (("unshare", "--user"), True):
        reader = ("setpriv", "--reuid=61234", "--regid=61235", "--clear-groups", *wrapper)
        connection, process = start(listener, "sys.stdin.read()", *reader)
        with connection:
            peer = connections.peer_of(connection)
            assert peer is not None
            assert (peer.uid, peer.is_mapped) == (61234, is_mapped)
        end(process)


def test_of_a_process_that_is_hidden_nothing_is_known(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, process = start(listener, "sys.stdin.read()")
    with connection:
        monkeypatch.setattr(connections, "PROC", tmp_path)  # as with hidepid
        peer = connections.peer_of(connection)
        assert peer is not None
        assert (peer.pid, peer.cgroup) == (process.pid, "")
        assert not connections.shares_namespace(process.pid)
        end(process)
        assert connections.peer_of(connection) is None
