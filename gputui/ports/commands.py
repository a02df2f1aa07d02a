"""Interface between the door of the process that owns a queue, and the commands that it runs for callers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from gputui.domain.access import Caller


class CommandLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A command of our own thin client, which the owner runs for its caller."""

    version: str
    """Version of the client's gputui: another one is refused with 421, and the client runs the command itself."""
    argv: tuple[str, ...]
    cwd: str
    width: int = 0
    """Columns of the terminal; 0: standard output is none."""
    ttys: int = 0
    """Sum of the standard streams that are terminals: 1 input, 2 output, 4 errors."""
    umask: int = 0o022
    limits: Mapping[str, int] = {}
    """Soft limits of the client, by their names in lower case without RLIMIT_; -1: none."""
    environ: Mapping[str, str] = {}
    """Variables of the client, of which only those that commands read."""
    config: str = ""
    """Personal settings file of the client, if there is one. The owner does not open it: it compares the name."""


OUT, ERR, UNPRINTED = 1, 2, 3
"""Kinds of what a command says: on standard output, on stderr, and on stderr if the output before cannot be printed."""


class CommandResult(Struct, frozen=True):
    """Result of a command: its exit code, and what its client prints, in order."""

    code: int
    said: tuple[tuple[int, bytes], ...] = ()

    def encoded(self) -> bytes:
        """Return the result for a client that knows neither JSON nor msgspec: lines `CODE`, `KIND LENGTH` and data."""
        return b"%d\n" % self.code + b"".join(b"%d %d\n%b" % (kind, len(data), data) for kind, data in self.said)


RunCommand: TypeAlias = Callable[[Caller, CommandLine], CommandResult]
"""Runs a command for its caller; raises ParseLocallyError, before anything is done, if its client must run it."""
