"""A user at the other end of a channel, and commands that a fake cluster runs in its jobs."""

from __future__ import annotations

import os
import select
import time
from contextlib import closing

from gputui.cluster.ssh import CommandChannel
from gputui.domain.container import ExecRequest
from gputui.domain.errors import ClusterRefusedError
from gputui.domain.frames import CommandMarks
from gputui.ports import Channel

_PATIENCE = 60.0
_INSIDE = """
mark=$1 end=$2; shift 2
if [ -n "$end" ]; then exec 3>&2; else exec 3>&1 2>&1; fi
printf '\\033_gputui:%s:begin\\033\\\\%s' "$mark" "$end" >&3
"$@" 3>&-
printf '\\033_gputui:%s:%s\\033\\\\%s' "$mark" "$?" "$end" >&3
"""


def local_command(request: ExecRequest) -> CommandChannel:
    """Run a command on this machine as clusters run one on a node."""
    marks = CommandMarks(ends_line=not request.tty)
    words = ["sh", "-c", _INSIDE, "sh", marks.key, "" if request.tty else "\n", *request.command]

    def refused(complaint: str, code: int) -> ClusterRefusedError:
        return ClusterRefusedError(f"{complaint} ({code})")

    return CommandChannel(words, os.environ, marks, is_tty=request.tty, has_input=request.stdin, refused=refused)


class Talk:
    """Output of a channel so far."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.out = self.err = b""
        self.is_over = False

    def until(self, words: bytes) -> None:
        """Read until the output has these words."""
        deadline = time.monotonic() + _PATIENCE
        while words not in self.out:
            assert not self.is_over, f"it ended: {self.out!r} {self.err!r}"
            self._read(deadline)

    def end(self) -> int | None:
        """Read to the end; return the exit code."""
        deadline = time.monotonic() + _PATIENCE
        with closing(self.channel):
            while not self.is_over:
                self._read(deadline)
            return self.channel.exit_code()

    def _read(self, deadline: float) -> None:
        patience = deadline - time.monotonic()
        if not self.channel.has_pending:
            readable = select.poll()
            readable.register(self.channel.fileno(), select.POLLIN)
            assert readable.poll(1000 * max(0, patience)), f"gave up waiting: {self.out!r} {self.err!r}"
        parts = self.channel.receive()
        self.is_over = parts is None
        for is_error, piece in parts or ():
            if is_error:
                self.err += piece
            else:
                self.out += piece
