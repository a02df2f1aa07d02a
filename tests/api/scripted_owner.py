"""Owner of a queue that answers by a script: each connection is given to a function."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Play = Callable[[socket.socket], object]
"""Plays the server of one connection; the socket is closed after it."""


class ScriptedOwner:
    """Listens on a socket; the connections are played in their order, the last play for all further ones."""

    def __init__(self, path: Path, *plays: Play, backlog: int = 64) -> None:
        self.path = path
        self._plays = list(plays)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(backlog)
        self._thread = threading.Thread(target=self._run, daemon=True)
        if plays:
            self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            play = self._plays.pop(0) if len(self._plays) > 1 else self._plays[0]
            threading.Thread(target=self._play, args=(link, play), daemon=True).start()

    def _play(self, link: socket.socket, play: Play) -> None:
        with link, contextlib.suppress(OSError):
            play(link)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)


def fixed(answer: bytes, got: list[bytes] | None = None) -> Play:
    """Return a play that sends the same bytes for each request, and adds the requests to `got`."""

    def play(link: socket.socket) -> None:
        while request := whole_message(link):
            if got is not None:
                got.append(request)
            link.sendall(answer)

    return play


def whole_message(link: socket.socket) -> bytes:
    """Return a request or an answer with its body; empty if the connection ends before it does."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = link.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            while len(body) < int(value):
                piece = link.recv(65536)
                if not piece:
                    return b""
                body += piece
    return head + b"\r\n\r\n" + body


def answer_of(body: bytes, status: str = "200 OK", *more: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more))
    return head.encode() + b"\r\n\r\n" + body


@contextlib.contextmanager
def scripted(path: Path, *plays: Play, backlog: int = 64) -> Iterator[ScriptedOwner]:
    owner = ScriptedOwner(path, *plays, backlog=backlog)
    try:
        yield owner
    finally:
        owner.close()
