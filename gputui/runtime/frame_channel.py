"""Client of the scheduler's relay into jobs."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gputui.domain import frames
from gputui.domain.errors import GputuiError
from gputui.ports.frame_channel import FrameChannel, peer_uid

RELAY_SOCKET = "relay"
RELAY_PATIENCE = 30.0
"""Seconds to wait for an answer of the relay."""


def ask_relay(directory: Path, trusted: Collection[int], request: Mapping[str, Any]) -> FrameChannel | None:
    """Ask the relay for a stream; None if no relay runs. Raises GputuiError if it refuses.

    `trusted` are the uids whose processes may relay: members of a shared directory could put a socket there.
    """
    connection = _connected(directory)
    if connection is None:
        return None
    uid = peer_uid(connection)
    if uid not in trusted:
        connection.close()
        raise GputuiError(f"{directory / RELAY_SOCKET} is the socket of uid {uid}, who may not schedule here")
    channel = FrameChannel(connection, is_tty=False)
    told: list[bytes] = []
    channel.hear = lambda kind, content: told.append(content) if kind == frames.READY else None
    try:
        connection.settimeout(RELAY_PATIENCE)
        connection.sendall(frames.frame(frames.REQUEST, msgspec.json.encode(request)))
        early: list[tuple[bool, bytes]] = []
        while not told:
            if (parts := channel.receive()) is None:
                raise GputuiError("the scheduler's relay ended the connection", hint="see gputui.log")
            early += parts
    except TimeoutError as error:
        connection.close()
        raise GputuiError(f"the scheduler's relay has not answered for {RELAY_PATIENCE:.0f} s") from error
    except BaseException:
        connection.close()
        raise
    connection.settimeout(None)
    channel.is_tty = told[0] == b"tty"
    channel.keep(early)
    return channel


def _connected(directory: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{place}/{RELAY_SOCKET}")
    except OSError:
        connection.close()
        return None
    finally:
        os.close(place)
    return connection
