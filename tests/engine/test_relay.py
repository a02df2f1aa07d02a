"""The relay's listener: limits on connections, in total and per user."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import time
from pathlib import Path

import pytest

from gputui.domain import frames
from gputui.engine.process import relay


def test_one_user_does_not_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "MOST_OF_ONE", 1)
    command = ["sh", "-c", "cat > /dev/null"]
    with tempfile.TemporaryDirectory() as state:
        found = relay.Relay(Path(state), command)
        found.open()
        first = connected(state)
        assert b"the most for one user" in answer(state)
        first.close()
        command[:] = ["/no/such/command"]
        while answer(state):  # until the first one's process has ended
            pass
        found.close()


def test_an_error_of_accept_ends_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(relay, "RETRY", 0.01)
    monkeypatch.setattr(relay, "MOST_OF_ONE", 0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with tempfile.TemporaryDirectory() as state:
        found = relay.Relay(Path(state), ["true"])
        found.open()
        waiting = socket.socket(socket.AF_UNIX)
        waiting.settimeout(30)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # no new descriptor for anybody
        try:
            waiting.connect(f"{state}/{relay.SOCKET}")
            deadline = time.monotonic() + 60
            while "a connection to the relay into jobs failed: [Errno 24]" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert b"the most for one user" in waiting.recv(4096)
        waiting.close()
        found.close()


def answer(state: str) -> bytes:
    with connected(state) as connection:
        return b"".join(content for kind, content in frames.Frames().feed(connection.recv(4096)) if kind)


def connected(state: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    place = os.open(state, os.O_RDONLY)
    connection.connect(f"/proc/self/fd/{place}/{relay.SOCKET}")
    os.close(place)
    return connection
