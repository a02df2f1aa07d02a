"""Listening sockets: bound in place of what is there, inherited from systemd, passed by the owner before."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gputui.api.connections import bind, inherited, keep_inherited, taken
from tests.api.serving import connect
from tests.cases import cases


def test_it_takes_the_path_in_one_step_whatever_is_there(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text("left by somebody")
    listeners = [bind(path, 0o640)]
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    missing: list[OSError] = []
    done = threading.Event()

    def knock() -> None:
        while not done.is_set():
            try:
                connect(path).close()
            except OSError as error:
                missing.append(error)

    knocking = threading.Thread(target=knock)
    knocking.start()
    try:
        for _ in range(50):
            listeners.append(bind(path, 0o600))
            for old in listeners[:-2]:
                old.socket.close()
    finally:
        done.set()
        for listener in listeners:
            listener.socket.close()
        knocking.join()
    # those in the backlog of a replaced socket are cut off, but nobody finds no socket
    assert not [error for error in missing if isinstance(error, FileNotFoundError)]
    assert [each.name for each in tmp_path.iterdir()] == ["api.sock"]
    assert [listener.is_at(path) for listener in listeners[-2:]] == [False, True]


def test_the_path_may_be_longer_than_sockets_allow(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 150)
    directory.mkdir()
    listener = bind(directory / "api.sock", 0o600)
    assert listener.is_at(directory / "api.sock")
    listener.socket.close()


def test_an_unwritable_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        bind(tmp_path / "missing/api.sock", 0o600)
    (tmp_path / "api.sock").mkdir()
    with pytest.raises(OSError, match="directory"):
        bind(tmp_path / "api.sock", 0o600)
    assert [each.name for each in tmp_path.iterdir()] == ["api.sock"]


def test_what_the_owner_before_passed_is_taken_if_it_listens(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    listener = bind(path, 0o600)
    found = taken(f"{os.dup(listener.socket.fileno())}:{':'.join(listener.passed.split(':')[1:])}")
    assert found is not None
    assert found.is_at(path)
    listener.socket.close()
    client = connect(path)
    found.socket.accept()[0].close()
    client.close()
    bind(path, 0o600).socket.close()
    assert not found.is_at(path)
    found.socket.close()
    with socket.socket(socket.AF_UNIX) as deaf:
        assert taken(f"{os.dup(deaf.fileno())}:1:2") is None
    for nonsense in ("", "x", "1:2", "-1:2:3", "9999:1:2", f"{os.open(path.parent, os.O_RDONLY)}:1:2"):
        assert taken(nonsense) is None


_INHERITS = """
import os, sys
from gputui.api.connections import inherited, keep_inherited
os.environ["LISTEN_PID"] = str(os.getpid())
first = inherited()
first.socket.close()
second = inherited()  # of a later term
assert not os.get_inheritable(3)
if sys.argv[1:]:
    keep_inherited()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1]])
connection = second.socket.accept()[0]
connection.sendall(str(second.file).encode())
"""


@cases("arguments", [[], ["again"]])
def test_systemd_passes_a_socket_that_stays_its_own(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "api.sock"
    listener = bind(path, 0o600)
    descriptor = listener.socket.fileno()
    # fd 3 first: /dev/null is none that listens, as other sockets of a unit may be
    command = f'exec 4<&{descriptor} 3</dev/null; LISTEN_FDS=2 exec "$@"'
    process = subprocess.Popen(
        ["bash", "-c", command, "-", sys.executable, "-c", _INHERITS, *arguments], pass_fds=[descriptor]
    )
    with connect(path) as client:
        assert client.recv(99) == b"None"
    assert process.wait(30) == 0
    listener.socket.close()


def test_what_is_for_another_process_is_not_taken() -> None:
    for environ in ({}, {"LISTEN_FDS": "1"}, {"LISTEN_FDS": "1", "LISTEN_PID": "1"}):
        assert inherited(environ) is None
    mine = str(os.getpid())
    for number in ("", "x", "0", "99999999"):
        assert inherited({"LISTEN_FDS": number, "LISTEN_PID": mine}) is None
        keep_inherited({"LISTEN_FDS": number, "LISTEN_PID": mine})
