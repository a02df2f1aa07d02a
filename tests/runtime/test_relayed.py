"""The client of the scheduler's relay, and the relay as its peer."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gputui.domain import frames
from gputui.domain.errors import GputuiError
from gputui.runtime import frame_channel

REQUEST = {"verb": "attach", "job": 1}


@contextmanager
def answering(directory: Path, answer: bytes) -> Iterator[None]:
    """Run a relay that answers one request with these bytes at once, and hangs up."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / frame_channel.RELAY_SOCKET))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_output_that_arrives_with_the_greeting_is_kept(tmp_path: Path) -> None:
    greeting = frames.frame(frames.READY, b"pipes") + frames.frame(frames.OUTPUT, b"out")
    with answering(tmp_path, greeting + frames.frame(frames.ERRORS, b"err") + frames.exit_frame(4)):
        channel = frame_channel.ask_relay(tmp_path, {os.geteuid()}, REQUEST)
    assert channel is not None
    assert channel.has_pending
    assert channel.receive() == [(False, b"out"), (True, b"err")]
    assert (channel.has_pending, channel.receive(), channel.exit_code()) == (False, None, 4)
    channel.close()


def test_a_relay_that_hangs_up_or_refuses_says_so(tmp_path: Path) -> None:
    for answer, words in ((b"", "relay ended the connection"), (frames.frame(frames.REFUSED, b"not you"), "not you")):
        with answering(tmp_path, answer), pytest.raises(GputuiError, match=words):
            frame_channel.ask_relay(tmp_path, {os.geteuid()}, REQUEST)
        (tmp_path / frame_channel.RELAY_SOCKET).unlink()


def test_a_socket_of_another_user_is_not_used(tmp_path: Path) -> None:
    with answering(tmp_path, b""), pytest.raises(GputuiError, match="who may not schedule here"):
        frame_channel.ask_relay(tmp_path, {os.geteuid() + 1}, REQUEST)
