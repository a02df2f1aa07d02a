"""Passes bytes on between a pair of streams and the owner of a queue: the far end of a connection over ssh.

The owner knows the account under which this process runs, and nothing else of who is at the other end.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from gputui.api.wire import Dial

CONNECT_WITHIN = 10.0
"""Seconds for the owner to accept the connection."""
_PIECE = 256 * 1024


def pass_on(dial: Dial, source: int, target: int) -> None:
    """Pass on what comes from a descriptor to the owner, and his answers to another one, until either side ends.

    Raises NoOwnerError if nobody owns the queue, and SilenceError for an owner who accepts no connection.
    """
    link = dial(CONNECT_WITHIN).detach()
    threading.Thread(target=_send, args=(source, link), name="stdin", daemon=True).start()
    with link, contextlib.suppress(OSError):
        while data := link.recv(_PIECE):
            left = memoryview(data)
            while left:
                left = left[os.write(target, left) :]


def _send(source: int, link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(source, _PIECE):
            link.sendall(data)
    with contextlib.suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)  # nobody is there any more, and no answer is wanted
